"""Wafers, yields, harvesting and the price of a known-good die, against counts, sums and published values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diffperf as dp
from diffperf.cost.die_cost import die_costs, known_good_price
from diffperf.cost.harvesting import repaired_share, shipping_shares
from diffperf.cost.wafers import dies_per_wafer, raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.package import Die
from diffperf.hardware.process import Process
from diffperf.quantity import real, replace

PROCESS = Process(name="", wafer_price=10000, defect_density=0.001, clustering=10)


def process(**values) -> Process:
    return Process(**{"name": "", "wafer_price": 1, "defect_density": 0.001, "clustering": 10} | values)


def die(**values) -> Die:
    return Die(**{"name": "", "process": PROCESS, "count": 1, "area": 800} | values)


# --- yields


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("poisson", np.exp(-0.5)),
        ("murphy", ((1 - np.exp(-0.5)) / 0.5) ** 2),
        ("seeds", 1 / 1.5),
        ("negative_binomial", (1 + 0.5 / 10) ** -10),
    ],
)
def test_yield_models_at_half_a_defect(model, expected):
    assert float(die_yield(real(500), process(yield_model=model))) == pytest.approx(expected, rel=1e-12)


def test_negative_binomial_is_poisson_without_clustering_and_seeds_with_most():
    """(1 + DA/c)^(−c) → exp(−DA) as c grows, and is Seeds' 1/(1 + DA) at c = 1."""
    loose, tight = process(clustering=1e9), process(clustering=1)
    assert float(die_yield(real(500), loose)) == pytest.approx(np.exp(-0.5), rel=1e-6)
    assert float(die_yield(real(500), tight)) == pytest.approx(1 / 1.5, rel=1e-12)
    assert float(die_yield(real(1e-9), PROCESS)) == pytest.approx(1)


def test_bose_einstein_is_a_negative_binomial():
    """n critical layers with D defects per area each: (1 + D·A)^(−n)."""
    layered = process(defect_density=8 * 0.0005, clustering=8)
    assert float(die_yield(real(300), layered)) == pytest.approx((1 + 0.0005 * 300) ** -8, rel=1e-12)


def test_models_are_ordered_by_the_spread_of_defects():
    names = ("poisson", "negative_binomial", "murphy", "seeds")
    shares = [float(die_yield(real(800), process(yield_model=name))) for name in names]
    assert shares == sorted(shares)


def test_critical_share_and_stitching():
    assert float(die_yield(real(800), process(critical_share=0.5))) == float(die_yield(real(400), PROCESS))
    stitched = process(stitching_yield=0.9, reticle=400)
    assert float(die_yield(real(1200), stitched)) == pytest.approx(
        0.9**2 * float(die_yield(real(1200), PROCESS)), rel=1e-12
    )
    assert float(die_yield(real(399), stitched)) == float(die_yield(real(399), PROCESS))


# --- wafers


@given(st.floats(1, 2000), st.floats(1.001, 3))
def test_larger_dies_are_fewer_dearer_and_work_less_often(area, factor):
    small, large = real(area), real(area * factor)
    assert float(dies_per_wafer(large, PROCESS)) < float(dies_per_wafer(small, PROCESS))
    assert float(die_yield(large, PROCESS)) < float(die_yield(small, PROCESS))
    assert float(raw_die_price(large, PROCESS)) > float(raw_die_price(small, PROCESS))


def whole_dies(width: float, height: float, wafer: Process) -> float:
    """Whole dies in a regular grid, the mean over its position on the wafer, counted one by one."""
    radius = float(wafer.wafer_diameter) / 2 - float(wafer.edge_loss)
    x_step, y_step = width + float(wafer.scribe_lane), height + float(wafer.scribe_lane)
    counts = []
    for shift in np.random.default_rng(0).random((40, 2)):
        x = np.arange(-200 / x_step, 200 / x_step) * x_step + shift[0] * x_step
        y = np.arange(-200 / y_step, 200 / y_step) * y_step + shift[1] * y_step
        far_x = np.maximum(np.abs(x), np.abs(x + x_step))
        far_y = np.maximum(np.abs(y), np.abs(y + y_step))
        counts.append(np.sum(far_x[:, None] ** 2 + far_y[None, :] ** 2 < radius**2))
    return float(np.mean(counts))


@pytest.mark.parametrize("aspect", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("area", [50.0, 200.0, 800.0])
def test_dies_per_wafer_against_counted_dies(area, aspect):
    counted = whole_dies(np.sqrt(area * aspect), np.sqrt(area / aspect), PROCESS)
    formula = float(dies_per_wafer(real(area), PROCESS, real(aspect)))
    assert formula == pytest.approx(counted, rel=0.02 + 3 / counted)


def test_dies_never_cover_more_than_the_wafer():
    for area in (10.0, 100.0, 858.0):
        assert float(dies_per_wafer(real(area), PROCESS)) * area < np.pi * 150**2


@pytest.mark.parametrize("area", [1e5, 1e6])
def test_what_does_not_fit_a_wafer_costs_a_finite_fortune(area):
    assert np.isfinite(float(raw_die_price(real(area), PROCESS)))
    assert float(raw_die_price(real(area), PROCESS)) > 100 * float(raw_die_price(real(800.0), PROCESS))
    assert float(die_yield(real(area), process(defect_density=0.1, clustering=100))) > 0


def test_a_wafer_scale_die_is_one_per_wafer():
    """Cerebras' WSE-3: 46,225 mm² with 900,000 of 970,000 cores: the wafer's price over a high yield."""
    wafer = die(
        area=46225,
        exposure="wafer",
        units=970_000,
        spare_units=70_000,
        units_share=0.8,
        process=process(wafer_price=17000, defect_density=1e-5 * 100),
    )
    assert float(raw_die_price(wafer.area, wafer.process, 1.0, wafer.exposure.wafer)) == 17000
    # Without the spares nothing would ship: 46 defects a wafer, for which the least yield stands.
    assert float(die_yield(wafer.area, wafer.process)) == pytest.approx(1e-4)
    spared = shipping_shares(wafer)
    assert float(spared.full) == pytest.approx(float(die_yield(0.2 * wafer.area, wafer.process)), rel=1e-6)


# --- harvesting


def simulated_share(spares: int, units: int, share: float, defects: float, clustering: float) -> float:
    """Share of dies that ship, drawn: a gamma density of defects, which fall onto units and elsewhere."""
    rng = np.random.default_rng(1)
    dies = 200_000
    density = rng.gamma(clustering, 1 / clustering, dies)
    fatal = rng.poisson(density * defects * (1 - share)) > 0
    broken = rng.binomial(units, -np.expm1(-density * defects * share / units))
    return float(np.mean(~fatal & (broken <= spares)))


@pytest.mark.parametrize(
    ("units", "spares", "share", "defects", "clustering"),
    [
        (144, 12, 0.6, 0.49, 10.0),  # H100
        (128, 20, 0.59, 0.74, 10.0),  # A100
        (80, 6, 0.6, 0.48, 10.0),  # a die of a B200
        (40, 2, 0.7, 0.13, 10.0),  # a compute die of an MI300X
        (64, 1, 0.5, 2.0, 2.0),
        (64, 3, 0.8, 4.0, 1.0),
        (8, 1, 0.8, 1.0, 10.0),
    ],
)
def test_harvested_dies_against_drawn_ones(units, spares, share, defects, clustering):
    made = die(
        units=units,
        spare_units=spares,
        units_share=share,
        area=500,
        process=process(defect_density=defects / 500, clustering=clustering),
    )
    drawn = simulated_share(spares, units, share, defects, clustering)
    # Three standard deviations of the drawing, units hit twice, and what the counts of units leave out.
    assert float(shipping_shares(made).full) == pytest.approx(
        drawn, abs=0.0035 + 0.1 * defects * share / units + 0.005 * defects * share
    )


@pytest.mark.parametrize("model", ["negative_binomial", "poisson", "murphy", "seeds"])
def test_no_spares_are_the_plain_yield_and_all_spares_that_of_the_rest(model):
    varied = process(yield_model=model)
    plain = float(die_yield(real(800), varied))
    none = die(units=100, spare_units=0, units_share=0.6, lower_value=0.5, process=varied)
    assert float(shipping_shares(none).full) == pytest.approx(plain, rel=1e-6)
    every = die(units=100, spare_units=99, units_share=0.6, process=varied)
    assert float(shipping_shares(every).full) == pytest.approx(float(die_yield(real(320), varied)), rel=1e-6)


@given(st.floats(0, 30), st.floats(0.1, 3), st.floats(0.01, 3), st.floats(0.6, 60))
def test_more_spares_ship_more_and_more_defects_less(spares, more, defects, clustering):
    def share(defects, spares):
        return float(repaired_share(*map(real, (defects, clustering, 100.0, spares))))

    assert share(defects, spares + more) >= share(defects, spares) - 1e-6
    assert share(defects * (1 + more), spares) <= share(defects, spares) + 5e-3
    assert 0 <= share(defects, spares) <= 1


def test_spare_channels_and_units_help_one_after_the_other():
    both = die(units=100, spare_units=4, units_share=0.5, channels=12, spare_channels=2, channels_share=0.1)
    units = die(units=100, spare_units=4, units_share=0.5)
    plain, some, more = (float(shipping_shares(d).full) for d in (die(), units, both))
    assert plain < some < more < float(die_yield(real(320), PROCESS)) * (1 + 1e-9)


def test_published_accelerators_waste_less_than_their_plain_yield():
    """An H100 ships with 132 of 144 units: its dies cost near the published $300, not $489."""
    package = dp.load_system("dgx-h100").accelerator.package
    gh100 = package.dies[0]
    plain = float(die_yield(gh100.area, gh100.process))
    shipped = float(shipping_shares(gh100).full)
    assert plain == pytest.approx(0.62, abs=0.01)
    assert 0.85 < shipped < 0.9
    assert 300 < float(known_good_price(gh100, package.packaging)) < 400


def test_a_lower_grade_bears_its_share_of_the_wafer(system):
    packaging = replace(system.accelerator.package.packaging, {"die_test": 0.0, "coverage": 1.0})
    graded = die(units=100, spare_units=2, units_share=0.6, lower_value=0.5)
    shares = shipping_shares(graded)
    assert float(shares.lower) > float(shares.full) + 0.001
    sold = float(shares.full + 0.5 * (shares.lower - shares.full))
    raw = float(raw_die_price(graded.area, graded.process))
    assert float(known_good_price(graded, packaging)) == pytest.approx(raw / sold, rel=1e-12)


def test_tests_cost_time_and_let_defects_through(system):
    packaging = replace(
        system.accelerator.package.packaging, {"die_test": 0.5, "tester_price": 0.05, "coverage": 0.9}
    )
    costs, works = die_costs(die(), packaging), float(die_yield(real(800), PROCESS))
    passed = works + 0.1 * (1 - works)
    assert float(costs.test) == pytest.approx(800 * 0.5 * 0.05, rel=1e-12)
    assert float(costs.working) == pytest.approx(works / passed, rel=1e-12)
    assert float(costs.defective) == pytest.approx(float(costs.raw + costs.test) * (1 / passed - 1), rel=1e-9)


# --- derivatives


HARVESTED = {"units": 132.5, "spare_units": 7.3, "units_share": 0.55, "channels": 12.0, "spare_channels": 1.4}
HARVESTED |= {
    "channels_share": 0.1,
    "lower_value": 0.4,
    "d2d_share": 0.07,
    "aspect": 1.3,
}


def test_every_number_of_a_die_has_a_gradient_that_matches_finite_differences(system):
    """In float64, choices included: weights over the models of a yield and over exposures."""
    packaging = replace(system.accelerator.package.packaging, {"coverage": 0.95, "die_test": 0.3})
    mixed = {"yield_model": {"negative_binomial": 0.4, "poisson": 0.3, "murphy": 0.2, "seeds": 0.1}}
    start = die(
        **HARVESTED, process=process(**mixed, wafer_price=9000.0), exposure={"reticle": 0.9, "wafer": 0.1}
    )

    def price(made):
        return known_good_price(made, packaging)

    gradient = jax.grad(price)(start)
    leaves, structure = jax.tree.flatten(start)
    for index, slopes in enumerate(jax.tree.leaves(gradient)):
        for position in np.ndindex(leaves[index].shape):
            step = 1e-6 * max(1.0, abs(float(leaves[index][position])))
            step = min(step, 0.1 * abs(float(leaves[index][position])) or step)
            ends = []
            for sign in (1, -1):
                moved = list(leaves)
                moved[index] = leaves[index].at[position].add(sign * step)
                ends.append(float(price(structure.unflatten(moved))))
            expected = (ends[0] - ends[1]) / (2 * step)
            assert float(slopes[position]) == pytest.approx(expected, rel=1e-5, abs=1e-5), (index, position)


def test_choices_mix_linearly():
    def share(weight):
        weights = jnp.stack([1 - weight, weight, 0.0, 0.0])
        return die_yield(real(800), replace(PROCESS, {"yield_model": weights}))

    assert float(jax.grad(share)(0.3)) == pytest.approx(float(share(1.0) - share(0.0)), rel=1e-9)

"""Packages beyond the published tool: memory stacks, stacked dies, bridges, tests, units, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import draw, in_other_units, outputs, with_leaves

import diffperf as dp
from diffperf.cost.die_cost import die_costs
from diffperf.cost.package_cost import (
    assembled_cost,
    carried_area,
    layer_area,
    package_cost,
    pieces_on_carrier,
)
from diffperf.cost.wafers import raw_die_price
from diffperf.cost.yields import die_yield
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import accelerator_of, design_of
from diffperf.hardware.package import Die
from diffperf.load import load, load_technology
from diffperf.quantity import numeric, replace
from diffperf.relax import Exact, Smooth
from diffperf.trees import stack_trees

CARRIERS = ("organic", "fan_out", "interposer", "bridge")
DIE = "accelerator.package.dies.compute"


def changed(system, **changes) -> Accelerator:
    """The accelerator of a system whose package, or whose only die (`die_...`), has other values."""
    paths = {
        f"{DIE}.{name[4:]}" if name.startswith("die_") else f"accelerator.package.{name}": value
        for name, value in changes.items()
    }
    return dp.override(system, paths).accelerator


@pytest.fixture(scope="module")
def mi300x():
    return load(Accelerator, "mi300x")


def test_memory_stacks_are_pieces_that_can_be_lost(system):
    """An A100: one die and five stacks; what six bonds and the substrate lose takes good dies, stacks and
    work with it."""
    accelerator = system.accelerator
    package = accelerator.package
    cost, layer = package_cost(accelerator, Exact()), package.packaging.interposer
    memory = float(accelerator.device_memory.capacity * package.memory_price)
    assert float(cost.memory) == pytest.approx(memory, rel=1e-12)
    bonds = float(layer.bonding_yield) ** 6 * float(package.packaging.organic_bonding_yield)
    works = float(die_costs(package.dies[0], package.packaging).working)
    stake = float(cost.dies + cost.defective_dies + cost.die_test + cost.assembly) + memory
    assert float(cost.wasted_pieces) == pytest.approx(stake * (1 / (bonds * works) - 1), rel=1e-12)
    area = float(package.dies[0].area + 5 * package.stack_area)
    assert float(carried_area(package)) == area
    assert float(layer_area(package, "interposer")) == pytest.approx(area * float(layer.area_factor))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_memory_on_the_board_is_no_piece_of_the_package(system, carrier):
    """It costs its price by the byte alone: no bonds, no work, no area, and no loss in assembly."""
    package = replace(system.accelerator.package, {"carrier": carrier, "memory_placement": "board"})
    none, price = jnp.zeros(()), 1000.0 * jnp.ones(())
    bare = assembled_cost(replace(package, {"memory_stacks": 0.0}), none, none, Exact())
    equipped = assembled_cost(replace(package, {"memory_stacks": 16.0}), price, none, Exact())
    assert float(equipped.total - bare.total) == pytest.approx(1000, rel=1e-9)
    assert float(equipped.memory) == 1000
    assert float(equipped.wasted_pieces) == float(bare.wasted_pieces)


def test_memory_on_the_dies_may_have_no_price(system):
    cost = package_cost(changed(system, memory_stacks=0, memory_price="0 USD/GB"), Exact())
    assert float(cost.memory) == 0
    assert np.isfinite(float(cost.total))


def test_designs_have_lpddr_on_the_board(system):
    """A technology's memory says where its stacks are, and its weights are differentiable."""
    technology = load_technology("n7-hbm2e", memory="lpddr5x")
    design = replace(design_of(system, technology), {"memory_stacks": 16.0})

    def made(placement):
        placed = replace(technology, {"memory.placement": placement})
        return chip(design, placed, system.accelerator), accelerator_of(design, placed, system.accelerator)

    on_board, accelerator = made("board")
    assert float(pieces_on_carrier(accelerator.package)) == 1
    assert float(on_board.carried_area) == float(on_board.die_area)
    cost = package_cost(accelerator, Exact())
    bonded = package_cost(made("package")[1], Exact())
    assert float(bonded.wasted_pieces - cost.wasted_pieces) > 400
    assert float(bonded.assembly - cost.assembly) == pytest.approx(16 * 10, rel=1e-6)
    slope = jax.grad(lambda share: package_cost(made(jnp.stack([share, 1 - share]))[1], Exact()).total)(0.5)
    assert float(slope) > 0


@pytest.mark.parametrize(
    ("dies", "substrate_area", "layers"),
    [(1, 200, 1), (1, 2000, 1), (2, 288, 1.5), (2, 290, 1.75), (4, 899, 1.75), (4, 901, 2), (8, 2000, 2)],
)
def test_substrates_of_several_pieces_have_more_layers(system, dies, substrate_area, layers):
    """Chiplet Actuary's thresholds of 17 mm × 17 mm and 30 mm × 30 mm."""
    rules = system.accelerator.package.packaging
    area = substrate_area / float(rules.package_area_factor) / dies
    made = changed(system, carrier="organic", die_count=dies, memory_stacks=0, die_area=f"{area} mm^2")
    assert float(package_cost(made, Exact()).package) == pytest.approx(
        substrate_area * float(rules.substrate_price) * layers, rel=1e-12
    )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_total_is_the_sum_of_its_parts(system, carrier):
    cost = package_cost(changed(system, carrier=carrier), Exact())
    parts = [float(value) for value in outputs(cost).values()]
    assert min(parts) >= 0
    assert float(cost.total) == pytest.approx(sum(parts), rel=1e-12)


def test_splitting_a_large_die_pays(system):
    """Four quarters yield better than one reticle-sized die where assembly loses little (Feng and Ma, DAC
    2022, §4)."""
    plain = {"carrier": "organic", "die_process.defect_density": "0.3 1/cm^2"}
    plain |= {"die_spare_units": 0, "die_spare_channels": 0}
    good_silicon = []
    for dies, area in ((1, 800), (4, 200)):
        cost = package_cost(changed(system, **plain, die_count=dies, die_area=f"{area} mm^2"), Exact())
        good_silicon.append(float(cost.dies + cost.defective_dies))
    assert good_silicon[1] < 0.5 * good_silicon[0]


def test_kinds_of_dies_have_processes_of_their_own(mi300x):
    """Dies of an MI300X cost what each kind costs on its process; only I/O dies lie on the carrier."""
    package = mi300x.package
    compute, io = package.dies
    cost = package_cost(mi300x, Exact())
    bumps = float(carried_area(package) * package.packaging.micro_bump_price)
    raw = sum(float(die.count * raw_die_price(die.area, die.process)) for die in (compute, io))
    assert float(cost.dies) == pytest.approx(raw + bumps, rel=1e-12)
    assert float(carried_area(package)) == 4 * 370 + 8 * 121


def test_stacked_dies_by_hand(mi300x):
    """Eight bonds on four I/O dies, two to a stack; a failed bond loses the stack."""
    package = mi300x.package
    bond, compute = package.packaging.hybrid_bonds, package.dies[0]
    costs = die_costs(stack_trees(package.dies), package.packaging)
    good = float(jnp.sum(costs.count * (costs.raw + costs.test + costs.defective)))
    bonds = float(8 * compute.area * bond.price)
    lost = (good + bonds) * (float(bond.bonding_yield) ** -2 - 1)
    assert float(package_cost(mi300x, Exact()).stacking) == pytest.approx(bonds + lost, rel=1e-12)
    flat = replace(mi300x, {"package.dies.compute.bond": "none"})
    assert float(package_cost(flat, Exact()).stacking) == 0


def test_bridges_by_hand(system):
    """Five bridges for six pieces, made of tested dies and embedded one by one; substrates of six pieces."""
    accelerator = changed(system, carrier="bridge")
    package = accelerator.package
    packaging, layer = package.packaging, package.packaging.bridge
    cost = package_cost(accelerator, Exact())
    carried = carried_area(package)
    area = layer.area_factor * carried / 5
    bridge = raw_die_price(area, layer.process) / die_yield(area, layer.process)
    substrate = 2 * packaging.package_area_factor * carried * packaging.substrate_price
    assert float(cost.package) == pytest.approx(float(5 * bridge + substrate), rel=1e-12)
    works = float(die_costs(package.dies[0], packaging).working)
    held = float(layer.bonding_yield) ** 6 * works * float(layer.embedding_yield) ** 5
    assert float(cost.defective_packages) == pytest.approx(float(cost.package) * (1 / held - 1), rel=1e-12)


def test_what_tests_miss_is_found_in_the_package(system):
    """Fewer rejected dies, more wasted packages: with many stacks, testing well pays."""
    packaging = "packaging.coverage"
    good, poor = (package_cost(changed(system, **{packaging: c}), Exact()) for c in (1.0, 0.5))
    assert float(poor.defective_dies) < float(good.defective_dies)
    assert float(poor.wasted_pieces) > float(good.wasted_pieces)
    assert float(poor.total) > float(good.total)


def test_assembly_grows_with_pieces_and_area(system):
    before = float(package_cost(system.accelerator, Exact()).assembly)
    packaging = system.accelerator.package.packaging
    more = float(package_cost(changed(system, memory_stacks=6), Exact()).assembly)
    stack_area = float(system.accelerator.package.stack_area)
    expected = float(packaging.placement_price + packaging.assembly_price * stack_area)
    assert more - before == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
@pytest.mark.parametrize("carrier", ["fan_out", "interposer"])
def test_dollars_do_not_depend_on_the_unit_of_length(system, relax, carrier):
    """On a layer; the layers of an organic substrate follow areas in mm² that are constants of the published
    model."""
    system = dp.override(system, {"accelerator.package.carrier": carrier})
    before = outputs(package_cost(system.accelerator, relax))
    after = outputs(package_cost(in_other_units(system, "mm", 10.0).accelerator, relax))
    np.testing.assert_allclose(list(after.values()), list(before.values()), rtol=1e-12)
    assert before.keys() == after.keys()


def test_organic_substrates_do_not_either_below_the_first_threshold(system):
    changes = {"carrier": "organic", "memory_stacks": 0, "dies.compute.area": "500 mm^2"}
    system = dp.override(system, {f"accelerator.package.{path}": value for path, value in changes.items()})
    before = outputs(package_cost(system.accelerator, Exact()))
    after = outputs(package_cost(in_other_units(system, "mm", 10.0).accelerator, Exact()))
    np.testing.assert_allclose(list(after.values()), list(before.values()), rtol=1e-12)


def test_cost_is_differentiable_in_every_choice(system):
    """Between two carriers lies a mixture, and its slope is the difference of the two."""

    def total(weight):
        mixed = replace(system, {"accelerator.package.carrier": jnp.stack([1 - weight, 0.0, weight, 0.0])})
        return package_cost(mixed.accelerator, Exact()).total

    slope = jax.grad(total)(0.3)
    assert float(slope) == pytest.approx(float(total(1.0) - total(0.0)), rel=1e-9)


@jax.jit
def total(package):
    return assembled_cost(package, 600.0 * jnp.ones(()), 400.0 * jnp.ones(()), Smooth(20.0)).total


slopes = jax.jit(jax.grad(total))


@pytest.mark.slow
def test_every_number_of_a_package_has_a_gradient_that_matches_finite_differences(mi300x):
    """With several kinds of dies, and all choices mixed."""
    package = replace(
        mi300x.package,
        {
            "carrier": {"organic": 0.4, "fan_out": 0.1, "interposer": 0.3, "bridge": 0.2},
            "order": {"chip_last": 0.7, "chip_first": 0.3},
            "packaging.bumps_per_design": {"off": 0.6, "on": 0.4},
            "dies.compute.bond": {"none": 0.3, "micro_bumps": 0.2, "hybrid_bonds": 0.5},
            "dies.compute.process.yield_model": {"negative_binomial": 0.5, "murphy": 0.5},
            "packaging.interposer.process.stitching_yield": 0.97,
            "dies.io.d2d_share": 0.1,
            "dies.io.aspect": 1.4,
        },
    )
    gradient = slopes(package)
    for path, (_, value) in numeric(package).items():
        step = 1e-6 * max(abs(float(value)), 1e-3)
        ends = [float(total(replace(package, {path: value + sign * step}))) for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * step)
        slope = float(numeric(gradient)[path][1])
        # Where the slope is too small for a difference of totals, its rounding decides.
        assert slope == pytest.approx(expected, rel=1e-5, abs=2e-12 * ends[0] / step), path


@pytest.mark.parametrize("carrier", CARRIERS)
def test_random_packages_are_finite_in_value_and_gradient(float32, carrier):
    """Anywhere in the documented ranges, in float32."""
    package = replace(load(Accelerator, "mi300x").package, {"carrier": carrier})
    paths = list(numeric(package))
    designs = jnp.asarray(draw(package, np.random.default_rng(5), 2000), jnp.float32)

    @jax.jit
    @jax.vmap
    def value_and_slopes(numbers):
        return jax.value_and_grad(lambda numbers: total(with_leaves(package, paths, numbers)))(numbers)

    values, gradients = value_and_slopes(designs)
    assert values.dtype == jnp.float32
    assert bool(jnp.all(jnp.isfinite(values)))
    assert bool(jnp.all(jnp.isfinite(gradients))), [
        path
        for path, column in zip(paths, gradients.T, strict=True)
        if not bool(jnp.all(jnp.isfinite(column)))
    ]


def test_a_die_of_a_package_is_a_die_of_its_own(mi300x):
    """Stacking kinds of dies on an axis changes nothing: both cost what each costs alone."""
    package = mi300x.package
    together = die_costs(stack_trees(package.dies), package.packaging)
    for index, die in enumerate(package.dies):
        assert isinstance(die, Die)
        alone = die_costs(die, package.packaging)
        for name in ("raw", "test", "defective", "working"):
            assert float(getattr(together, name)[index]) == pytest.approx(
                float(getattr(alone, name)), rel=1e-12
            )

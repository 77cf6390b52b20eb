"""What a compute unit is worth: the slope of the relaxation with a band is the secant of exact estimates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.hardware.designed_accelerator import design_of, paths_in_proportion_to_units, system_of
from diffperf.hardware.technology import Technology
from diffperf.load import load
from diffperf.quantity import locate, replace
from diffperf.relax import Exact, Relaxation, Smooth

UNITS = 108.0


def test_what_a_unit_brings_is_what_designs_scale_with_units():
    """The numbers of an accelerator that differ between designs of 108 and of 120 units at one clock."""
    technology, system = load(Technology, "n7-hbm2e"), dp.load_system("dgx-a100", 8)
    fewer, more = (
        system_of(replace(design_of(system, technology), {"compute_units": units}), technology, system)
        for units in (UNITS, 120.0)
    )
    for path in paths_in_proportion_to_units(system.accelerator):
        before, after = (float(locate(made.accelerator, path)[0]) for made in (fewer, more))
        assert after / before == pytest.approx(120 / UNITS, rel=1e-6), path


@pytest.fixture(scope="module")
def log_time(gpt, system):
    """log(s) of a step of GPT-3 on 64 A100, and its derivative by log(units), along the path of a design."""
    technology = load(Technology, "n7-hbm2e")
    design = design_of(system, technology)
    strategy = dp.load_strategy(
        {
            **{"tp": 8, "pp": 8, "virtual_stages": 3, "global_batch": 64, "precision": "fp16"},
            **{"recompute": "selective", "attention": "standard", "overlap_gradients": False},
        },
        n_devices=64,
    )

    def log_time(log_units, relax: Relaxation):
        made = system_of(replace(design, {"compute_units": jnp.exp(log_units)}), technology, system)
        return jnp.log(dp.training_step(gpt, made, strategy, relax).time)

    program = jax.jit(lambda x, relax: jax.jvp(lambda x: log_time(x, relax), (x,), (jnp.ones_like(x),)))
    return lambda units, relax: [float(each) for each in program(jnp.log(jnp.asarray(units)), relax)]


@pytest.mark.slow
def test_the_slope_over_a_band_is_the_secant(log_time):
    """Secants of −0.6 to −0.8 where derivatives on the plateaus of ceil are −0.2."""

    def secant(low: float, high: float) -> float:
        ends = [log_time(units, Exact())[0] for units in (low, high)]
        return (ends[1] - ends[0]) / np.log(high / low)

    exact, on_the_plateau = log_time(UNITS, Exact())
    assert on_the_plateau == pytest.approx(-0.17, abs=0.03)
    assert log_time(UNITS, Smooth(300.0))[1] == pytest.approx(on_the_plateau, abs=0.02)
    for band in (0.1, 0.15, 0.2):
        value, slope = log_time(UNITS, Smooth(300.0, band))
        assert slope == pytest.approx(secant(UNITS * (1 - band), UNITS * (1 + band)), abs=0.1), band
        assert -0.85 < slope < -0.55
        assert value == pytest.approx(exact, abs=0.005)


@pytest.mark.slow
def test_without_a_band_it_becomes_exact_again(log_time):
    assert log_time(UNITS, Smooth(1e5, 0.0)) == pytest.approx(log_time(UNITS, Exact()), abs=1e-3)

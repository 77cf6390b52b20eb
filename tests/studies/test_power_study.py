"""Tokens per joule against the clock: the optimum by its derivative, by a fine sweep and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import study_module

import diffperf as dp

study = study_module("power", "run")

pytestmark = pytest.mark.slow  # four programs with derivatives take ten seconds each to compile


@pytest.fixture(scope="module")
def sweeps():
    return study.clock_sweeps(list(study.SYSTEMS))


def systems():
    return {name: dp.load_system(file, n_devices=study.TP) for name, file in study.SYSTEMS.items()}


def test_the_derivative_is_zero_at_the_best_clock(sweeps):
    """Relative to tokens per joule over the clock; on both sides of the best clock it points to it."""
    for phase in study.PHASES:
        slope = jax.jit(lambda system, clock, phase=phase: study.efficiency_slope(phase, system, clock))
        for name, system in systems().items():
            best = next(s.best for s in sweeps if (s.accelerator, s.phase) == (name, phase))
            unit = best["tokens_per_joule"] / best["clock"]
            at = [float(slope(system, jnp.asarray(best["clock"] * share))) / unit for share in (0.9, 1, 1.1)]
            assert at[0] > 1e-3 > abs(at[1]) < 1e-7, (name, phase)
            assert at[2] < -1e-3, (name, phase)


def test_no_clock_of_the_sweep_is_better_than_the_best(sweeps):
    assert len(sweeps) == 4
    for sweep in sweeps:
        tokens = sweep.points["tokens_per_joule"]
        assert sweep.best["tokens_per_joule"] >= tokens.max()
        nearest = study.CLOCKS[np.argmax(tokens)]
        assert sweep.best["clock"] == pytest.approx(nearest, abs=study.CLOCKS[1] - study.CLOCKS[0])
        np.testing.assert_allclose(sweep.points["clock"], study.CLOCKS, rtol=1e-12)


def test_the_voltage_is_that_of_the_clocks_power(sweeps):
    """P ∝ f·V² ∝ f^x."""
    for sweep in sweeps:
        exponent = float(systems()[sweep.accelerator].accelerator.power_exponent)
        power = sweep.points["clock"] * sweep.points["voltage"] ** 2
        np.testing.assert_allclose(power, sweep.points["clock"] ** exponent, rtol=1e-12)


def test_tokens_per_joule_by_hand(sweeps):
    """Work that only computes takes static energy S / f and all other energy R·f^(x − 1), whose sum is least
    at f = (S / (R·(x − 1)))^(1/x). Prompts wait for memory and links for a small part of their time.
    """
    for sweep in (sweep for sweep in sweeps if sweep.phase == "prompts"):
        accelerator = systems()[sweep.accelerator].accelerator
        exponent, static = float(accelerator.power_exponent), float(accelerator.static_power)
        rest = float(sweep.points["watts"][-1]) - static
        pure = (static / ((exponent - 1) * rest)) ** (1 / exponent)
        assert pure == pytest.approx(sweep.best["clock"], rel=0.25), sweep.accelerator

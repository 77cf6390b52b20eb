"""Sobol indices against their analytical values and against SALib, on functions and on an estimate."""

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.points import outputs_at
from diffperf.explore.ranges import Range
from diffperf.explore.sobol import Design, Evaluated, SobolIndices, sobol_indices
from diffperf.quantity import locate
from diffperf.workload.configuration import Configuration

A, B = 7.0, 0.1  # of the Ishigami function


def ishigami(shares: np.ndarray) -> np.ndarray:
    x = np.pi * (2 * shares - 1)
    return np.sin(x[:, 0]) + A * np.sin(x[:, 1]) ** 2 + B * x[:, 2] ** 4 * np.sin(x[:, 0])


def ishigami_indices() -> tuple[np.ndarray, np.ndarray, float]:
    """First-order and total indices and the interaction of x₁ and x₃ (Saltelli et al., Global Sensitivity
    Analysis, 2008, section 4.6)."""
    own = 0.5 * (1 + B * np.pi**4 / 5) ** 2, A**2 / 8, 0.0
    together = B**2 * np.pi**8 * (1 / 18 - 1 / 50)
    variance = sum(own) + together
    shared = np.array([together, 0.0, together])
    return np.array(own) / variance, (own + shared) / variance, together / variance


def in_order_of_salib(values: Evaluated) -> np.ndarray:
    """SALib wants the values sample by sample: f(A), all f(AB), all f(BA), f(B)."""
    return np.stack([values.a, *values.ab, *values.ba, values.b], axis=1).ravel()


def test_ishigami_by_its_formulas():
    design = Design.of(3, 2**13, interactions=True)
    found = SobolIndices.of(design.split(ishigami(design.points)))
    first, total, together = ishigami_indices()
    np.testing.assert_allclose(found.first, first, atol=0.01)
    np.testing.assert_allclose(found.total, total, atol=0.01)
    assert found.interactions[0, 2] == pytest.approx(together, abs=0.02)
    assert abs(found.interactions[0, 1]) < 0.02
    # The intervals hold the true values, and are not much wider than needed.
    assert np.all(np.abs(found.first - first) <= 2 * found.first_interval + 1e-6)
    assert np.all(np.abs(found.total - total) <= 2 * found.total_interval + 1e-6)
    assert np.all(found.first_interval < 0.05)


def assert_as_salib(design: Design, values: Evaluated, inputs: int) -> None:
    analyze = pytest.importorskip("SALib.analyze.sobol").analyze
    problem = {"num_vars": inputs, "names": [f"x{i}" for i in range(inputs)], "bounds": [[0, 1]] * inputs}
    theirs = analyze(problem, in_order_of_salib(values), calc_second_order=True, seed=1)
    ours = SobolIndices.of(values)
    np.testing.assert_allclose(ours.first, theirs["S1"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.total, theirs["ST"], rtol=1e-9, atol=1e-12)
    pairs = np.triu_indices(inputs, 1)
    np.testing.assert_allclose(
        ours.interactions[pairs], np.asarray(theirs["S2"])[pairs], rtol=1e-8, atol=1e-12
    )
    # Half widths by bootstrap, of other resamples.
    np.testing.assert_allclose(ours.first_interval, theirs["S1_conf"], rtol=0.3, atol=1e-3)
    np.testing.assert_allclose(ours.total_interval, theirs["ST_conf"], rtol=0.3, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_ishigami_as_salib():
    design = Design.of(3, 1024, interactions=True)
    assert_as_salib(design, design.split(ishigami(design.points)), 3)


def test_a_function_that_does_not_vary_has_no_indices():
    design = Design.of(2, 64, interactions=True)
    found = SobolIndices.of(design.split(np.full(len(design.points), 3.0)))
    assert found.mean == 3
    assert not np.any([found.first, found.total, found.first_interval])


def test_without_interactions_fewer_points():
    assert len(Design.of(3, 64).points) == 64 * 5
    assert len(Design.of(3, 64, interactions=True).points) == 64 * 8
    design = Design.of(3, 64)
    assert SobolIndices.of(design.split(ishigami(design.points))).interactions.size == 0


@pytest.fixture(scope="module")
def decode():
    c = Configuration(
        dp.load_model("llama-2-7b"),
        dp.load_system("dgx-a100", n_devices=8),
        dp.load_strategy({"tp": 8, "global_batch": 16}, n_devices=8),
    )
    paths = {
        "system.accelerator.memory.hbm.bandwidth": (1e12, 4e12),
        "system.network.nvlink.bandwidth": (1e11, 9e11),
        "strategy.global_batch": (1, 64),
    }
    return c, [Range(path, locate(c, path)[1], *ends) for path, ends in paths.items()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_estimate_as_salib(decode):
    c, ranges = decode
    design = Design.of(len(ranges), 256, interactions=True)
    columns = {each.path: each.at(share) for each, share in zip(ranges, design.points.T, strict=True)}
    values = design.split(outputs_at(c, columns, "decode")["time"])
    assert_as_salib(design, values, len(ranges))
    found = sobol_indices(c, ranges, "decode", "time", 256, interactions=True)
    np.testing.assert_allclose(found.first, SobolIndices.of(values).first, rtol=1e-9)
    assert 0.8 < found.first.sum() < 1.2

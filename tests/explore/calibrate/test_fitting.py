"""The pieces of a calibration: residuals, their derivatives, the covariance, folds, spreads and coverage."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from calibration_cases import SYSTEM
from scipy.optimize import OptimizeResult

from diffperf.explore.calibrate.cross_validation import covered, folds, spread, spread_classes
from diffperf.explore.calibrate.fitting import FIRST_SCALE, Fit, Prior, covariance
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.calibrate.observations import Observation
from diffperf.explore.calibrate.residuals import Problem
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.table import Row, read_measurements
from diffperf.load import load_system
from diffperf.quantity import locate

NO_ROW = Row("gemm", 1, {}, {})  # of observations whose residuals a test makes up


def problem_of(table: Path, paths: list[str]) -> Problem:
    rows = read_measurements(table).rows
    seen = [
        Observation("gemm", row, "latency_s", f"{row['n']} {row['k']}", row["dtype"]) for row in rows[::7]
    ]
    return Problem(seen, paths, load_system(SYSTEM, calibration="none"))


def test_derivatives_equal_finite_differences(found, table):
    problem = problem_of(table, [one.path for one in found.parameters])
    logs = np.log([one.before for one in found.parameters]) - 0.01
    slopes, step = problem.at(logs)[1], 1e-6
    for index in range(len(logs)):
        shift = step * np.eye(len(logs))[index]
        difference = (problem.at(logs + shift)[0] - problem.at(logs - shift)[0]) / (2 * step)
        assert slopes[:, index] == pytest.approx(difference, abs=1e-6)


def runs(*changes: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Residuals and derivatives of a published step: driven by a framework, and told by a column."""
    row = read_measurements(Path(__file__).parents[2] / "data" / "korthikanti_training.csv").rows[0]
    system = Platforms().system("a100-sxm4-80gb")
    paths = ["stack.kernel_overhead", "accelerator.memory.hbm.efficiency"]
    assert str(system.stack.name) == "megatron-lm"
    driven = [
        dataclasses.replace(row, values=row.values | {"framework": framework}) for framework, _ in changes
    ]
    seen = [
        Observation("training", row, column, "", "") for row, (_, column) in zip(driven, changes, strict=True)
    ]
    return Problem(seen, paths, system).at(np.log([float(locate(system, path)[0]) for path in paths]))


@pytest.mark.slow
def test_another_stack_keeps_its_own_values():
    """A parameter of the system's stack moves the runs that the stack drove, and no others; all move with
    the hardware.
    """
    _, slopes = runs(
        *((framework, "step_time_s") for framework in ("Megatron-LM", "MaxText", "Megatron-LM v2"))
    )
    assert (slopes[:, 0] > 0).tolist() == [True, False, True]
    assert (slopes[:, 1] < 0).all()


def test_a_value_of_a_stack_holds_in_training_and_inference():
    """Wherever a row's system has the stack; a system with the stack in one phase alone has it there."""
    platforms, path = Platforms(), "stack.kernel_overhead"
    vllm = platforms.system("h100-nvl", platforms.software("framework", "vLLM", "h100-nvl"))
    systems = [vllm, dataclasses.replace(vllm, stack=platforms.system("h100-nvl").stack)]
    where, applies = Problem([], [path], vllm)._places(systems)
    assert (where.paths, where.parameter) == (("inference_stack.kernel_overhead", path), (0, 0))
    assert applies.tolist() == [[True, True], [True, False]]


@pytest.mark.slow
def test_rates_have_residuals_in_the_sense_of_times():
    columns = ("step_time_s", "tokens_per_s_per_device", "step_time_s")
    residuals, slopes = runs(*(("Megatron-LM", column) for column in columns))
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-6)
    assert residuals[1] == pytest.approx(residuals[0], abs=0.02)  # the source rounds both


class Line:
    """A linear problem: `count` residuals in families of `alike` equal ones, one parameter."""

    def __init__(self, count: int, alike: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.quantities = np.full(count, "gemm")
        self.observations = [Observation("gemm", NO_ROW, "", str(i // alike), "") for i in range(count)]
        self.residuals = 0.1 * np.repeat(rng.standard_normal(count // alike), alike)
        self.slopes = np.ones((count, 1))

    def at(self, logs):
        return self.residuals, self.slopes


def test_covariance_of_independent_rows_is_that_of_a_mean():
    """Under the robust loss a mean is some 10 to 25 % less sure than under least squares."""
    prior = Prior(np.zeros(1), np.full(1, 1e3), np.full(1, -9.0), np.full(1, 9.0))
    variance = covariance(Line(4000, 1), prior, Fit(np.zeros(1), {"gemm": 0.1}, OptimizeResult()))[0, 0]
    assert 1.05 < variance / (0.1**2 / 4000) < 1.35


def test_rows_of_a_family_count_as_one():
    prior = Prior(np.zeros(1), np.full(1, 1e3), np.full(1, -9.0), np.full(1, 9.0))
    alone, together = (
        covariance(Line(n, a), prior, Fit(np.zeros(1), {"gemm": 0.1}, OptimizeResult()))[0, 0]
        for n, a in ((400, 1), (4000, 10))
    )
    assert together == pytest.approx(alone, rel=0.1)


def test_the_prior_is_what_is_known_without_rows():
    prior = Prior(np.zeros(1), np.full(1, 0.3), np.full(1, -9.0), np.full(1, 9.0))
    line = Line(10, 1)
    line.slopes[:] = 0.0
    assert covariance(line, prior, Fit(np.zeros(1), {"gemm": FIRST_SCALE}, OptimizeResult()))[
        0, 0
    ] == pytest.approx(0.3**2)


def observations(*families: tuple[str, int]) -> list[Observation]:
    return [Observation("gemm", NO_ROW, "", name, "bf16") for name, rows in families for _ in range(rows)]


def test_folds_keep_families_whole_and_are_balanced():
    seen = observations(*((f"family-{i}", 1 + i % 7) for i in range(60)))
    fold_of = folds(seen, 5)
    for family in {one.family for one in seen}:
        assert len({int(fold) for one, fold in zip(seen, fold_of, strict=True) if one.family == family}) == 1
    sizes = np.bincount(fold_of)
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 7
    assert folds(seen[::-1], 5)[::-1].tolist() == fold_of.tolist()


def test_spread_is_the_90_percent_point():
    residuals = np.random.default_rng(0).standard_normal(20_000)
    assert spread(residuals, np.zeros(20_000)) == pytest.approx(1.0, rel=0.02)
    assert spread(residuals, np.full(20_000, 0.75)) == pytest.approx(0.5, rel=0.06)
    assert spread(residuals, np.full(20_000, 4.0)) == 0.0
    heavy = np.random.default_rng(0).standard_t(2, 20_000)
    assert np.mean(np.abs(heavy) <= Z90 * spread(heavy, np.zeros(20_000))) == pytest.approx(0.9, abs=0.001)


def test_coverage_is_measured_with_the_spread_of_the_other_folds():
    """A fold twice as noisy as the others is not covered by what they tell; alone, nothing tells."""
    residuals = np.concatenate(
        [np.random.default_rng(0).standard_normal(5000), 3 * np.random.default_rng(1).standard_normal(1000)]
    )
    fold_of, classes = np.repeat([0, 1, 2, 3, 4, 5], 1000), np.full(6000, "gemm")
    inside = covered(classes, residuals, np.zeros(6000), fold_of)
    assert inside[fold_of == 5].mean() < 0.5
    assert inside[fold_of == 0].mean() > 0.9
    assert np.isnan(covered(classes[:1000], residuals[:1000], np.zeros(1000), fold_of[:1000])).all()


def test_number_formats_have_spreads_of_their_own_where_rows_tell_them():
    seen = [
        Observation("gemm", NO_ROW, "", "", part)
        for part, rows in (("bf16", 60), ("fp8", 60), ("fp4", 3))
        for _ in range(rows)
    ]
    seen += [
        Observation("collectives", NO_ROW, "", "", part) for part in ("nvlink", "pcie") for _ in range(60)
    ]
    classes = spread_classes(seen)
    assert list(dict.fromkeys(classes)) == ["gemm bf16", "gemm fp8", "gemm", "collectives"]

"""Calibration against measurements made up by the estimator itself, whose parameters and noise are therefore known."""

import csv
import datetime
import tomllib
from pathlib import Path

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.calibrate import fitting
from diffperf.explore.calibrate.calibrate import Calibrated, calibrate
from diffperf.explore.calibrate.calibration_file import calibration_text, quantity_text, write_calibration
from diffperf.explore.calibrate.cross_validation import covered, folds, spread, spread_classes
from diffperf.explore.calibrate.fitting import FIRST_SCALE, Fit, Observation, Prior, Problem, covariance
from diffperf.explore.calibrate.interval import Z90
from diffperf.explore.measured.platforms import calibrations, system_of
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import Row, read_measurements
from diffperf.load import load_system
from diffperf.load.calibration import Calibration
from diffperf.quantity import Quantity, locate, numeric

HARDWARE, SYSTEM = "h100-sxm5-80gb", "dgx-h100"
SHAPES = [(n, k) for n in (128, 512, 1536, 4096, 6144, 28672) for k in (256, 1024, 4096, 5120, 16384)]
NOISE = 0.04


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def gemms(formats: tuple[str, ...] = ("bf16", "fp8")) -> list[dict[str, object]]:
    cells = [(dtype, m, n, k) for dtype in formats for n, k in SHAPES for m in (1, 16, 300, 2048, 8192)]
    names = ("dtype", "m", "n", "k")
    return [
        {"id": i, "hardware": HARDWARE, **dict(zip(names, cell, strict=True)), "latency_s": 1}
        for i, cell in enumerate(cells)
    ]


def truth(seed: int = 1) -> dict[str, float]:
    """Values of the calibratable parameters drawn from their priors, within their ranges."""
    rng, values = np.random.default_rng(seed), {}
    for path, (declared, value) in numeric(load_system(SYSTEM, calibration="none")).items():
        if declared.calibratable:
            drawn = float(value) * np.exp(declared.prior_spread * rng.standard_normal())
            values[path] = float(np.clip(drawn, declared.bounds[0] * 1.1, declared.bounds[1] * 0.9))
    return values


def made_of(values: dict[str, float]) -> Calibration:
    """A calibration that says these values for certain."""
    system = load_system(SYSTEM, calibration="none")
    texts = {path: f"{value!r} {locate(system, path)[1].unit}".strip() for path, value in values.items()}
    texts = {path: float(text) if " " not in text else text for path, text in texts.items()}
    return Calibration(
        "true",
        "true.toml",
        HARDWARE,
        SYSTEM,
        {},
        texts,
        tuple(values),
        np.zeros((len(values),) * 2),
        {"gemm": 0.0},
    )


def measured(
    folder: Path, rows: list[dict[str, object]], values: dict[str, float], noise: np.ndarray | float
) -> Path:
    """A table of what the estimator says with these values, times e^noise."""
    blank = write(folder / "gemm.csv", rows)
    with calibrations({HARDWARE: made_of(values)}):
        found = predict("gemm", read_measurements(blank).rows)
    times = np.array([one.values["latency_s"] for one in found]) * np.exp(noise)
    return write(
        blank, [row | {"latency_s": repr(float(time))} for row, time in zip(rows, times, strict=True)]
    )


def noise(count: int, seed: int = 2) -> np.ndarray:
    return NOISE * np.random.default_rng(seed).standard_normal(count)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    rows = gemms()
    return measured(tmp_path_factory.mktemp("clean"), rows, truth(), noise(len(rows)))


@pytest.fixture(scope="module")
def found(table) -> Calibrated:
    return calibrate([table])


# --- what a fit finds


def test_parameters_are_recovered_within_their_uncertainty(found):
    true = truth()
    off = np.array([np.log(one.after / true[one.path]) / one.spread for one in found.parameters])
    assert len(off) >= 5
    assert np.abs(off).max() < 3.5
    assert np.mean(off**2) < 2.5
    # What GEMMs depend on most is known well, and much better than before.
    assert min(one.spread for one in found.parameters) < 0.02
    assert all(one.spread <= 1.001 * one.prior_spread for one in found.parameters)


def test_parameters_without_effect_are_left_out(found):
    assert {one.path for one in found.parameters}.isdisjoint(found.without_effect)
    assert "accelerator.memory.smem.efficiency" in found.without_effect
    assert any(".int8." in path for path in found.without_effect)
    assert {f"accelerator.matrix.{name}.efficiency" for name in ("bf16", "fp8")} <= {
        one.path for one in found.parameters
    }


def test_errors_before_after_and_cross_validated(found):
    group = found.groups["gemm"]
    noise_alone = 0.6745 * NOISE
    assert group.after.median_ape == pytest.approx(noise_alone, rel=0.2)
    assert group.before.median_ape > 2 * group.after.median_ape
    assert group.after.mean_ape <= group.cross_validated.mean_ape < 1.2 * group.after.mean_ape
    assert set(found.groups) == {"gemm", "gemm bf16", "gemm fp8"}
    assert group.after.n == sum(found.groups[name].after.n for name in ("gemm bf16", "gemm fp8"))


def test_intervals_cover_what_they_say(found, tmp_path):
    """Rows left out, and measurements of shapes and with noise that no fit has seen."""
    assert found.spread["gemm"] == pytest.approx(NOISE, rel=0.15)
    assert 0.85 <= found.groups["gemm"].coverage <= 0.95
    rows = [row | {"m": row["m"] * 3 + 5, "n": row["n"] + 192} for row in gemms()]
    fresh = measured(tmp_path, rows, truth(), noise(len(rows), seed=3))
    with calibrations({HARDWARE: made_of({one.path: one.after for one in found.parameters})}):
        predicted = predict("gemm", read_measurements(fresh).rows)
    with fresh.open(encoding="utf-8") as file:
        times = [float(row["latency_s"]) for row in csv.DictReader(file)]
    off = np.log([one.values["latency_s"] for one in predicted]) - np.log(times)
    inside = np.abs(off) <= Z90 * found.spread["gemm"]
    assert 0.85 <= inside.mean() <= 0.95


def test_outliers_do_not_move_the_fit(found, tmp_path):
    """One row in ten takes up to five times as long as it should: least squares would follow them."""
    rows = gemms()
    shifts, rng = noise(len(rows)), np.random.default_rng(4)
    wrong = rng.random(len(rows)) < 0.1
    shifts[wrong] += rng.uniform(0.5, 1.6, wrong.sum())
    robust = calibrate([measured(tmp_path, rows, truth(), shifts)])
    clean = {one.path: one for one in found.parameters}
    for one in robust.parameters:
        assert np.log(one.after / truth()[one.path]) == pytest.approx(
            0, abs=4 * np.hypot(one.spread, clean[one.path].spread)
        )
    assert robust.groups["gemm"].after.median_ape < 1.5 * found.groups["gemm"].after.median_ape
    assert np.median(robust.after[~wrong]) == pytest.approx(0, abs=0.01)


def test_tables_are_fitted_jointly(table, tmp_path):
    """What one table does not tell of, the other does."""
    core = {
        "phase": "prefill",
        "batch": 4,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "causal": "true",
        "kernel": "",
    }
    rows = [
        core
        | {"id": i, "hardware": HARDWARE, "q_len": 2**i, "kv_len": 2**i, "dtype": "bf16", "kv_dtype": "bf16"}
        for i in range(8, 14)
    ]
    rows = [row | {"latency_s": 1e-9 * 4 ** row["id"]} for row in rows]
    alone, joint = (
        calibrate(files, folds=2) for files in ([table], [table, write(tmp_path / "attention.csv", rows)])
    )
    assert {source.kind: source.rows for source in joint.sources} == {"gemm": 300, "attention": 6}
    more = {one.path for one in joint.parameters} - {one.path for one in alone.parameters}
    assert more
    assert more <= set(alone.without_effect)
    assert all("attention" in path for path in more)


def test_a_narrow_prior_holds_its_parameter(table):
    (free,) = calibrate([table], paths=["hbm.efficiency"], folds=2).parameters
    (held,) = calibrate([table], paths=["hbm.efficiency"], prior_spread=1e-4, folds=2).parameters
    assert abs(free.surprise) > 0.1
    assert held.after == pytest.approx(held.before, rel=2e-3)


# --- the pieces


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
    row = read_measurements(Path(__file__).parents[1] / "data" / "korthikanti_training.csv").rows[0]
    system, paths = (
        system_of("a100-sxm4-80gb"),
        ["stack.kernel_overhead", "accelerator.memory.hbm.efficiency"],
    )
    assert str(system.stack.name) == "megatron-lm"
    driven = [Row(row.line, row.cells, row.values | {"framework": framework}) for framework, _ in changes]
    seen = [
        Observation("training", row, column, "", "") for row, (_, column) in zip(driven, changes, strict=True)
    ]
    return Problem(seen, paths, system).at(np.log([float(locate(system, path)[0]) for path in paths]))


def test_another_stack_keeps_its_own_values():
    """A parameter of the system's stack moves the runs that the stack drove, and no others; all move with the hardware."""
    _, slopes = runs(
        *((framework, "step_time_s") for framework in ("Megatron-LM", "MaxText", "Megatron-LM v2"))
    )
    assert (slopes[:, 0] > 0).tolist() == [True, False, True]
    assert (slopes[:, 1] < 0).all()


def test_rates_have_residuals_in_the_sense_of_times():
    columns = ("step_time_s", "tokens_per_s_per_device", "step_time_s")
    residuals, slopes = runs(*(("Megatron-LM", column) for column in columns))
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-6)
    assert residuals[1] == pytest.approx(residuals[0], abs=0.02)  # the source rounds both


class Line:
    """A linear problem: `count` residuals in families of `alike` equal ones, one parameter."""

    def __init__(self, count: int, alike: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.kinds = np.full(count, "gemm")
        self.observations = [Observation("gemm", None, "", str(i // alike), "") for i in range(count)]
        self.residuals = 0.1 * np.repeat(rng.standard_normal(count // alike), alike)
        self.slopes = np.ones((count, 1))

    def at(self, logs):
        return self.residuals, self.slopes


def test_covariance_of_independent_rows_is_that_of_a_mean():
    """Under the robust loss a mean is some 10 to 25 % less sure than under least squares."""
    prior = Prior(np.zeros(1), np.full(1, 1e3), np.full(1, -9.0), np.full(1, 9.0))
    variance = covariance(Line(4000, 1), prior, Fit(np.zeros(1), {"gemm": 0.1}, None))[0, 0]
    assert 1.05 < variance / (0.1**2 / 4000) < 1.35


def test_rows_of_a_family_count_as_one():
    prior = Prior(np.zeros(1), np.full(1, 1e3), np.full(1, -9.0), np.full(1, 9.0))
    alone, together = (
        covariance(Line(n, a), prior, Fit(np.zeros(1), {"gemm": 0.1}, None))[0, 0]
        for n, a in ((400, 1), (4000, 10))
    )
    assert together == pytest.approx(alone, rel=0.1)


def test_the_prior_is_what_is_known_without_rows():
    prior = Prior(np.zeros(1), np.full(1, 0.3), np.full(1, -9.0), np.full(1, 9.0))
    line = Line(10, 1)
    line.slopes[:] = 0.0
    assert covariance(line, prior, Fit(np.zeros(1), {"gemm": FIRST_SCALE}, None))[0, 0] == pytest.approx(
        0.3**2
    )


def observations(*families: tuple[str, int]) -> list[Observation]:
    return [Observation("gemm", None, "", name, "bf16") for name, rows in families for _ in range(rows)]


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
        Observation("gemm", None, "", "", part)
        for part, rows in (("bf16", 60), ("fp8", 60), ("fp4", 3))
        for _ in range(rows)
    ]
    seen += [Observation("collectives", None, "", "", part) for part in ("nvlink", "pcie") for _ in range(60)]
    classes = spread_classes(seen)
    assert list(dict.fromkeys(classes)) == ["gemm bf16", "gemm fp8", "gemm", "collectives"]


# --- what cannot be fitted


def test_several_accelerators_ask_which(tmp_path):
    rows = [row | {"hardware": name} for name in ("a100-sxm4-80gb", HARDWARE) for row in gemms()[:3]]
    table = write(tmp_path / "gemm.csv", [row | {"id": i} for i, row in enumerate(rows)])
    with pytest.raises(
        dp.ConfigError, match=r"--hardware: found rows of 2 accelerators.*a100-sxm4-80gb, h100-sxm5-80gb"
    ):
        calibrate([table])
    with pytest.raises(dp.ConfigError, match='did you mean "h100-sxm5-80gb"'):
        calibrate([table], hardware="h100-sxm5")
    with pytest.raises(
        dp.ConfigError, match='found "mi300x"; expected hardware of a row that can be read; known: a100'
    ):
        calibrate([table], hardware="mi300x")


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["hbm.eficiency"], "hbm.efficiency"),
        (["model.hidden"], '"model"'),
        (["compute_units"], "an efficiency, a rate or a time"),
        (["system.accelerator.memory"], "a group of inputs"),
        (["smem.efficiency"], "none that a row depends on"),
    ],
)
def test_what_is_no_parameter(table, paths, words):
    with pytest.raises(dp.ConfigError, match=words):
        calibrate([table], paths=paths)


def test_fewer_rows_than_parameters(tmp_path):
    table = write(tmp_path / "gemm.csv", [row | {"latency_s": 1e-4} for row in gemms()[:2]])
    with pytest.raises(dp.ConfigError, match="2 usable rows; expected at least one for each of"):
        calibrate([table])


def test_no_row_left_says_why(tmp_path):
    """Rows that cannot be read, of every hardware asked for, and rows that can, but not evaluated; of all tables together."""
    good = gemms()[0]
    bad = write(tmp_path / "bad.csv", [good | {"latency_s": "5 us"}, good | {"id": 1, "hardware": "abacus"}])
    unfit = write(tmp_path / "unfit.csv", [good | {"id": i, "dtype": "fp6"} for i in range(3)])
    reasons = r"1 × latency_s: a unit in the cell, 1 × hardware: unknown hardware"
    for hardware in (None, HARDWARE):
        with pytest.raises(dp.ConfigError, match=rf"bad.csv: found no row left to fit \({reasons}\)"):
            calibrate([bad], hardware)
    with pytest.raises(
        dp.ConfigError,
        match=rf"bad.csv, .*unfit.csv: found no row left to fit \(3 × precision fp6, {reasons}\)",
    ):
        calibrate([bad, unfit], paths=["hbm.efficiency"])


def test_a_table_that_is_read_is_as_good_as_its_file(table):
    by_file, by_table = (
        calibrate([one], paths=["hbm.efficiency"], folds=2) for one in (table, read_measurements(table))
    )
    assert by_table.sources == by_file.sources
    assert by_table.parameters == by_file.parameters


def test_bad_rows_are_told_and_the_rest_is_used(table, tmp_path):
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    rows[3]["latency_s"], rows[4]["latency_s"], rows[5]["dtype"] = "5 us", "", "fp6"
    found = calibrate([write(tmp_path / "gemm.csv", rows)], paths=["hbm.efficiency"], folds=2)
    assert [fault.split(": ")[0] for fault in found.faults] == [f"{tmp_path / 'gemm.csv'} line 5 (3)"]
    assert found.sources[0].rows == 297
    assert found.sources[0].skipped == {
        "latency_s: a unit in the cell": 1,
        "nothing measured": 1,
        "precision fp6": 1,
    }


def test_a_fit_that_does_not_converge(table, monkeypatch):
    monkeypatch.setattr(fitting, "MAX_STEPS", 1)
    with pytest.raises(dp.ConfigError, match="fit: found no convergence in 1 steps"):
        calibrate([table])


def test_parameters_that_no_row_tells_apart(table):
    """Only their product matters, and a prior this wide says nothing of either."""
    paths = ["hbm.efficiency", "hbm.bandwidth"]
    with pytest.raises(dp.ConfigError, match="fit: found a singular Hessian"):
        calibrate([table], paths=paths, prior_spread=1e6)
    assert len(calibrate([table], paths=paths, folds=2).parameters) == 2


# --- the config


def test_the_config_holds_what_was_found(found, tmp_path):
    written = write_calibration(found, tmp_path / "mine.toml")
    assert (written.name, written.hardware, written.system) == ("mine", HARDWARE, SYSTEM)
    system = load_system(SYSTEM, calibration=str(tmp_path / "mine.toml"))
    for one in found.parameters:
        assert float(locate(system, one.path)[0]) == pytest.approx(one.after, rel=6e-4)
    assert written.covariance == pytest.approx(found.covariance, rel=1e-5)
    assert written.spread == pytest.approx(found.spread, rel=1e-3)
    table = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))
    assert table["files"][0]["rows"] == 300
    assert len(table["files"][0]["sha256"]) == 64
    assert table["errors"]["gemm"]["cross_validated"]["median"] == pytest.approx(
        found.groups["gemm"].cross_validated.median_ape, rel=1e-3
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.toml"]


def test_the_config_is_the_same_for_the_same_table(found, table):
    day = datetime.date(2026, 1, 2)
    again = calibrate([table])
    assert calibration_text(found, day) == calibration_text(again, day)
    other = calibration_text(found, datetime.date(2026, 1, 3))
    assert [line for line in other.splitlines() if line not in calibration_text(found, day).splitlines()] == [
        "date = 2026-01-03"
    ]


def test_an_interrupted_write_leaves_what_was_there(found, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("before")

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_calibration(found, tmp_path / "mine.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    assert (tmp_path / "mine.toml").read_text() == "before"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.712345, "", "0.7123"),
        (4.23456e-6, "s", '"4.235 µs"'),
        (3.35e12, "byte/s", '"3.35 TB/s"'),
        (1.0, "", "1"),
        (123456.7, "", "1.235e+05"),
        (1.23456e-11, "J/byte", '"12.35 pJ/B"'),
        (2e5, "s", '"200000.0 s"'),
    ],
)
def test_values_are_written_with_four_digits_and_read_back(value, unit, text):
    declared = Quantity(unit, "", (1e-30, 1e30), True, False, "input")
    assert quantity_text(value, declared) == text
    assert dp.load.checked(declared, tomllib.loads(f"x = {text}")["x"], "", "") == pytest.approx(
        value, rel=1e-3
    )

"""A software stack fitted to rows of several accelerators, and the config that the fit writes."""

import csv
import dataclasses
import datetime
from pathlib import Path

import pytest
from calibration_cases import write

import diffperf as dp
from diffperf.explore.calibrate.calibrate import calibrate_stack
from diffperf.explore.calibrate.stack_file import stack_text, write_stack
from diffperf.explore.measured.conditions import where
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import read_measurements
from diffperf.explore.measured.validate import validate
from diffperf.load import load
from diffperf.software.stack import Stack

PUBLISHED = Path(__file__).parents[2] / "data" / "nvidia_llama2_inference.csv"
STACK = "tensorrt-llm-nemo"
PARAMETERS = ["kernel_overhead", "collective_overhead"]
TRUTH = {"kernel_overhead": 4e-6, "collective_overhead": 5e-6}  # s


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """The published runs on A100 and H100, with the latencies that a stack of other overheads would give."""
    folder = tmp_path_factory.mktemp("stack")
    text = (dp.load.config_root() / "stacks" / f"{STACK}.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.split(" = ")[0] not in (*TRUTH, "measured")]
    lines += [f'{key} = "{value} s"' for key, value in TRUTH.items()]
    (folder / "true.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    by_true = write(folder / "by-true.csv", [row | {"framework": "true.toml"} for row in rows])
    read = read_measurements(by_true)
    times = [one.values["latency_s"] for one in predict("inference", read.rows, read.platforms)]
    return write(
        folder / "made.csv", [row | {"latency_s": repr(t)} for row, t in zip(rows, times, strict=True)]
    )


@pytest.fixture(scope="module")
def fitted(table):
    return calibrate_stack([table], STACK, PARAMETERS, prior_spread=5.0, leave_out="hardware")


@pytest.mark.slow
def test_the_stack_is_recovered_from_rows_of_all_hardware(fitted):
    assert {one.path: one.after for one in fitted.parameters} == pytest.approx(
        {f"stack.{name}": value for name, value in TRUTH.items()}, rel=1e-3
    )
    assert fitted.hardware == "a100-sxm4-80gb, h100-sxm5-80gb"
    (errors,) = fitted.groups.values()
    assert errors.after.n == 22
    # Each half was predicted from the other: all runs on H100 by a fit to those on A100, and the reverse.
    assert errors.cross_validated.median_ape < 1e-3 < errors.before.median_ape


@pytest.mark.slow
def test_the_config_predicts_what_the_fit_predicts(fitted, table, tmp_path):
    write_stack(fitted, STACK, tmp_path / "mine.toml")
    own, shipped = load(Stack, str(tmp_path / "mine.toml")), load(Stack, STACK)
    assert float(own.kernel_overhead) == pytest.approx(TRUTH["kernel_overhead"], rel=1e-3)
    assert float(own.grouped_heads) == float(shipped.grouped_heads)
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row | {"framework": "mine.toml"} for row in csv.DictReader(file)]
    errors = validate(write(tmp_path / "rows.csv", rows)).summary().metrics["latency_s"]
    assert errors.median_ape == pytest.approx(fitted.groups["inference"].after.median_ape, abs=1e-3)


def test_what_the_config_keeps_and_says(fitted):
    text = stack_text(fitted, STACK, datetime.date(2026, 1, 2))
    assert "(2026-01-02)" in text
    assert 'collectives = "nccl"            # estimate: rings explain' in text
    assert "made.csv: 22 inference rows" in text
    assert "calibrated: ± " in text
    assert "measured" not in text.splitlines()[-1]


def test_values_that_were_not_fitted_keep_their_source(fitted):
    """The shipped file says "likewise" after the value that is fitted: of that value's own source."""
    text = stack_text(fitted, STACK, datetime.date(2026, 1, 2))
    (kept,) = (line for line in text.splitlines() if line.startswith("engine_step"))
    shipped = (dp.load.config_root() / "stacks" / f"{STACK}.toml").read_text(encoding="utf-8")
    assert "likewise" in shipped
    assert "likewise" not in text
    assert kept.endswith("# calibrated with kernel_overhead, see above")
    (replaced,) = (line for line in text.splitlines() if line.startswith("kernel_overhead"))
    assert "before: 4.2 µs, calibrated on NVIDIA's published Llama-2 latencies" in replaced


@pytest.mark.slow
def test_rows_of_other_software_are_counted(table):
    read = read_measurements(table)
    other = dataclasses.replace(read.rows[0], values=read.rows[0].values | {"framework": "vLLM"})
    both = dataclasses.replace(read, rows=[other, *read.rows[1:]])
    (source,) = calibrate_stack([both], STACK, PARAMETERS[:1], folds=2).sources
    assert (source.rows, source.skipped) == (21, {"other software": 1})


@pytest.mark.parametrize(
    ("stack", "parameters", "options", "message"),
    [
        (
            "vllm",
            PARAMETERS,
            {},
            r'--stack: found "vllm", which drove no row.*the rows name tensorrt-llm-nemo',
        ),
        (STACK, [], {}, r"--parameters: found none.*name some of kernel_overhead"),
        (STACK, ["kernel_overhaed"], {}, r"--parameters.*kernel_overhead"),
        (STACK, ["collectives.startup"], {}, r"a parameter of the stack itself"),
        (STACK, PARAMETERS, {"leave_out": "modle"}, r'--leave-out: found "modle".*model'),
    ],
)
def test_what_cannot_be_fitted(table, stack, parameters, options, message):
    with pytest.raises(dp.ConfigError, match=message):
        calibrate_stack([table], stack, parameters, **options)


def test_a_column_of_one_text_cannot_be_left_out(table):
    a100 = where(read_measurements(table), ["hardware=a100*"])
    with pytest.raises(dp.ConfigError, match=r'--leave-out: found one text in the column "hardware"'):
        calibrate_stack([a100], STACK, PARAMETERS, leave_out="hardware")

"""A user's own accelerators, systems and stacks: named in tables and options, validated and calibrated."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measured_cases import all_reduce, gemm, write

import diffperf as dp
from diffperf.cli import cli
from diffperf.explore.measured.platforms import platforms_with
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import messages, read_measurements
from diffperf.explore.measured.validate import validate
from diffperf.load import config_root, load_system

TRUE_EFFICIENCY = 0.5  # of the memory of the user's chip, whose config says another


@pytest.fixture
def folder(tmp_path) -> Path:
    """The files of a chip like an H100 with half its bandwidth, of a cluster of it, and of its software."""
    shipped = config_root()
    chip = (shipped / "accelerators" / "h100-sxm5-80gb.toml").read_text(encoding="utf-8")
    (tmp_path / "my-chip.toml").write_text(chip.replace('"3.35 TB/s"', '"1.675 TB/s"'), encoding="utf-8")
    cluster = (shipped / "systems" / "h100-pcie-pairs.toml").read_text(encoding="utf-8")
    cluster = cluster.replace('accelerator = "h100-pcie-80gb"', 'accelerator = "my-chip.toml"')
    cluster = cluster.replace('["h100-pcie-80gb"]', '["our cluster"]')
    (tmp_path / "my-cluster.toml").write_text(cluster, encoding="utf-8")
    stack = (shipped / "stacks" / "nccl-tests.toml").read_text(encoding="utf-8")
    (tmp_path / "my-stack.toml").write_text(stack.replace('"10 ns"', '"50 us"'), encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch) -> Callable[[str], Result]:
    """Runs a command line in the folder of the user's files."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DIFFPERF_CACHE", "off")
    return lambda line: CliRunner().invoke(cli, line.split())


def gemv(hardware: str, **cells: object) -> dict[str, object]:
    """A product that takes the time of reading its weights."""
    return gemm(m=1, n=16384, k=16384, id=hardware, hardware=hardware) | cells


def seconds(file: Path, *systems: str) -> list[float]:
    """The predicted times of the rows of a table."""
    table = read_measurements(file, platforms_with(systems))
    assert messages(table.faults) == []
    predictions = predict(table.kind, table.rows, table.platforms)
    assert [prediction.skipped for prediction in predictions] == [None] * len(predictions)
    return [prediction.values["latency_s"] for prediction in predictions]


def test_files_in_the_column_hardware(folder):
    """The path of an accelerator or of a system, from the folder of the table."""
    rows = [gemv(name) for name in ("h100-sxm5-80gb", "my-chip.toml", "my-cluster.toml")]
    shipped, chip, cluster = seconds(write(folder / "gemm.csv", rows))
    assert chip == pytest.approx(2 * shipped, rel=0.1)
    assert cluster == chip


@pytest.mark.parametrize("name", ["my-chip", "my-cluster", "our cluster"])
def test_a_system_by_option_is_meant_by_all_its_names(folder, name):
    file = write(folder / "gemm.csv", [gemv(name), gemv("h100-sxm5-80gb")])
    own, shipped = seconds(file, str(folder / "my-cluster.toml"))
    assert own == pytest.approx(2 * shipped, rel=0.1)
    assert read_measurements(file).faults[0].reason == "hardware: unknown hardware"


def test_a_system_by_option_stands_in_for_a_shipped_one(folder):
    """Rows of an A100 between nodes, on a cloud rather than on InfiniBand."""
    file = write(folder / "collectives.csv", [all_reduce(hardware="a100-sxm4-80gb")])
    assert seconds(file, "a100-cloud")[0] > 1.5 * seconds(file)[0]


def test_the_node_of_a_users_system_is_the_tier_its_file_names(folder):
    """Four cards of a host reach each other within the node, over PCI Express; of two hosts, over
    InfiniBand.
    """
    row = all_reduce(n_devices=4, hardware="my-cluster.toml")
    rows = [row | {"id": in_node, "devices_per_node": in_node} for in_node in (4, 2)]
    within, between = seconds(write(folder / "collectives.csv", rows))
    assert between > 1.3 * within


def test_a_stack_in_the_column_of_the_software(folder):
    row = all_reduce(n_devices=2, devices_per_node=2, bytes=8, hardware="h100-nvl")
    rows = [row | {"id": name, "library": name} for name in ("nccl-tests", "my-stack.toml")]
    shipped, own = seconds(write(folder / "collectives.csv", rows))
    assert own - shipped == pytest.approx(50e-6 - 10e-9, rel=1e-6)


def test_several_devices_of_an_accelerator_alone_are_skipped(folder):
    file = write(folder / "collectives.csv", [all_reduce(hardware="my-chip.toml")])
    summary = validate(file).summary()
    assert summary.skipped == {"several devices of an accelerator whose file gives no network": 1}


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("nowhere.toml", "hardware: unknown hardware", 'found "nowhere.toml"; expected an existing file'),
        ("broken.toml", "hardware: unusable file", "compute_units: found no such key"),
    ],
)
def test_files_that_are_no_hardware(folder, text, reason, words):
    (folder / "broken.toml").write_text('vector = "1 TFLOP/s"\n', encoding="utf-8")
    rows = [gemv(text) | {"id": i} for i in range(3)]
    table = read_measurements(write(folder / "gemm.csv", rows))
    assert [fault.reason for fault in table.faults] == [reason] * 3
    (line,) = messages(table.faults)
    assert words in line
    assert line.endswith("(and 2 more such rows)")


def test_a_system_of_which_a_table_has_no_row(folder):
    file = write(folder / "gemm.csv", [gemv("h100-nvl")])
    with pytest.raises(
        dp.ConfigError, match="my-chip, my-cluster, our cluster; those of the table have h100-nvl"
    ):
        validate(file, systems=[str(folder / "my-cluster.toml")])
    with pytest.raises(dp.ConfigError, match="--system: found"):
        validate(file, systems=["abacus"])


def made_up(folder: Path) -> Path:
    """GEMMs of the user's chip as the estimator says them for the true efficiency of its memory."""
    chip = folder / "my-chip.toml"
    configured = chip.read_text(encoding="utf-8")
    chip.write_text(
        configured.replace("efficiency = 0.92", f"efficiency = {TRUE_EFFICIENCY}"), encoding="utf-8"
    )
    shapes = [(m, n, k) for m in (1, 16, 64) for n in (4096, 8192, 16384) for k in (4096, 8192)]
    rows = [gemv("my-chip.toml", id=i, m=m, n=n, k=k) for i, (m, n, k) in enumerate(shapes)]
    times = seconds(write(folder / "gemm.csv", rows))
    chip.write_text(configured, encoding="utf-8")
    return write(
        folder / "gemm.csv", [row | {"latency_s": time} for row, time in zip(rows, times, strict=True)]
    )


def test_a_users_chip_is_validated_and_calibrated(folder, run):
    """From its file alone: the fit finds the true value, and its config holds for the user's system."""
    made_up(folder)
    line = "calibrate gemm.csv --parameters hbm.efficiency --folds 3 --out mine.toml"
    result = run(line)
    assert result.exit_code == 0, result.stderr
    assert "my-chip (my-chip): 1 parameter fitted to 18 rows" in result.stdout
    errors = {}
    for calibration in ("none", "mine.toml"):
        result = run(f"validate gemm.csv --calibration {calibration} --json -")
        assert result.exit_code == 0, result.stderr
        errors[calibration] = json.loads(result.stdout)["overall"]["metrics"]["latency_s"]["median_ape"]
    assert errors["mine.toml"] < 0.01 < errors["none"]
    system = load_system("my-cluster.toml", calibration="mine.toml")
    assert float(system.accelerator.device_memory.efficiency) == pytest.approx(TRUE_EFFICIENCY, rel=0.02)


def test_a_users_system_by_option_is_calibrated(folder, run):
    """Rows that name the chip ran on the system of the option."""
    file = made_up(folder)
    file.write_text(file.read_text(encoding="utf-8").replace("my-chip.toml", "my-chip"), encoding="utf-8")
    line = "calibrate gemm.csv --parameters hbm.efficiency --folds 3 --out mine.toml"
    result = run(f"{line} --system my-cluster.toml --hardware my-chip")
    assert result.exit_code == 0, result.stderr
    assert "my-chip (my-cluster): 1 parameter fitted to 18 rows" in result.stdout
    assert 'hardware = "my-chip"' in (folder / "mine.toml").read_text(encoding="utf-8")
    result = run("validate gemm.csv --system my-cluster.toml --calibration mine.toml --json -")
    assert json.loads(result.stdout)["overall"]["metrics"]["latency_s"]["median_ape"] < 0.01
    result = run(line)
    assert result.exit_code == 1
    assert "no row left to fit (18 × hardware: unknown hardware)" in result.stderr.splitlines()[-1]

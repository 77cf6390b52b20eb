"""Axes over systems and stacks, and over technologies of designs: their points against single estimates."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.explore.sweep.space_file import load_space
from diffperf.explore.sweep.sweep import sweep
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import design_of, system_of
from diffperf.load import load_technology, override

pytestmark = pytest.mark.usefixtures("shared_programs")

LAYOUT = {"micro_batch": 1, "tp": 8, "recompute": "full"}
SYSTEMS = ["dgx-a100", "dgx-h100"]
STACKS = ["megatron-lm", "nemo"]
# DGX H100 has a calibration with values of its stack, which another stack has too.
BY_STACK = {
    "model": "gpt3-22b",
    "system": "dgx-a100",
    "best_by": ["stack", "system"],
    "set": {"system.n_devices": 8},
    "strategy": LAYOUT,
    "axis": [
        {"path": "stack", "values": STACKS},
        {"path": "strategy.zero", "values": ["0", "1"]},
        {"path": "system", "values": SYSTEMS},
    ],
}
DESIGNS = {
    "model": "gpt3-22b",
    "system": "dgx-h100",
    "technology": "n4-hbm3",
    "pareto": ["time", "chip.bumps"],
    "best_by": ["technology.memory"],
    "set": {"system.n_devices": 8},
    "strategy": LAYOUT,
    "axis": [
        {"path": "technology.node", "values": ["n7", "3.5 nm"]},
        {"path": "technology.memory", "values": ["hbm3", "hbm4"]},
        {"path": "design.memory_stacks", "values": [4, 6]},
    ],
}


@pytest.mark.slow
def test_every_stack_runs_on_every_system(tmp_path):
    space = load_space(BY_STACK)
    assert space.shape == (4, 2)
    result = sweep(space, tmp_path / "out.parquet", dtype=np.float64)
    rows = pq.read_table(result.path).to_pylist()
    found = {(row["system"], row["stack"], row["strategy.zero"]) for row in rows}
    assert found == {(system, stack, zero) for system in SYSTEMS for stack in STACKS for zero in "01"}
    for row in rows:
        layout = LAYOUT | {"zero": row["strategy.zero"]}
        alone = dp.estimate("gpt3-22b", row["system"], devices=8, stack=row["stack"], **layout)
        assert row["time"] == pytest.approx(float(alone.report.time), rel=1e-9)
    for path, names in {"system": SYSTEMS, "stack": STACKS}.items():
        best = {row[path]: row["time"] for row in result.best_by[path].to_pylist()}
        assert best == {name: min(row["time"] for row in rows if row[path] == name) for name in names}


@pytest.mark.slow
def test_designs_are_those_of_a_single_estimate(tmp_path):
    rows = pq.read_table(sweep(load_space(DESIGNS), tmp_path / "out.parquet").path).to_pylist()
    assert len(rows) == 8
    for row in rows:
        technology = load_technology("n4-hbm3", node=row["technology.node"], memory=row["technology.memory"])
        template = dp.load_system("dgx-h100", 8)
        design = design_of(template, technology)  # at the nominal voltage of its own node
        design = override(design, {"memory_stacks": row["design.memory_stacks"]})
        alone = dp.estimate("gpt3-22b", system_of(design, technology, template), **LAYOUT)
        assert row["time"] == pytest.approx(float(alone.report.time), rel=1e-5)
        assert row["memory.peak"] == pytest.approx(float(alone.report.memory.peak), rel=1e-5)


@pytest.mark.slow
def test_constraints_name_the_chip_and_the_memory_of_a_design():
    where = ["chip.die_area <= '800 mm^2'", "hbm.capacity >= '96 GiB'"]
    stack_capacity = {"hbm3": 16, "hbm4": 36}  # GiB
    for text in where:
        space = load_space(DESIGNS | {"where": [text]})
        allowed = []
        for number in range(space.size):
            digits = space.digits(number)
            point = space.point(digits, space.inputs)
            generation = space.axes[1].labels[space.axes[1].codes[digits[0]]]
            capacity = (4, 6)[digits[1]] * stack_capacity[generation]
            area = float(chip(point.design, point.technology, point.system.accelerator).die_area)
            allowed.append(bool(space.allows(point)))
            assert allowed[-1] == (area <= 800 if "chip" in text else capacity >= 96)
        assert len(set(allowed)) == 2


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"technology": None}, "axis[0].path", "designs its accelerators"),
        (
            {"axis": [{"path": "design.cache", "values": ["50 MB"]}], "technology": None},
            "axis[0].path",
            "add",
        ),
        ({"axis": [{"path": "system", "values": SYSTEMS}]}, "axis[0].path", "template"),
        ({"axis": [{"path": "technology.feature", "values": ["5 nm"]}]}, "axis[0].path", "technology.node"),
        ({"set": {"technology.feature": "5 nm"}}, "set.technology.feature", "technology.node"),
        ({"set": {"technology.node": "3 nm"}}, "set.technology.node", "with one value"),
        ({"set": {"technology": {"memory": "hbm4"}}}, "set.technology.memory", 'one value, "hbm4"'),
        ({"axis": [{"path": "technology.node", "values": ["n6"]}]}, "axis[0].values[0]", "configs/nodes"),
        ({"axis": [{"path": "technology.memory", "values": ["hbm9"]}]}, "axis[0].values[0]", "memories"),
        ({"axis": [{"path": "technology.memory", "values": [3]}]}, "axis[0].values", "names of memories"),
        (
            {"axis": [{"path": "hbm.bandwidth", "values": ["2 TB/s", "3 TB/s"]}]},
            "axis",
            "which the design replaces",
        ),
    ],
)
def test_bad_axes_of_designs_are_one_clear_line(changes, key, words):
    table = {name: value for name, value in (DESIGNS | changes).items() if value is not None}
    with pytest.raises(ConfigError) as problem:
        load_space(table)
    assert problem.value.key == key
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)

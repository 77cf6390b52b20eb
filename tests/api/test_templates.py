"""diffperf init: every file that it writes runs, and says what the shipped one says."""

import re
import subprocess
import sys

import numpy as np
import pytest

import diffperf as dp
from diffperf.api.templates import LIKE, describe_columns, file_name, template
from diffperf.explore.measured.schemas import SCHEMAS, measured_columns
from diffperf.explore.measured.table import read_measurements
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import load
from diffperf.quantity import Quantity, walk
from diffperf.software.stack import Stack
from diffperf.workload.model import Model

ASSIGNMENT = re.compile(r"# [\w.-]+ = ")
CONFIGS = [("accelerator", Accelerator), ("system", System), ("stack", Stack), ("model", Model)]


def values(module) -> dict[str, np.ndarray]:
    return {
        path: np.asarray(value) for path, declared, value in walk(module) if isinstance(declared, Quantity)
    }


@pytest.mark.parametrize(("kind", "cls"), CONFIGS, ids=[kind for kind, _ in CONFIGS])
def test_a_config_is_that_which_it_extends_with_and_without_its_comments(tmp_path, kind, cls):
    """Uncommented, every line says what acts in an estimate, to the six digits that it writes: what the
    shipped config says, or the fitted value of a calibrated accelerator.
    """
    text = template(kind)
    lines = [
        line.removeprefix("# ") if " = " in line and line.startswith("# ") else line
        for line in text.splitlines()
    ]
    lines = ["# " + line if line.startswith("Use it") else line for line in lines]
    shipped = values(load(cls, LIKE[kind]))
    fitted = values(dp.load_system("dgx-h100").accelerator) if kind == "accelerator" else shipped
    for name, content, expected in (("mine", text, shipped), ("uncommented", "\n".join(lines), fitted)):
        path = tmp_path / f"{name}.toml"
        path.write_text(content, encoding="utf-8")
        mine = load(cls, str(path))
        assert str(mine.name) == name
        own = values(mine)
        assert own.keys() == expected.keys()
        for key, number in expected.items():
            np.testing.assert_allclose(own[key], number, rtol=1e-5, err_msg=key)


def test_every_number_of_an_accelerator_is_listed():
    text = template("accelerator", "mi300x")
    module = load(Accelerator, "mi300x")
    scalars = [path for path, value in values(module).items() if not value.ndim and np.isfinite(value)]
    assert len(scalars) > 100
    assert not [path for path in scalars if f"# {path} = " not in text]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_tables_begin_with_a_row_that_can_be_read(tmp_path, kind):
    path = tmp_path / "table.csv"
    path.write_text(template("measurements", kind), encoding="utf-8")
    table = read_measurements(path)
    assert (table.kind, len(table.rows), table.faults) == (kind, 1, [])
    assert table.rows[0]["source"]
    assert set(table.columns) <= {name for name, _, _ in describe_columns(kind)}
    assert set(table.columns) & set(measured_columns(kind))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "read"), [("problem", dp.load_problem), ("space", dp.load_space)])
def test_problems_and_spaces_are_read(tmp_path, kind, read):
    path = tmp_path / file_name(kind)
    path.write_text(template(kind), encoding="utf-8")
    read(str(path))


@pytest.mark.slow
def test_a_study_runs(tmp_path):
    path = tmp_path / "my-study.py"
    path.write_text(template("study"), encoding="utf-8")
    result = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert len(result.stdout.splitlines()) == 4
    assert "dgx-h100" in result.stdout

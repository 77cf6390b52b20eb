"""Conditions on cells, which choose the rows of a measured table."""

import pytest

import diffperf as dp
from diffperf.explore.measured.conditions import Condition, where
from diffperf.explore.measured.table import read_measurements

CELLS = {"framework": "vLLM 0.12.0", "tp": "8", "group": "", "experts": "0"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("framework=vllm*", True),
        ("framework = VLLM 0.12.0", True),
        ("framework=vllm", False),
        ("framework=sglang*, vllm*", True),
        ("framework!=vllm*", False),
        ("framework!=sglang*", True),
        ("group=", True),
        ("group!=", False),
        ("tp=8", True),
        ("tp>=8", True),
        ("tp>8", False),
        ("tp<1e1", True),
        ("tp<=7.5", False),
        ("framework>0", False),
        ("group<1", False),
    ],
)
def test_what_a_condition_means(text, holds):
    assert Condition.parse(text).holds(CELLS) is holds


@pytest.fixture
def table(tmp_path):
    rows = [
        "a,h100-sxm5-80gb,bf16,8,8,8,1e-5",
        "b,h100-sxm5-80gb,fp8,16,8,8,1e-5",
        "c,h100-sxm5-80gb,bf16,x,8,8,1",
    ]
    (tmp_path / "gemm.csv").write_text("\n".join(["id,hardware,dtype,m,n,k,latency_s", *rows]) + "\n")
    return read_measurements(tmp_path / "gemm.csv")


def test_rows_meet_all_conditions(table):
    """Rows that cannot be read are chosen by their cells like the others."""

    def ids(*conditions: str) -> tuple[list[str], list[str]]:
        chosen = where(table, conditions)
        return [row["id"] for row in chosen.rows], [fault.cells["id"] for fault in chosen.faults]

    assert ids() == (["a", "b"], ["c"])
    assert ids("dtype=bf16") == (["a"], ["c"])
    assert ids("dtype=bf16", "m<9") == (["a"], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dtype", r'--where: found "dtype"; expected COLUMN=TEXT'),
        ("m<many", r'--where: found "m<many"; expected a number after <'),
        ("dtyp=bf16", r'--where: found "dtyp"; expected a column of .*; did you mean "?dtype'),
        ("m>99", r'--where: found "m>99", which no row meets'),
    ],
)
def test_conditions_that_choose_nothing(table, text, message):
    with pytest.raises(dp.ConfigError, match=message):
        where(table, [text])

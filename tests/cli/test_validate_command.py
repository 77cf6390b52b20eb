"""diffperf validate: errors by group, what could not be evaluated, and rows that cannot be read."""

import csv
import json
from pathlib import Path

import pytest

import diffperf as dp
from diffperf.explore.measured.schemas import measured_columns


def gemm_table(folder, *rows: str) -> str:
    good = [
        "a,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,2.5e-4",
        "b,two,a100-sxm4-80gb,bf16,8192,4096,4096,1,1e-3",
    ]
    (folder / "gemm.csv").write_text(
        "\n".join(["id,group,hardware,dtype,m,n,k,batch,latency_s", *good, *rows]) + "\n"
    )
    return "gemm.csv"


def test_validate_some_rows(run, answer, tmp_path):
    file = gemm_table(tmp_path)
    chosen = answer(f"validate {file} --where hardware=a100* --json -")
    assert chosen["overall"]["rows"] == 1
    assert list(chosen["groups"]) == ["two"]
    result = run(f"validate {file} --where hardware=tpu*")
    assert result.exit_code == 1
    assert 'command line: --where: found "hardware=tpu*", which no row meets' in result.stderr
    assert result.stderr.count("\n") == 1


def test_validate_names_columns_that_are_not_read(run, tmp_path):
    file = tmp_path / gemm_table(tmp_path)
    assert "not read" not in run(f"validate {file}").stdout
    head, *rows = file.read_text().splitlines()
    wrong = [f"{head.replace('batch', 'batches')},operator", *(f"{row},mine" for row in rows)]
    file.write_text("\n".join(wrong) + "\n")
    result = run(f"validate {file} --by operator")
    assert "Columns that are not read: batches (did you mean batch?), operator" in result.stdout
    assert "mine" in result.stdout


def test_validate(run, tmp_path):
    file = gemm_table(
        tmp_path,
        "c,two,gb200,q4_0,8,8,8,1,1e-6",
        "d,two,h100-sxm5-80gb,bf16,8,8,8,1,5 us",
        "a,one,h100,bf16,8,8,8,1,1",
    )
    result = run(f"validate {file} --plot errors.png --json errors.json")
    assert result.exit_code == 0, result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "gemm.csv line 5 (d)",
        "gemm.csv line 6 (a)",
    ]
    for words in (
        "2 of 5 rows evaluated",
        "overall",
        "a100-sxm4-80gb",
        "precision q4_0",
        "latency_s: a unit in the cell",
    ):
        assert words in result.stdout
    data = json.loads((tmp_path / "errors.json").read_text())
    assert (data["table"], list(data["groups"]), data["overall"]["rows"]) == ("gemm", ["one", "two"], 5)
    assert data["overall"]["metrics"]["latency_s"]["n"] == 2
    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_residuals_of_a_table(run, tmp_path):
    file = gemm_table(tmp_path, *(f"{m},two,h100-sxm5-80gb,bf16,{m},4096,4096,1,{m}e-7" for m in (512, 1024)))
    result = run(f"validate {file} --residuals columns.svg --of latency_s")
    assert result.exit_code == 0, result.stderr
    drawn = (tmp_path / "columns.svg").read_text()
    for words in ("of the spread", "rows of the product", "relative error", "errors of latency_s"):
        assert words in drawn
    answer = dp.validate(tmp_path / file)
    assert {each.column for each in answer.residuals().explained} == {"group", "hardware", "m"}
    assert len(answer.plot_residuals(tmp_path / "columns.png").axes) == 4
    assert (tmp_path / "columns.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--residuals columns.txt", '--residuals: found "columns.txt"; expected a file name ending in .png'),
        ("--residuals none/columns.png", "expected a file in a folder that exists"),
        ("--residuals columns.png --of latency", 'no errors of "latency"; expected a measured column'),
        ("--residuals columns.png --where dtype=q4_0", "found no row with a measured and an estimated value"),
    ],
)
def test_residuals_that_cannot_be_drawn(run, tmp_path, options, words):
    """One line says why, and no file is written."""
    file = gemm_table(tmp_path, "c,two,h100-sxm5-80gb,q4_0,8,8,8,1,1e-6")
    result = run(f"validate {file} {options}")
    assert result.exit_code != 0
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "columns.png").exists()


def test_validate_by_any_column(answer, tmp_path):
    data = answer(f"validate {gemm_table(tmp_path)} --by m --json -")
    assert list(data["groups"]) == ["4096", "8192"]


def test_validate_where_no_row_can_be_read(run, tmp_path):
    (tmp_path / "gemm.csv").write_text("id,hardware,dtype,m,n,k,latency_s\na,abacus,bf16,1,1,1,1\n")
    result = run("validate gemm.csv --plot none.svg")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "0 of 1 rows evaluated" in result.stdout
    assert "Nothing could be evaluated" in result.stdout


def test_validate_has_no_empty_tables(run, tmp_path):
    """Where no row is evaluated a sentence says so; where a group has none, its line does."""
    header, skipped = "id,group,hardware,dtype,m,n,k,latency_s", "a,one,h100-sxm5-80gb,q4_0,8,8,8,1e-6"
    (tmp_path / "gemm.csv").write_text(f"{header}\n{skipped}\n")
    result = run("validate gemm.csv")
    assert result.exit_code == 1, result.stderr
    assert [" ".join(line.split()) for line in result.stdout.splitlines() if line] == [
        "gemm.csv (gemm): 0 of 1 rows evaluated",
        "Nothing could be evaluated, for the reasons counted below.",
        "skipped",
        "reason rows ids",
        "precision q4_0 1 a",
    ]
    (tmp_path / "gemm.csv").write_text(f"{header}\n{skipped}\nb,two,h100-sxm5-80gb,bf16,8,8,8,1e-6\n")
    lines = [line.split() for line in run("validate gemm.csv").stdout.splitlines()]
    assert ["one", "no", "row", "evaluated", "0"] in lines
    assert sum(line[:1] == ["hardware"] for line in lines) == 1
    assert "Nothing could be evaluated" not in " ".join(map(" ".join, lines))


@pytest.mark.slow
def test_validate_of_runs_that_only_ran_out_of_memory(run, tmp_path):
    """They are evaluated, and have a table of their own in place of the one of errors."""
    with (Path(__file__).parent.parent / "data" / "korthikanti_training.csv").open(encoding="utf-8") as file:
        row = next(csv.DictReader(file)) | dict.fromkeys(measured_columns("training"), "") | {"oom": "true"}
    with (tmp_path / "training.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([row.keys(), row.values()])
    result = run("validate training.csv")
    assert result.exit_code == 0, result.stderr
    assert "1 of 1 rows evaluated" in result.stdout
    assert "out of memory" in result.stdout
    assert "bias" not in result.stdout
    assert "Nothing could be evaluated" not in result.stdout

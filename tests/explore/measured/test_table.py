"""Reading tables of measurements: kinds, values, and every way a row or a file can be wrong."""

import json
from pathlib import Path

import pytest
from measured_cases import DATA, write

import diffperf as dp
from diffperf.explore.measured.schemas import SCHEMAS, measured_columns
from diffperf.explore.measured.table import messages, read_measurements
from diffperf.load.calibration import MEASURED_KINDS

HEADER = "id,group,hardware,dtype,m,n,k,batch,latency_s"
GOOD = "a,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,2.5e-4"


def table(folder, *rows: str, header: str = HEADER) -> Path:
    path = folder / "measured.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_values(tmp_path):
    read = read_measurements(table(tmp_path, GOOD, "", "b,,tpu-v4,fp8,1,2,3,,"))
    assert read.kind == "gemm"
    assert read.faults == []
    first, second = read.rows
    assert (first.line, first["m"], first["latency_s"], first["dtype"]) == (2, 4096.0, 2.5e-4, "bf16")
    assert (second.line, second["group"], second["batch"], second["latency_s"]) == (4, "all", 1.0, None)
    assert second.cells["group"] == ""


def test_calibrations_know_every_kind():
    assert set(MEASURED_KINDS) == set(SCHEMAS)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_kind_is_recognized_from_its_columns(tmp_path, kind):
    """From the needed columns and one measured one, in any order and with others between."""
    needed = [name for name, column in SCHEMAS[kind].items() if column.needed]
    for measured in (measured_columns(kind)[0], measured_columns(kind)[-1]):
        path = table(tmp_path, "x", header=",".join([measured, "remark", *reversed(needed)]))
        assert read_measurements(path).kind == kind


@pytest.mark.parametrize(
    ("file", "kind", "rows"),
    [("korthikanti_training", "training", 9), ("nvidia_llama2_inference", "inference", 22)],
)
def test_published_tables(file, kind, rows):
    read = read_measurements(DATA / f"{file}.csv")
    assert (read.kind, len(read.rows), read.faults) == (kind, rows, [])


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        (
            "b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,250 us",
            "latency_s: a unit in the cell",
            '"250 us"; expected a bare number in s',
        ),
        (
            "b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,0.25ms",
            "latency_s: a unit in the cell",
            "SI value alone",
        ),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,NaN", "latency_s: not a finite number", "NaN"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,-inf", "latency_s: not a finite number", "-inf"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,1e999", "latency_s: out of range", "above 0"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,-2e-4", "latency_s: negative", '"-2e-4"'),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,0", "latency_s: out of range", "above 0"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,fast", "latency_s: not a number", '"fast"'),
        ("b,one,h100-sxm5-80gb,bf16,,4096,4096,1,2e-4", "m: missing", "an empty cell"),
        ("b,one,h100-sxm5-80gb,bf16,40.5,4096,4096,1,2e-4", "m: not whole", "round it"),
        ("b,one,h100-sxm5-80gb,bf16,0,4096,4096,1,2e-4", "m: out of range", "from 1 to"),
        (
            "b,one,h100-sxm-80gb,bf16,4096,4096,4096,1,2e-4",
            "hardware: unknown hardware",
            'did you mean "h100-sxm5-80gb"?',
        ),
        ("b,one,abacus,bf16,4096,4096,4096,1,2e-4", "hardware: unknown hardware", "diffperf list systems"),
        ("a,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,2e-4", "id: duplicate", "line 2 has this one"),
        ("b,one,h100-sxm5-80gb,bf16,4096", "wrong number of cells", "found 5 cells; expected 9"),
        (
            "b,one,h100-sxm5-80gb,bf16,4,096,4096,4096,1,2e-4",
            "wrong number of cells",
            "quote cells that hold commas",
        ),
    ],
)
def test_a_bad_row_is_named_and_the_others_are_read(tmp_path, row, reason, words):
    path = table(tmp_path, GOOD, row, GOOD.replace("a,", "z,"))
    read = read_measurements(path)
    assert [good["id"] for good in read.rows] == ["a", "z"]
    (fault,) = read.faults
    assert (fault.line, fault.reason) == (3, reason)
    assert fault.message.startswith(f"{path} line 3 ({row[0]})")
    assert words in fault.message
    assert "\n" not in fault.message


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("recompute", "selectiv", "recompute: unknown value"),
        ("sequence_parallel", "yes", "sequence_parallel: unknown value"),
        ("zero_stage", "4", "zero_stage: out of range"),
        ("attention", "linear", "attention: unknown value"),
        ("oom", "maybe", "oom: unknown value"),
        ("hidden", "6144 elements", "hidden: a unit in the cell"),
        ("reserved_memory_bytes", "80 GiB", "reserved_memory_bytes: a unit in the cell"),
    ],
)
def test_bad_cells_of_runs(tmp_path, column, text, reason):
    header, first, *_ = (DATA / "korthikanti_training.csv").read_text(encoding="utf-8").splitlines()
    quoted = first.split('"')
    cells = [*quoted[0].split(",")[:-1], "remarks", *quoted[2].split(",")[1:]]
    cells[header.split(",").index(column)] = text
    read = read_measurements(table(tmp_path, ",".join(cells), header=header))
    assert [fault.reason for fault in read.faults] == [reason]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ": found an empty file; expected a table of measurements; begin with a line"),
        (
            HEADER.replace(",", ";") + "\n",
            'header: found fields separated by ";"; expected fields separated by ","',
        ),
        (HEADER.replace(",", "\t") + "\n", "header: found fields separated by tabs; expected"),
        (
            "a,b,c\n1,2,3\n",
            "a table of training, inference, serving, energy, gemm, attention, collectives",
        ),
        (HEADER.replace(",m,", ",") + "\n", "no column m; expected the columns of a gemm table"),
        (
            "model,hardware,tp,batch,prompt_length,output_length,time_per_output_token_s,ttft_s,precision\n",
            "found no column input_len, output_len; expected the columns of an inference table; rename "
            "prompt_length to input_len, output_length to output_len, time_per_output_token_s to tpot_s, "
            "precision to weight_dtype",
        ),
        (
            "model,hardware,tp,pp,batch,isl,framework,throughput_tokens_per_s\n",
            "no column input_len, output_len; expected the columns of an inference table; rename isl to "
            "input_len and add what is missing",
        ),
        (HEADER.replace(",latency_s", "") + "\nx\n", "nothing measured; expected one of latency_s"),
        (HEADER + ",m\n" + GOOD + ",1\n", 'two columns "m"'),
        (HEADER + "\n", "no rows"),
        (HEADER + '\n"a,one\n', "unreadable table"),
    ],
)
def test_a_file_that_is_no_table_is_one_error(tmp_path, text, words):
    path = tmp_path / "measured.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(dp.ConfigError) as raised:
        read_measurements(path)
    assert words in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_binary_file_is_one_error(tmp_path):
    (tmp_path / "measured.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(dp.ConfigError, match="unreadable table"):
        read_measurements(tmp_path / "measured.csv")


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_bytes(("\ufeff" + HEADER + "\r\n" + GOOD + "\r\n").encode())
    assert read_measurements(path).rows[0]["m"] == 4096


def test_rows_of_the_same_unknown_hardware_share_a_line(tmp_path):
    """All other bad rows have a line of their own."""
    rows = [f"{i},one,{name},bf16,8,8,8,1,{time}" for i, (name, time) in enumerate(
        [("abacus", 1), ("sundial", 1), ("abacus", 2), ("h100-nvl", "x"), ("abacus", 3), ("h100-nvl", "y")]
    )]  # fmt: skip
    faults = read_measurements(table(tmp_path, *rows)).faults
    assert [fault.line for fault in faults] == [2, 3, 4, 5, 6, 7]
    lines = messages(faults)
    assert [line.split(".csv ")[1][:10] for line in lines] == [
        "line 2 (0)",
        "line 3 (1)",
        "line 5 (3)",
        "line 7 (5)",
    ]
    assert lines[0].endswith("(and 2 more such rows)")
    assert "more rows" not in "".join(lines[1:])
    assert max(map(len, lines)) < 300


def test_a_model_is_the_folder_of_its_config(tmp_path):
    """Relative to the table, as the command line takes it; what is none names the column `model`."""
    folder = tmp_path / "mine"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000}
    config |= {"num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    cells = {"hardware": "h100-sxm5-80gb", "input_len": 512, "output_len": 128, "batch": 8, "tpot_s": 0.01}
    models = ("./mine", f"{tmp_path}/mine", "mine/", "mine/config.json", "./none", "nothing", "org/nothing")
    read = read_measurements(write(tmp_path / "runs.csv", [{"model": model} | cells for model in models]))
    assert [row["layers"] for row in read.rows] == [32.0] * 4
    assert [fault.reason for fault in read.faults] == [
        "model: unknown model",
        "model: no config",
        "model: no config",
    ]
    assert all("a folder with one" in fault.message for fault in read.faults)

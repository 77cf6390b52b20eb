"""Rows of measurements that leave out what the config of their model, their degrees or a default say."""

import csv

import pytest
from measured_cases import INFERENCE, write

import diffperf as dp
from diffperf.explore.measured.named_model import HYBRID, architecture_of
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.schemas import ARCHITECTURE
from diffperf.explore.measured.table import messages, read_measurements
from diffperf.load import find

# Published architectures (config.json of each model; of GPT-3 its paper): layers, hidden, heads, KV heads,
# head dim, FFN, vocabulary, attention; and of experts how many, per token, FFN, shared, dense layers.
NAMES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "attention")
OF_EXPERTS = ("experts", "experts_per_token", "expert_ffn", "shared_experts", "dense_layers")
PUBLISHED = {
    "gpt3-175b": (96, 12288, 96, 96, 128, 49152, 51200, "mha"),
    "llama-2-70b": (80, 8192, 64, 8, 128, 28672, 32000, "gqa"),
    "mixtral-8x7b": (32, 4096, 32, 8, 128, 14336, 32000, "gqa", 8, 2, 14336, 0, 0),
    "deepseek-v3": (61, 7168, 128, 128, None, 18432, 129280, "mla", 256, 8, 2048, 1, 3),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_columns_of_a_config_are_the_published_ones(name):
    columns = architecture_of(dp.load_model(name))
    for column, published in zip((*NAMES, *OF_EXPERTS), PUBLISHED[name], strict=False):
        assert published is None or columns[column] == published, column


def test_columns_of_a_hybrid_say_so():
    assert architecture_of(dp.load_model("nemotron-nano-9b-v2"))["attention"] == HYBRID


def test_runs_of_a_named_model_need_no_column_of_its_architecture(tmp_path):
    with INFERENCE.open(encoding="utf-8", newline="") as file:
        whole = [row for row, _ in zip(csv.DictReader(file), range(4), strict=False)]
    left_out = {*ARCHITECTURE, "id", "n_devices", "devices_per_node", "pp"} - {"model"}
    short = [{name: cell for name, cell in row.items() if name not in left_out} for row in whole]
    tables = [
        read_measurements(write(tmp_path / name, rows))
        for name, rows in (("whole.csv", whole), ("short.csv", short))
    ]
    assert not tables[1].faults
    assert [row["id"] for row in tables[1].rows] == [f"line {line}" for line in range(2, 6)]
    latencies = [
        [prediction.values["latency_s"] for prediction in predict(table.kind, table.rows, table.platforms)]
        for table in tables
    ]
    assert latencies[0] == pytest.approx(latencies[1], rel=1e-12)


def short_row(**cells: object) -> dict[str, object]:
    """The cells of a training run in as few columns as may be, changed."""
    run = {"model": "llama-2-7b", "hardware": "a100-sxm4-80gb", "tp": 2, "seq_len": 4096, "global_batch": 32}
    return {**run, "step_time_s": 9.0, **cells}


def values_of(tmp_path, **cells):
    (row,) = read_measurements(write(tmp_path / "short.csv", [short_row(**cells)])).rows
    return row.values


def test_devices_and_replicas_follow_from_each_other(tmp_path):
    assert values_of(tmp_path)["n_devices"] == 2
    assert values_of(tmp_path, dp=4, pp=2)["n_devices"] == 16
    assert values_of(tmp_path, n_devices=16, pp=2)["dp"] == 4


def test_stages_interleave_only_where_a_table_says_so(tmp_path):
    """An empty cell of a table that has the column is unknown, as it was."""
    assert values_of(tmp_path, pp=2)["virtual_stages"] == 1
    assert values_of(tmp_path, pp=2, virtual_stages="")["virtual_stages"] is None


def test_a_model_may_be_a_file_beside_the_table(tmp_path):
    shipped = find("llama-2-7b", "models").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(shipped.replace("= 32\n", "= 16\n", 1), encoding="utf-8")
    mine, theirs = values_of(tmp_path, model="mine.toml"), values_of(tmp_path)
    changed = [name for name in ARCHITECTURE if name != "model" and mine[name] != theirs[name]]
    assert len(changed) == 1
    assert mine[changed[0]] == 16


def test_cells_count_more_than_the_config(tmp_path):
    values = values_of(tmp_path, layers=8)
    assert (values["layers"], values["hidden"]) == (8, 4096)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ({"model": "lama-2-7b"}, 'did you mean "llama-2-7b"?'),
        ({"model": "unheard-of"}, "see diffperf list models"),
        ({"model": ""}, "name the model"),
        ({"model": "nowhere.toml"}, "nowhere.toml"),
        ({"n_devices": 9}, "9 devices and 2 of them for a replica"),
    ],
)
def test_what_nothing_implies_is_one_line_for_all_rows(tmp_path, cells, line):
    table = read_measurements(write(tmp_path / "short.csv", [short_row(**cells)] * 3))
    (message,) = messages(table.faults)
    assert line in message
    assert message.endswith("(and 2 more such rows)")

"""Good files load; every bad one gives one line with file, key, found, expected and remedy, and never another exception."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diffperf as dp
from diffperf.errors import ConfigError, did_you_mean
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import FOLDERS, available, config_root, load, read_toml
from diffperf.quantity import replace, walk
from diffperf.workload.model import Model

MODEL = {
    "hidden": 4096,
    "vocabulary": 32000,
    "tied_embeddings": False,
    "layers": [{"count": 32, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 11008, "gated": True}],
}
LAYERS = MODEL["layers"][0]
MIXTURE = {"experts": 8, "experts_per_token": 2}
LATENT = {"query_rank": 1536, "kv_rank": 512, "rotary_dim": 64, "value_dim": 128}
MIXED = MODEL | {"layers": [LAYERS, LAYERS | {"mixture": MIXTURE, "latent": LATENT}]}
TIER = {
    "name": "nvlink",
    "size": 8,
    "bandwidth": "300 GB/s",
    "latency": "2 us",
    "efficiency": 0.7,
    "energy": "30 pJ/byte",
    "price": "$1,000",
}
PROCESS = {"name": "n7", "wafer_price": "$9,346", "defect_density": "0.09 1/cm^2", "clustering": 10}
LEVEL = {"capacity": "20 MB", "bandwidth": "19 TB/s", "latency": "30 ns", "energy": "1 pJ/byte"}
ACCELERATOR = {
    "compute_units": 108,
    "vector": "19.5 TFLOP/s",
    "compute_energy": "0.6 pJ/FLOP",
    "static_power": "90 W",
    "power_limit": "400 W",
    "kernel_latency": "3 us",
    "attention": {"efficiency": 0.62},
    "matrix": {"fp32": "19.5 TFLOP/s", "bf16": {"rate": "312 TFLOP/s", "efficiency": 0.76}},
    "memory": [
        LEVEL | {"name": "smem"},
        LEVEL | {"name": "hbm", "capacity": "80 GiB", "bandwidth": "2 TB/s"},
    ],
    "package": {
        "process": PROCESS,
        "packaging": {
            "name": "organic",
            "substrate_price": "0.005 USD/mm^2",
            "c4_bump_price": "0.005 USD/mm^2",
            "micro_bump_price": "0.01 USD/mm^2",
            "organic_bonding_yield": 0.99,
            "interposer_bonding_yield": "95 %",
            "package_area_factor": 4,
            "interposer_area_factor": 1.1,
            "interposer": PROCESS,
        },
        "technology": "interposer",
        "dies": 1,
        "die_area": "826 mm^2",
        "memory_stacks": 5,
        "stack_area": "110 mm^2",
        "memory_price": "15 USD/GB",
        "assembly_price": "$300",
    },
}
SYSTEM = {
    "accelerator": ACCELERATOR,
    "network": [TIER, TIER | {"name": "infiniband", "size": 1e6, "bandwidth": "200 Gbit/s"}],
    "stack": {
        "kernel_overhead": "3 us",
        "collective_overhead": "10 us",
        "memory_reserve": "1 GB",
        "collectives": {"name": "nccl"},
    },
    "prices": {
        "accelerator_markup": 5,
        "host": "$2,000",
        "electricity": "0.1 USD/kWh",
        "pue": 1.2,
        "host_power": "200 W",
        "lifetime": "4 years",
        "utilization": "80 %",
    },
    "n_devices": 8,
}
TABLES = {Model: MIXED, System: SYSTEM, Accelerator: ACCELERATOR}


def _toml(value, top=True) -> str:
    """A table as TOML, nested ones inline."""
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key))} = {_toml(item, top=False)}" for key, item in value.items()]
        return "\n".join(items) + "\n" if top else "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item, top=False) for item in value) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def _edited(table, path, value):
    """A copy of the table with the item at `path` set, or deleted where `value` is DELETE."""
    table = copy.deepcopy(table)
    node = table
    for part in path[:-1]:
        node = node[part]
    if value is DELETE:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return table


DELETE = object()


def _error(cls, path) -> ConfigError:
    """The error of loading a file, after checking that it says all it should in one line."""
    with pytest.raises(ConfigError) as caught:
        load(cls, path)
    error = caught.value
    _check(error)
    return error


def _check(error: ConfigError) -> None:
    line = str(error)
    assert len(line.splitlines()) == 1, line
    for part in (error.file, error.found, error.expected, error.remedy):
        assert str(part).strip(), line
        assert " ".join(str(part).split()) in line
    assert " ".join(error.key.split()) in line
    assert "Traceback" not in line


def _write(folder: Path, table) -> Path:
    path = folder / "input.toml"
    path.write_text(table if isinstance(table, str) else _toml(table), encoding="utf-8")
    return path


# What is right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", TABLES)
def test_a_good_file_loads(tmp_path, cls):
    module = load(cls, _write(tmp_path, TABLES[cls]))
    assert isinstance(module, cls)
    assert str(module.name) == "input"  # by default what the file is called


def test_units_and_defaults_are_applied(tmp_path):
    system = load(System, _write(tmp_path, SYSTEM))
    assert float(system.network[1].bandwidth) == 25e9
    assert float(system.accelerator.device_memory.capacity) == 80 * 2**30
    assert float(system.accelerator.package.packaging.interposer_bonding_yield) == pytest.approx(0.95)
    assert float(system.prices.lifetime) == 4 * 365.25 * 86400
    assert float(system.accelerator.memory[0].efficiency) == 0.85
    assert [str(level.name) for level in system.accelerator.memory] == ["smem", "hbm"]
    # Absent formats run at the rate of the one their operands are converted to.
    assert float(system.accelerator.matrix.fp8.rate) == 312e12
    assert float(system.accelerator.matrix.tf32.rate) == 19.5e12


@pytest.mark.parametrize("cls", FOLDERS, ids=lambda cls: FOLDERS[cls])
def test_shipped_configs_load(cls):
    for name in available(FOLDERS[cls]):
        assert str(load(cls, name).name)


def test_references_are_relative_to_the_file_that_makes_them(tmp_path):
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "mine.toml").write_text(_toml(ACCELERATOR))
    system = load(System, _write(tmp_path, SYSTEM | {"accelerator": "chips/mine.toml"}))
    assert str(system.accelerator.name) == "mine"


def test_optional_parts_are_there_where_a_file_gives_them(tmp_path):
    model = load(Model, _write(tmp_path, MIXED))
    dense, mixed = model.layers
    assert dense.mixture is None
    assert dense.latent is None
    assert float(mixed.mixture.experts) == 8
    assert float(mixed.mixture.shared_ffn) == 0  # by default
    assert float(mixed.latent.kv_rank) == 512
    assert float(mixed.window) > 1e9


def test_optional_parts_as_tables_of_their_own(tmp_path):
    layers = _toml(LAYERS)
    text = f"hidden = 4096\nvocabulary = 32000\ntied_embeddings = false\n[[layers]]\n{layers}[layers.mixture]\n{_toml(MIXTURE)}"
    model = load(Model, _write(tmp_path, text))
    assert float(model.layers[0].mixture.experts_per_token) == 2


def test_strategy_fills_the_devices():
    assert float(dp.load_strategy({"tp": 8, "pp": 4}, n_devices=64).dp) == 2
    assert float(dp.load_strategy({"tp": 8, "cp": 2}, n_devices=64).dp) == 4
    assert float(dp.load_strategy({"tp": 8, "pp": 4, "dp": 3}, n_devices=64).dp) == 3
    assert float(dp.load_strategy({"tp": 8}).dp) == 1


def test_choices_may_be_weights():
    strategy = dp.load_strategy({"recompute": {"none": 0.25, "full": 0.75}, "sequence_parallel": False})
    assert strategy.recompute.tolist() == [0.25, 0, 0.75]
    assert strategy.sequence_parallel.tolist() == [1, 0]


# What is wrong in a file ---------------------------------------------------------------------------------------------

# (class, path of the item, its value, key the error must name, words the error must hold)
WRONG = [
    # Numbers
    (Model, ["hidden"], "wide", "hidden", ["wide", "a number"]),
    (Model, ["hidden"], -4096, "hidden", ["-4096", "from"]),
    (Model, ["hidden"], 0, "hidden", ["from"]),
    (Model, ["hidden"], float("nan"), "hidden", ["NaN"]),
    (Model, ["hidden"], float("inf"), "hidden", ["Infinity"]),
    (Model, ["hidden"], 10**400, "hidden", ["large"]),
    (Model, ["hidden"], True, "hidden", ["true"]),
    (Model, ["hidden"], [4096], "hidden", ["[4096]"]),
    (Model, ["hidden"], {"value": 4096}, "hidden", ["4096"]),
    (Model, ["hidden"], "4096 bytes", "hidden", ["wrong dimension"]),
    (Model, ["hidden"], "3 4", "hidden", ["one number and a unit"]),
    (Model, ["layers", 0, "heads"], "many", "layers[0].heads", ["many"]),
    (Model, ["layers", 0, "count"], -1, "layers[0].count", ["-1"]),
    # Units
    (System, ["network", 0, "bandwidth"], "300 GB", "network[0].bandwidth", ["wrong dimension"]),
    (System, ["network", 0, "bandwidth"], "300 Gb/s", "network[0].bandwidth", ["Gbit or GB"]),
    (System, ["network", 0, "bandwidth"], "300 Gbps", "network[0].bandwidth", ["Gbit or GB"]),
    (System, ["network", 0, "bandwidth"], 300, "network[0].bandwidth", ["bare number"]),
    (System, ["network", 0, "bandwidth"], 3e11, "network[0].bandwidth", ["bare number"]),
    (System, ["network", 0, "bandwidth"], "3e11", "network[0].bandwidth", ["without its unit"]),
    (System, ["network", 0, "bandwidth"], "3 mm/s", "network[0].bandwidth", ["wrong dimension"]),
    (System, ["network", 0, "bandwidth"], "300 B/s", "network[0].bandwidth", ["from 10 MB/s"]),
    (System, ["network", 0, "bandwidth"], "-300 GB/s", "network[0].bandwidth", ["-300"]),
    (System, ["network", 0, "bandwidth"], "nan GB/s", "network[0].bandwidth", ["nan"]),
    (System, ["network", 0, "bandwidth"], "inf GB/s", "network[0].bandwidth", ["inf"]),
    (System, ["network", 0, "bandwidth"], "", "network[0].bandwidth", ["TB/s"]),
    (System, ["network", 1, "latency"], "5 GHz", "network[1].latency", ["wrong dimension"]),
    (System, ["network", 1, "latency"], "5 hours", "network[1].latency", ["to 10 ms"]),
    (
        System,
        ["accelerator", "memory", 1, "capacity"],
        "80 Gb",
        "accelerator.memory[1].capacity",
        ["Gbit or GB"],
    ),
    (
        System,
        ["accelerator", "memory", 1, "capacity"],
        "80 gigs",
        "accelerator.memory[1].capacity",
        ["80 GB"],
    ),
    (System, ["accelerator", "memory", 1, "bandwidth"], "2 TB", "accelerator.memory[1].bandwidth", ["TB/s"]),
    (
        System,
        ["accelerator", "matrix", "bf16", "rate"],
        "312 TFLOP",
        "accelerator.matrix.bf16.rate",
        ["wrong dimension"],
    ),
    (
        System,
        ["accelerator", "matrix", "bf16", "rate"],
        "312",
        "accelerator.matrix.bf16.rate",
        ["without its unit"],
    ),
    (
        System,
        ["accelerator", "package", "die_area"],
        "826 mm",
        "accelerator.package.die_area",
        ["wrong dimension"],
    ),
    (
        System,
        ["accelerator", "package", "process", "wafer_price"],
        9346,
        "accelerator.package.process.wafer_price",
        ["$"],
    ),
    (
        System,
        ["accelerator", "package", "process", "wafer_price"],
        "€9346",
        "accelerator.package.process.wafer_price",
        ["$"],
    ),
    (System, ["prices", "utilization"], "150 %", "prices.utilization", ["150 %"]),
    (System, ["prices", "electricity"], "$0.1", "prices.electricity", ["wrong dimension"]),
    # Choices
    (Model, ["tied_embeddings"], "yes", "tied_embeddings", ["true or false"]),
    (Model, ["tied_embeddings"], 1, "tied_embeddings", ["true or false"]),
    (Model, ["tied_embeddings"], {"on": 0.5, "off": 0.6}, "tied_embeddings", ["add up to 1"]),
    (Model, ["tied_embeddings"], {"on": 2, "off": -1}, "tied_embeddings", ["add up to 1"]),
    (Model, ["tied_embeddings"], {"on": float("nan")}, "tied_embeddings", ["add up to 1"]),
    (Model, ["tied_embeddings"], {"maybe": 1}, "tied_embeddings", ["true or false"]),
    (Model, ["tied_embeddings"], [0.5, 0.5], "tied_embeddings", ["true or false"]),
    (
        Accelerator,
        ["package", "technology"],
        "interposr",
        "package.technology",
        ['did you mean "interposer"?'],
    ),
    (Accelerator, ["package", "technology"], 3.5, "package.technology", ["organic, interposer"]),
    # Keys
    (Model, ["hiden"], 4096, "hiden", ["unknown key", 'did you mean "hidden"?']),
    (Model, ["color"], "red", "color", ["unknown key", "known: name, hidden"]),
    (Model, [""], 1, "", ["unknown key"]),
    (Model, ["hidden"], DELETE, "hidden", ["no such key", "add hidden"]),
    (Model, ["layers"], DELETE, "layers", ["no such key"]),
    (Model, ["layers", 0, "gated"], DELETE, "layers[0].gated", ["no such key"]),
    (System, ["accelerator", "package", "process"], DELETE, "accelerator.package.process", ["no such key"]),
    (Accelerator, ["matrix", "bf16"], DELETE, "matrix.bf16", ["no such key"]),
    (Accelerator, ["matrix", "bf16"], "312 TFLOP/s", "matrix.bf16.efficiency", ["no such key"]),
    (Accelerator, ["matrix", "fp7"], "1 PFLOP/s", "matrix.fp7", ["unknown key", 'did you mean "fp8"?']),
    (Accelerator, ["memory", 0, "name"], DELETE, "memory[0].name", ["no such key"]),
    (Accelerator, ["memory", 0, "name"], "hbm", "memory[1].name", ["no other has"]),
    (Accelerator, ["memory", 0, "name"], "l1.5", "memory[0].name", ["without dots"]),
    (Accelerator, ["memory", 0, "name"], "", "memory[0].name", ["without dots"]),
    (Accelerator, ["memory", 0, "bandwith"], "1 TB/s", "memory[0].bandwith", ['did you mean "bandwidth"?']),
    # Optional parts
    (Model, ["layers", 0, "mixture"], 8, "layers[0].mixture", ["a table of Mixture keys"]),
    (Model, ["layers", 0, "mixture"], "mixtral-8x7b", "layers[0].mixture", ["a table of Mixture keys"]),
    (Model, ["layers", 0, "mixture"], [MIXTURE], "layers[0].mixture", ["a table of Mixture keys"]),
    (Model, ["layers", 0, "mixture"], {}, "layers[0].mixture.experts", ["no such key", "add experts"]),
    (
        Model,
        ["layers", 0, "mixture"],
        MIXTURE | {"experts": 0},
        "layers[0].mixture.experts",
        ["from 1 to 4,096"],
    ),
    (
        Model,
        ["layers", 0, "mixture"],
        MIXTURE | {"experts": 8.5},
        "layers[0].mixture.experts",
        ["a whole number"],
    ),
    (
        Model,
        ["layers", 0, "mixture"],
        MIXTURE | {"shared": 1},
        "layers[0].mixture.shared",
        ['did you mean "shared_ffn"?'],
    ),
    (
        Model,
        ["layers", 0, "latent"],
        LATENT | {"kv_rank": "wide"},
        "layers[0].latent.kv_rank",
        ["wide", "a number"],
    ),
    (Model, ["layers", 0, "latent"], True, "layers[0].latent", ["a table of Latent keys"]),
    (Model, ["layers", 0, "mixtur"], MIXTURE, "layers[0].mixtur", ['did you mean "mixture"?']),
    (
        Model,
        ["layers", 0, "kv_rank"],
        512,
        "layers[0].kv_rank",
        ["write latent = { query_rank = …, kv_rank = 512"],
    ),
    (
        Model,
        ["layers", 0, "experts"],
        8,
        "layers[0].experts",
        ["write mixture = { experts = 8, experts_per_token = … }"],
    ),
    # Structure
    (Model, ["layers"], {"count": 32}, "layers", ["array of tables"]),
    (Model, ["layers"], [], "layers", ["array of tables"]),
    (Model, ["layers"], [32], "layers[0]", ["table"]),
    (Model, ["layers"], "32", "layers", ["array of tables"]),
    (Model, ["layers"], ["a"], "layers[0]", ["table"]),
    (Model, ["layers"], [[MODEL["layers"][0]]], "layers[0]", ["table"]),
    (Model, ["name"], 7, "name", ["text"]),
    (System, ["accelerator"], 5, "accelerator", ["table"]),
    (System, ["accelerator"], [ACCELERATOR], "accelerator", ["table"]),
    (System, ["accelerator", "matrix"], "fast", "accelerator.matrix", ["table"]),
    (System, ["accelerator", "matrix"], [1], "accelerator.matrix", ["table"]),
    (System, ["network"], TIER, "network", ["array of tables"]),
    (System, ["prices"], True, "prices", ["table"]),
    # References
    (System, ["accelerator"], "a100-sxm4-80g", "accelerator", ["did you mean"]),
    (System, ["accelerator"], "A100-SXM4-80GB", "accelerator", ['did you mean "a100-sxm4-80gb"?']),
    (System, ["accelerator"], "quantum", "accelerator", ["known: ", "a100-sxm4-80gb"]),
    (System, ["accelerator"], "", "accelerator", ["known: "]),
    (System, ["accelerator"], "nowhere.toml", "accelerator", ["existing file"]),
    (System, ["accelerator"], "../", "accelerator", ["existing file"]),
    (System, ["accelerator"], "x" * 5000, "accelerator", ["accelerators"]),
    (System, ["accelerator"], "x" * 5000 + ".toml", "accelerator", ["existing file"]),
    (System, ["accelerator"], "a\x00b.toml", "accelerator", ["existing file"]),
    (System, ["accelerator"], "a\x00b", "accelerator", ["accelerators"]),
    (System, ["stack"], "megatron", "stack", ["did you mean"]),
    (Accelerator, ["package", "process"], "tsmc-n77", "package.process", ["did you mean"]),
]


@pytest.mark.parametrize(
    ("cls", "path", "value", "key", "words"),
    WRONG,
    ids=[f"{cls.__name__}-{'.'.join(map(str, path))}-{str(value)[:20]}" for cls, path, value, _, _ in WRONG],
)
def test_one_wrong_item(tmp_path, cls, path, value, key, words):
    error = _error(cls, _write(tmp_path, _edited(TABLES[cls], path, value)))
    assert error.key == key
    assert error.file.endswith("input.toml")
    for word in words:
        assert word in str(error)


def test_experts_beside_the_other_keys_of_layers(tmp_path):
    """As model files had them before mixtures were tables."""
    error = _error(Model, _write(tmp_path, MODEL | {"layers": [LAYERS | MIXTURE]}))
    assert error.key == "layers[0].experts"
    assert error.remedy == "write mixture = { experts = 8, experts_per_token = 2 }"


def test_an_error_in_a_referenced_file_names_that_file(tmp_path):
    (tmp_path / "chip.toml").write_text(_toml(_edited(ACCELERATOR, ["memory", 1, "capacity"], "80 Gb")))
    error = _error(System, _write(tmp_path, SYSTEM | {"accelerator": "chip.toml"}))
    assert error.file.endswith("chip.toml")
    assert error.key == "memory[1].capacity"


# What is wrong with a file -------------------------------------------------------------------------------------------

NOT_TOML = {
    "binary": b"\x89PNG\r\n\x1a\n\x00\xff\xfe",
    "latin 1": "hidden = 4096 # größe".encode("latin-1"),
    "utf 16": _toml(MODEL).encode("utf-16"),
    "empty": b"",
    "blank": b"  \n\n",
    "comment": b"# nothing\n",
    "nul": b"\x00" * 100,
    "duplicate key": _toml(MODEL).encode() + b"hidden = 1\n",
    "duplicate table": b"[layers]\n[layers]\n",
    "table over value": b"hidden = 1\n[hidden]\n",
    "unquoted text": b"hidden = wide\n",
    "unquoted unit": b"hidden = 5 us\n",
    "unclosed string": b'name = "gpt\n',
    "unclosed array": b"layers = [\n",
    "json": json.dumps(MODEL).encode(),
    "yaml": b"hidden: 4096\n",
    "python": b"hidden = 4096; vocabulary = 3\n",
    "a thousand arrays": b"hidden = " + b"[" * 100_000,
    "a thousand tables": b"hidden = " + b"{a=" * 100_000,
    "endless number": b"hidden = " + b"9" * 5000,
    "date": b"hidden = 2024-01-01\n",
    "time": b"hidden = 07:32:00\n",
}


@pytest.mark.parametrize("content", NOT_TOML.values(), ids=NOT_TOML.keys())
def test_what_is_not_a_config(tmp_path, content):
    path = tmp_path / "input.toml"
    path.write_bytes(content)
    assert "input.toml" in str(_error(Model, path))


def test_paths_that_are_no_files(tmp_path):
    directory = tmp_path / "directory.toml"
    directory.mkdir()
    for path in (directory, tmp_path, tmp_path / "missing.toml", tmp_path / "missing.json", "missing/"):
        assert str(path) in str(_error(Model, path))


def test_an_unreadable_file(tmp_path, monkeypatch):
    path = _write(tmp_path, MODEL)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert "Permission denied" in str(_error(Model, path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt3-175", "gpt3-1"),
        ("GPT3-175B", 'did you mean "gpt3-175b"?'),
        ("lama-2-7b", "llama-2-7b"),
        ("", "known: "),
        (".", "known: "),
    ],
)
def test_unknown_names_get_a_near_match(name, expected):
    error = _error(Model, name)
    assert error.file == "command line"
    assert expected in str(error)


def test_no_near_match_lists_all():
    assert did_you_mean("zzz", ["alpha", "beta"]) == "known: alpha, beta"
    assert did_you_mean("Alhpa", ["alpha", "beta"]) == 'did you mean "alpha"?'


@pytest.mark.parametrize(
    ("cls", "folder"), [(Accelerator, "accelerators"), (System, "systems"), (Model, "models")]
)
def test_truncated_files_load_or_say_why_not(tmp_path, cls, folder):
    """A cut may leave a whole file (a system without its last tier), but mostly it does not."""
    name = {"accelerators": "a100-sxm4-80gb", "systems": "dgx-a100", "models": "gpt3-175b"}[folder]
    content = (config_root() / folder / f"{name}.toml").read_bytes()
    errors, cuts = 0, range(0, len(content), max(1, len(content) // 150))
    for cut in cuts:
        path = tmp_path / "input.toml"
        path.write_bytes(content[:cut])
        try:
            load(cls, path)
        except ConfigError as error:
            _check(error)
            errors += 1
    assert errors > 0.6 * len(cuts)


# Random corruption: hypothesis takes a good table apart --------------------------------------------------------------

VALUES = st.one_of(
    st.none().map(lambda _: DELETE),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(
        [
            "-1 s",
            "5 GB",
            "5 Gb/s",
            "nan",
            "$",
            "%",
            "1/0",
            "80 GiB/s/s",
            "../..",
            "*.toml",
            "dgx-a100",
            "tsmc-n7",
        ]
    ),
    st.just([]),
    st.just({}),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(alphabet="abc", max_size=3), st.floats(), max_size=3),
)


def _paths(node, prefix=()):
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*prefix, key)
        yield from _paths(child, (*prefix, key))


PATHS = {cls: list(_paths(table)) for cls, table in TABLES.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_random_corruption_loads_or_says_why_not(tmp_path, data):
    cls = data.draw(st.sampled_from([Model, System, Accelerator]))
    path = list(data.draw(st.sampled_from(PATHS[cls])))
    if isinstance(path[-1], str) and data.draw(st.booleans()):
        path[-1] = data.draw(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=10))
        value = data.draw(VALUES.filter(lambda value: value is not DELETE))
    else:
        value = data.draw(VALUES)
    try:
        load(cls, _write(tmp_path, _edited(TABLES[cls], path, value)))
    except ConfigError as error:
        _check(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_random_bytes_load_or_say_why_not(tmp_path, data):
    content = bytearray(_toml(MODEL).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "input.toml"
    path.write_bytes(bytes(content))
    try:
        load(Model, path)
    except ConfigError as error:
        _check(error)


# Hugging Face --------------------------------------------------------------------------------------------------------

HUGGINGFACE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def _huggingface(folder: Path, config) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_huggingface_config_is_the_shipped_model(tmp_path, llama):
    model = dp.load_model(_huggingface(tmp_path, HUGGINGFACE))
    assert float(model.parameters) == float(llama.parameters) == 6_738_415_616  # published with the weights


def test_huggingface_gpt2(tmp_path):
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    assert float(dp.load_model(_huggingface(tmp_path, config)).parameters) == 124_439_808


def test_huggingface_grouped_queries_and_experts(tmp_path):
    config = HUGGINGFACE | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    model = dp.load_model(_huggingface(tmp_path, config | {"model_type": "mixtral"}))
    assert float(model.parameters) == pytest.approx(46_702_792_704, rel=1e-9)  # mistralai/Mixtral-8x7B


# The published files of models with several kinds of layers, without what has no part in the dimensions.
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
QWEN2_MOE = {
    "model_type": "qwen2_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "moe_intermediate_size": 2560,
    "num_attention_heads": 28,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "shared_expert_intermediate_size": 20480,
    "sliding_window": 65536,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_attention_heads": 48,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "vocab_size": 202048,
    },
    "tie_word_embeddings": False,
    "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408, "num_hidden_layers": 34},
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
FALCON_7B = {
    "model_type": "falcon",
    "alibi": False,
    "bias": False,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "num_kv_heads": 71,
    "parallel_attn": True,
    "vocab_size": 65024,
}
FALCON_40B = {
    "model_type": "falcon",
    "bias": False,
    "hidden_size": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
    "parallel_attn": True,
    "vocab_size": 65024,
}
GPT_NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "tie_word_embeddings": False,
    "vocab_size": 50432,
}
GPT_J = {
    "model_type": "gptj",
    "n_embd": 4096,
    "n_head": 16,
    "n_inner": None,
    "n_layer": 28,
    "n_positions": 2048,
    "tie_word_embeddings": False,
    "vocab_size": 50400,
}
BLOOM = {
    "model_type": "bloom",
    "n_embed": 4096,
    "n_layer": 30,
    "num_attention_heads": 32,
    "vocab_size": 250880,
}
OPT = {
    "model_type": "opt",
    "dropout": 0.1,
    "ffn_dim": 16384,
    "hidden_size": 4096,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 50272,
    "word_embed_proj_dim": 4096,
}
SHIPPED = {
    "deepseek-v3": DEEPSEEK_V3,
    "qwen2-57b-a14b": QWEN2_MOE,
    "mixtral-8x22b": MIXTRAL,
    "llama-4-maverick": MAVERICK,
    "gpt-oss-120b": GPT_OSS,
    "mistral-7b": MISTRAL,
    "qwen2-7b": QWEN2,
    "falcon-7b": FALCON_7B,
    "falcon-40b": FALCON_40B,
    "gpt-neox-20b": GPT_NEOX,
    "gpt-j-6b": GPT_J,
    "bloom-7b1": BLOOM,
    "opt-6.7b": OPT,
}


def _numbers(model: Model) -> dict[str, list[float]]:
    """Every input of a model by path."""
    return {path: np.asarray(value).tolist() for path, _, value in walk(model)}


@pytest.mark.parametrize("name", SHIPPED)
def test_huggingface_configs_are_the_shipped_models(tmp_path, name):
    """Kinds of layers, experts, latents, windows and biases: written by hand in configs/, found by the reader here."""
    assert _numbers(dp.load_model(_huggingface(tmp_path, SHIPPED[name]))) == _numbers(dp.load_model(name))


def _kinds(folder: Path, config) -> list[tuple[int, bool, int | None]]:
    """Of each kind of layers: how many, whether of experts, and the window."""
    kinds = dp.load_model(_huggingface(folder, config)).layers
    return [
        (int(kind.count), kind.mixture is not None, int(kind.window) if kind.window < 1e9 else None)
        for kind in kinds
    ]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (QWEN2_MOE | {"decoder_sparse_step": 2}, [(14, False, None), (14, True, None)]),
        (QWEN2_MOE | {"mlp_only_layers": [0, 27]}, [(2, False, None), (26, True, None)]),
        (
            QWEN2_MOE | {"use_sliding_window": True, "max_window_layers": 21},
            [(21, True, None), (7, True, 65536)],
        ),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, [(32, False, None), (29, True, None)]),  # of layers 4, 6, … 60
        (DEEPSEEK_V3 | {"moe_layer_freq": [0] * 6 + [1] * 55}, [(6, False, None), (55, True, None)]),
        (
            MAVERICK["text_config"] | {"interleave_moe_layer_step": 1},
            [(36, True, 8192), (12, True, None)],
        ),  # Scout
        (MAVERICK["text_config"] | {"moe_layers": []}, [(36, False, 8192), (12, False, None)]),
        (MAVERICK["text_config"] | {"no_rope_layers": [1, 0] * 24}, [(24, False, 8192), (24, True, None)]),
        (
            GPT_OSS | {"layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 6},
            [(30, True, 128), (6, True, None)],
        ),
        (MISTRAL | {"sliding_window": None}, [(32, False, None)]),
        (MISTRAL | {"model_type": "gemma2"}, [(16, False, 4096), (16, False, None)]),
        (
            MISTRAL | {"model_type": "gemma3_text", "num_hidden_layers": 34},
            [(29, False, 4096), (5, False, None)],
        ),
        (MISTRAL | {"sliding_window_pattern": 4}, [(24, False, 4096), (8, False, None)]),
        (QWEN2 | {"model_type": "qwen3"}, [(28, False, None)]),
    ],
)
def test_huggingface_kinds_of_layers(tmp_path, config, kinds):
    """Which layers are of which kind: the rules of the families' own code (transformers, models/*/configuration_*.py)."""
    assert _kinds(tmp_path, config) == kinds


@pytest.mark.parametrize(
    ("config", "switch", "on"),
    [
        (HUGGINGFACE, "qkv_biases", False),
        (HUGGINGFACE | {"attention_bias": True}, "qkv_biases", True),
        (QWEN2, "qkv_biases", True),
        (QWEN2 | {"model_type": "qwen3", "attention_bias": False}, "qkv_biases", False),
        (GPT_NEOX, "qkv_biases", False),  # all layers have biases
        (GPT_NEOX | {"use_parallel_residual": False}, "parallel", False),
        (FALCON_40B | {"parallel_attn": False}, "parallel", True),
        (FALCON_7B | {"parallel_attn": False}, "parallel", False),
        (FALCON_7B | {"bias": True}, "biases", True),
        (HUGGINGFACE, "parallel", False),
        (HUGGINGFACE | {"model_type": "cohere"}, "parallel", True),
        (OPT, "dropout", True),
        (OPT | {"dropout": 0.0}, "dropout", False),
    ],
)
def test_huggingface_switches(tmp_path, config, switch, on):
    (kind,) = dp.load_model(_huggingface(tmp_path, config)).layers
    assert getattr(kind, switch).tolist() == [not on, on]


def test_huggingface_mpt(tmp_path):
    """The released MPT-30B: linear position biases, no others."""
    config = {
        "model_type": "mpt",
        "d_model": 7168,
        "n_heads": 64,
        "n_layers": 48,
        "expansion_ratio": 4,
        "max_seq_len": 8192,
    }
    config |= {"vocab_size": 50432, "no_bias": True, "learned_pos_emb": True, "attn_config": {"alibi": True}}
    model = dp.load_model(_huggingface(tmp_path, config))
    norms = (2 * 48 + 1) * 7168
    assert float(model.parameters) == 50432 * 7168 + 48 * 12 * 7168**2 + norms
    learned = dp.load_model(_huggingface(tmp_path, config | {"attn_config": {"alibi": False}}))
    assert float(learned.parameters - model.parameters) == 8192 * 7168


BAD_HUGGINGFACE = {
    "encoder-decoder": (HUGGINGFACE | {"is_encoder_decoder": True}, "decoder-only"),
    "t5": ({"model_type": "t5", "d_model": 512}, "decoder-only"),
    "bert": (HUGGINGFACE | {"model_type": "bert"}, "decoder-only"),
    "state space": ({"model_type": "mamba"}, "decoder-only"),
    "latent attention without its dimensions": (HUGGINGFACE | {"kv_lora_rank": 512}, "qk_rope_head_dim"),
    "text rank": (DEEPSEEK_V3 | {"kv_lora_rank": "512"}, '"512"'),
    "text rotary dimension": (DEEPSEEK_V3 | {"qk_rope_head_dim": [64]}, "qk_rope_head_dim"),
    "no experts per token": (
        {k: v for k, v in MIXTRAL.items() if k != "num_experts_per_tok"},
        "num_experts_per_tok",
    ),
    "text dense layers": (DEEPSEEK_V3 | {"first_k_dense_replace": "three"}, "first_k_dense_replace"),
    "real sparse step": (QWEN2_MOE | {"decoder_sparse_step": 1.5}, "decoder_sparse_step"),
    "text shared experts": (DEEPSEEK_V3 | {"n_shared_experts": "one"}, "n_shared_experts"),
    "text window": (MISTRAL | {"sliding_window": "wide"}, "sliding_window"),
    "real predicted tokens": (DEEPSEEK_V3 | {"num_nextn_predict_layers": 1.5}, "mtp_layers"),
    "too few types of layers": (GPT_OSS | {"layer_types": ["full_attention"]}, "each of the 36 layers"),
    "linear attention": (GPT_OSS | {"layer_types": ["linear_attention"] * 36}, "linear_attention"),
    "numbers for types": (GPT_OSS | {"layer_types": [1] * 36}, "full_attention"),
    "kimi linear": (DEEPSEEK_V3 | {"linear_attn_config": {"head_dim": 128}}, "linear_attn_config"),
    "qwen3-next": (QWEN2_MOE | {"full_attention_interval": 4}, "linear attention"),
    "sparse attention": (DEEPSEEK_V3 | {"index_topk": 2048}, "index_topk"),
    "hybrid": (HUGGINGFACE | {"hybrid_override_pattern": "M-M*"}, "state-space"),
    "dbrx": (
        {"model_type": "dbrx", "d_model": 6144, "ffn_config": {"moe_num_experts": 16}},
        "moe_num_experts",
    ),
    "opt-350m": (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    "image classifier": ({"architectures": ["ResNet"], "num_labels": 1000}, "hidden_size"),
    "no hidden": ({k: v for k, v in HUGGINGFACE.items() if k != "hidden_size"}, "hidden_size"),
    "no layers": ({k: v for k, v in HUGGINGFACE.items() if k != "num_hidden_layers"}, "num_hidden_layers"),
    "no heads": ({k: v for k, v in HUGGINGFACE.items() if k != "num_attention_heads"}, "num_attention_heads"),
    "no vocabulary": ({k: v for k, v in HUGGINGFACE.items() if k != "vocab_size"}, "vocab_size"),
    "text dimension": (HUGGINGFACE | {"hidden_size": "4096 wide"}, "4096 wide"),
    "null dimension": (HUGGINGFACE | {"hidden_size": None}, "hidden"),
    "list dimension": (HUGGINGFACE | {"hidden_size": [4096]}, "[4096]"),
    "zero heads": (HUGGINGFACE | {"num_attention_heads": 0}, "heads"),
    "negative layers": (HUGGINGFACE | {"num_hidden_layers": -1}, "-1"),
    "nan vocabulary": (HUGGINGFACE | {"vocab_size": float("nan")}, "NaN"),
    "list experts": (MIXTRAL | {"num_local_experts": [8]}, "[8]"),
    "text experts": (MIXTRAL | {"num_local_experts": "8 of them"}, "8 of them"),
    "huge": (HUGGINGFACE | {"hidden_size": 10**400}, "hidden"),
    "list": ([HUGGINGFACE], "object"),
    "number": ("7", "object"),
    "null": ("null", "object"),
    "empty object": ({}, "hidden_size"),
    "empty": ("", "JSON"),
    "truncated": (json.dumps(HUGGINGFACE)[:40], "JSON"),
    "toml": (_toml(MODEL), "JSON"),
    "deep": ("[" * 100_000, "JSON"),
    "endless number": ('{"hidden_size": ' + "9" * 5000 + "}", "JSON"),
}


@pytest.mark.parametrize(("config", "word"), BAD_HUGGINGFACE.values(), ids=BAD_HUGGINGFACE.keys())
def test_what_is_no_decoder_transformer(tmp_path, config, word):
    error = _error(Model, _huggingface(tmp_path, config))
    assert error.file.endswith("config.json")
    assert word in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.sampled_from([HUGGINGFACE, DEEPSEEK_V3, QWEN2_MOE, MAVERICK["text_config"], GPT_OSS, FALCON_40B, OPT]),
    st.data(),
)
def test_random_huggingface_corruption(tmp_path, config, data):
    key, value = data.draw(st.sampled_from(sorted(config))), data.draw(VALUES)
    try:
        load(Model, _huggingface(tmp_path, _edited(config, [key], value)))
    except ConfigError as error:
        _check(error)


# The command line's assignments, and what must fit together ----------------------------------------------------------


def test_override_reaches_into_optional_parts(tmp_path):
    model = load(Model, _write(tmp_path, MIXED))
    changed = dp.override(model, {"layers.1.mixture.experts": "16", "layers.1.latent.kv_rank": 256})
    assert float(changed.layers[1].mixture.experts) == 16
    assert float(changed.layers[1].latent.kv_rank) == 256
    assert changed.layers[0].mixture is None
    assert float(model.layers[1].mixture.experts) == 8


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("layers.0.mixture.experts", ["layers.0.mixture has no parts"]),
        ("layers.0.mixture", ["a part that is not there"]),
        ("layers.1.mixture", ["go on with one of: experts, experts_per_token, shared_ffn"]),
        ("layers.1.mixture.expert", ['did you mean "experts"?']),
        ("layers.1.experts", ["known: "]),
    ],
)
def test_override_refuses_parts_that_are_not_there(tmp_path, path, words):
    model = load(Model, _write(tmp_path, MIXED))
    with pytest.raises(ConfigError) as caught:
        dp.override(model, {path: "8"})
    _check(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_override_changes_inputs(system):
    changed = dp.override(
        system, {"accelerator.memory.hbm.bandwidth": "4 TB/s", "accelerator.compute_units": "132"}
    )
    assert float(changed.accelerator.device_memory.bandwidth) == 4e12
    assert float(changed.accelerator.compute_units) == 132
    assert dp.override(system, {}) is system


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("accelerator.memory.hmb.bandwidth", "4 TB/s", ['did you mean "hbm"?']),
        ("acelerator.vector", "4 TFLOP/s", ['did you mean "accelerator"?']),
        ("accelerator.vector.peak", "4 TFLOP/s", ["accelerator.vector has no parts"]),
        ("accelerator.memory.hbm", "4 TB/s", ["capacity"]),
        ("accelerator.memory", "4 TB/s", ["hbm"]),
        ("accelerator.name", "mine", ["name"]),
        ("", "1", ["known: "]),
        ("accelerator.memory.hbm.bandwidth", "4", ["bare number"]),
        ("accelerator.memory.hbm.bandwidth", "4 TB", ["wrong dimension"]),
        ("accelerator.memory.hbm.bandwidth", "fast", ["fast"]),
        ("accelerator.memory.hbm.bandwidth", "", ["TB/s"]),
        ("accelerator.package.technology", "organc", ['did you mean "organic"?']),
        ("n_devices", "-8", ["-8"]),
        ("n_devices", "9" * 5000, ["Infinity"]),
        ("n_devices", "eight", ["eight"]),
    ],
)
def test_override_refuses(system, path, value, words):
    with pytest.raises(ConfigError) as caught:
        dp.override(system, {path: value})
    _check(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("n_devices", [0, -8, float("nan"), 1e9])
def test_scaling_out_is_checked(n_devices):
    with pytest.raises(ConfigError, match="n_devices") as caught:
        dp.load_system("dgx-a100", n_devices=n_devices)
    _check(caught.value)


@pytest.mark.parametrize(
    ("table", "phase", "key", "words"),
    [
        (
            {"tp": 7, "pp": 1, "dp": 1},
            "training",
            "strategy.tp",
            ["7 for 96 attention heads", "use one of 1, 2, 3, 4, 6, 8"],
        ),
        ({"tp": 1, "pp": 97, "dp": 1}, "training", "strategy.pp", ["97 stages", "96 layers"]),
        (
            {"pp": 32, "virtual_stages": 4},
            "training",
            "strategy.pp",
            ["32 stages of 4 chunks", "use at most 96"],
        ),
        ({"tp": 1.5, "dp": 2}, "training", "strategy.tp", ["1.5", "whole numbers"]),
        ({"tp": 8, "virtual_stages": 2}, "training", "strategy.virtual_stages", ["one pipeline stage"]),
        (
            {"tp": 8, "dp": 4, "global_batch": 6},
            "training",
            "strategy.global_batch",
            ["multiple of dp·micro_batch", "use 8"],
        ),
        (
            {"tp": 8, "dp": 4, "micro_batch": 2, "global_batch": 12},
            "training",
            "strategy.global_batch",
            ["4·2", "use 16"],
        ),
        ({"tp": 8, "dp": 4, "global_batch": 2}, "training", "strategy.global_batch", ["use 4"]),
        (
            {"pp": 8, "virtual_stages": 2, "global_batch": 12},
            "training",
            "strategy.virtual_stages",
            ["12 micro-batches", "multiple of pp"],
        ),
        (
            {"dp": 4, "global_batch": 2},
            "generate",
            "strategy.global_batch",
            ["at least one sequence per replica"],
        ),
    ],
)
def test_combinations_that_cannot_be(gpt, table, phase, key, words):
    strategy = replace(dp.load_strategy({}), table)
    system = dp.load_system("dgx-a100", n_devices=float(strategy.devices))
    with pytest.raises(ConfigError) as caught:
        dp.check(gpt, system, strategy, phase)
    _check(caught.value)
    assert key in caught.value.key
    for word in words:
        assert word in str(caught.value)


def test_devices_must_be_the_product_of_the_degrees(gpt):
    system = dp.load_system("dgx-a100", n_devices=64)
    with pytest.raises(ConfigError, match=r"tp·pp·dp·cp = 8·4·1·1 = 32") as caught:
        dp.check(gpt, system, dp.load_strategy({"tp": 8, "pp": 4, "dp": 1}))
    assert "set the devices to 32" in caught.value.remedy


def test_combinations_that_can_be(gpt, system, strategy):
    dp.check(gpt, system, strategy)
    dp.check(gpt, system, dp.load_strategy({"tp": 8, "dp": 8, "global_batch": 8}), phase="generate")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"tp": 0}, "tp"),
        ({"tp": "eight"}, "tp"),
        ({"tpp": 8}, "tpp"),
        ({"recompute": "selectiv"}, "recompute"),
        ({"zero": 4}, "zero"),
        ({"precision": "bf17"}, "precision"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel"),
        ({"optimizer_bytes": 12}, "optimizer_bytes"),
    ],
)
def test_a_wrong_strategy(table, key):
    with pytest.raises(ConfigError) as caught:
        dp.load_strategy(table)
    _check(caught.value)
    assert caught.value.key == key


def test_read_toml_gives_the_table(tmp_path):
    assert read_toml(_write(tmp_path, MODEL)) == MODEL


@pytest.mark.parametrize(
    ("path", "value", "words"), [("kv_heads", 7.0, "divisor"), ("mixture.experts_per_token", 9.0, "experts")]
)
def test_impossible_layers_are_refused(path, value, words):
    system = dp.load_system("dgx-a100")
    model = replace(dp.load_model("mixtral-8x7b"), {f"layers.0.{path}": value})
    with pytest.raises(ConfigError, match=words):
        dp.check(model, system, dp.load_strategy({"tp": 8, "global_batch": 8}, n_devices=8))


def test_positions_of_more_dimensions_than_a_head_has_are_refused():
    model = replace(dp.load_model("deepseek-v3"), {"layers.1.latent.rotary_dim": 256.0})
    with pytest.raises(ConfigError, match=r"rotary_dim: found 256 of a head's dimensions.*use at most 192"):
        dp.check(
            model, dp.load_system("dgx-a100"), dp.load_strategy({"tp": 8, "global_batch": 8}, n_devices=8)
        )


def test_whole_quantities_are_whole_in_files(tmp_path):
    """Real degrees and counts are the estimator's business; a file describes what exists."""
    text = (config_root() / "models/llama-2-7b.toml").read_text().replace("heads = 32", "heads = 32.5", 1)
    (tmp_path / "half.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"heads.*whole number"):
        dp.load_model(tmp_path / "half.toml")

"""A single wrong item of a file gives one line with file, key, found, expected and remedy."""

import pytest
from config_tables import (
    ACCELERATOR,
    DELETE,
    LATENT,
    LAYERS,
    MIXTURE,
    MODEL,
    SYSTEM,
    TABLES,
    TIER,
    edited,
    load_error,
    toml,
    write,
)

from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.workload.model import Model

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
        ["accelerator", "package", "dies", 0, "area"],
        "826 mm",
        "accelerator.package.dies[0].area",
        ["wrong dimension"],
    ),
    (
        System,
        ["accelerator", "package", "dies", 0, "process", "wafer_price"],
        9346,
        "accelerator.package.dies[0].process.wafer_price",
        ["$"],
    ),
    (
        System,
        ["accelerator", "package", "dies", 0, "process", "wafer_price"],
        "€9346",
        "accelerator.package.dies[0].process.wafer_price",
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
        ["package", "carrier"],
        "interposr",
        "package.carrier",
        ['did you mean "interposer"?'],
    ),
    (Accelerator, ["package", "carrier"], 3.5, "package.carrier", ["organic, fan_out, interposer"]),
    # Keys
    (Model, ["hiden"], 4096, "hiden", ["unknown key", 'did you mean "hidden"?']),
    (Model, ["color"], "red", "color", ["unknown key", "known: name, hidden"]),
    (Model, [""], 1, "", ["unknown key"]),
    (Model, ["hidden"], DELETE, "hidden", ["no such key", "add hidden"]),
    (Model, ["layers"], DELETE, "layers", ["no such key"]),
    (Model, ["layers", 0, "gated"], DELETE, "layers[0].gated", ["no such key"]),
    (
        System,
        ["accelerator", "package", "dies", 0, "process"],
        DELETE,
        "accelerator.package.dies[0].process",
        ["no such key"],
    ),
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
    (System, ["accelerator"], "quantum", "accelerator", ["see diffperf list accelerators"]),
    (System, ["accelerator"], "", "accelerator", ["see diffperf list accelerators"]),
    (System, ["accelerator"], "nowhere.toml", "accelerator", ["existing file"]),
    (System, ["accelerator"], "../", "accelerator", ["existing file"]),
    (System, ["accelerator"], "x" * 5000, "accelerator", ["accelerators"]),
    (System, ["accelerator"], "x" * 5000 + ".toml", "accelerator", ["existing file"]),
    (System, ["accelerator"], "a\x00b.toml", "accelerator", ["existing file"]),
    (System, ["accelerator"], "a\x00b", "accelerator", ["accelerators"]),
    (System, ["stack"], "megatron", "stack", ["did you mean"]),
    (Accelerator, ["package", "dies", 0, "process"], "tsmc-n77", "package.dies[0].process", ["did you mean"]),
]


@pytest.mark.parametrize(
    ("cls", "path", "value", "key", "words"),
    WRONG,
    ids=[f"{cls.__name__}-{'.'.join(map(str, path))}-{str(value)[:20]}" for cls, path, value, _, _ in WRONG],
)
def test_one_wrong_item(tmp_path, cls, path, value, key, words):
    error = load_error(cls, write(tmp_path, edited(TABLES[cls], path, value)))
    assert error.key == key
    assert error.file.endswith("input.toml")
    for word in words:
        assert word in str(error)


def test_experts_beside_the_other_keys_of_layers(tmp_path):
    """As model files had them before mixtures were tables."""
    error = load_error(Model, write(tmp_path, MODEL | {"layers": [LAYERS | MIXTURE]}))
    assert error.key == "layers[0].experts"
    assert error.remedy == "write mixture = { experts = 8, experts_per_token = 2 }"


def test_an_error_in_a_referenced_file_names_that_file(tmp_path):
    (tmp_path / "chip.toml").write_text(toml(edited(ACCELERATOR, ["memory", 1, "capacity"], "80 Gb")))
    error = load_error(System, write(tmp_path, SYSTEM | {"accelerator": "chip.toml"}))
    assert error.file.endswith("chip.toml")
    assert error.key == "memory[1].capacity"

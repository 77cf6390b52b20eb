"""Tables of good configs, how tests spoil and write them, and what every error of loading has to say."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import check_error
from hypothesis import strategies as st

from diffperf.errors import ConfigError
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import load
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
LAYER = {"name": "interposer", "process": PROCESS, "area_factor": 1.1, "bonding_yield": 0.98}
BOND = {"name": "hybrid", "price": "0.2 USD/mm^2", "bonding_yield": 0.99}
LEVEL = {"capacity": "20 MB", "bandwidth": "19 TB/s", "latency": "30 ns", "energy": "1 pJ/byte"}
ACCELERATOR = {
    "compute_units": 108,
    "vector": "19.5 TFLOP/s",
    "compute_energy": "0.6 pJ/FLOP",
    "static_power": "90 W",
    "active_power": "160 W",
    "power_limit": "400 W",
    "kernel_latency": "3 us",
    "attention": {"efficiency": 0.62},
    "matrix": {"fp32": "19.5 TFLOP/s", "bf16": {"rate": "312 TFLOP/s", "efficiency": 0.76}},
    "memory": [
        LEVEL | {"name": "smem"},
        LEVEL | {"name": "hbm", "capacity": "80 GiB", "bandwidth": "2 TB/s"},
    ],
    "package": {
        "packaging": {
            "name": "organic",
            "substrate_price": "0.005 USD/mm^2",
            "c4_bump_price": "0.005 USD/mm^2",
            "micro_bump_price": "0.01 USD/mm^2",
            "organic_bonding_yield": 0.99,
            "package_area_factor": 4,
            "interposer": LAYER | {"bonding_yield": "95 %"},
            "fan_out": LAYER,
            "bridge": LAYER,
            "micro_bumps": BOND,
            "hybrid_bonds": BOND,
        },
        "carrier": "interposer",
        "dies": [{"name": "compute", "process": PROCESS, "count": 1, "area": "826 mm^2"}],
        "memory_stacks": 5,
        "stack_area": "110 mm^2",
        "memory_price": "15 USD/GB",
        "board_price": "$300",
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
        "lifetime": "4 years",
        "utilization": "80 %",
    },
    "n_devices": 8,
}
TABLES = {Model: MIXED, System: SYSTEM, Accelerator: ACCELERATOR}


def toml(value: Any, top: bool = True) -> str:
    """A table as TOML, nested ones inline."""
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key))} = {toml(item, top=False)}" for key, item in value.items()]
        return "\n".join(items) + "\n" if top else "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item, top=False) for item in value) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def edited(table: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
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


def load_error(cls: type, path: str | Path) -> ConfigError:
    """The error of loading a file, after checking that it says all it should in one line."""
    with pytest.raises(ConfigError) as caught:
        load(cls, path)
    error = caught.value
    check_error(error)
    return error


def write(folder: Path, table: str | dict[str, Any]) -> Path:
    """The path of a file input.toml in the folder that holds a table, or a text as it is."""
    path = folder / "input.toml"
    path.write_text(table if isinstance(table, str) else toml(table), encoding="utf-8")
    return path


# Values that hypothesis puts in place of a good one.
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

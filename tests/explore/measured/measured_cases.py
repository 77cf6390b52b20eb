"""Small tables for the tests of measured rows, written row by row or changed from published ones."""

import csv
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
TRAINING, INFERENCE = DATA / "korthikanti_training.csv", DATA / "nvidia_llama2_inference.csv"
SPARSE = {"experts": 8, "experts_per_token": 2, "expert_ffn": 4096, "shared_experts": 1, "dense_layers": 1}


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """A table of some rows, whose columns are the keys of the first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def changed(source: Path, target: Path, *changes: dict[str, object]) -> Path:
    """The first row of a table once for each of some changes of its cells."""
    with source.open(encoding="utf-8", newline="") as file:
        first = next(csv.DictReader(file))
    return write(target, [first | {"id": f"row-{i}"} | change for i, change in enumerate(changes)])


def gemm(**cells: object) -> dict[str, object]:
    """The cells of one GEMM in bf16, changed."""
    size = {"dtype": "bf16", "m": 4096, "n": 4096, "k": 4096, "latency_s": 2.5e-4}
    return {"id": "a", "hardware": "h100-sxm5-80gb", **size, **cells}


def all_reduce(**cells: object) -> dict[str, object]:
    """The cells of one all-reduce of 256 MiB over two nodes, changed."""
    size = {"n_devices": 16, "devices_per_node": 8, "collective": "all_reduce", "bytes": 2**28}
    return {"id": "a", "hardware": "h100-sxm5-80gb", "latency_s": 1e-3, **size, **cells}

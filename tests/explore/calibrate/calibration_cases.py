"""Measurements made up by the estimator itself, whose parameters and noise are therefore known."""

import csv
from pathlib import Path

import numpy as np

from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.table import read_measurements
from diffperf.load import load_system
from diffperf.load.calibration import Calibration
from diffperf.quantity import locate, numeric

HARDWARE, SYSTEM = "h100-sxm5-80gb", "dgx-h100"
SHAPES = [(n, k) for n in (128, 512, 1536, 4096, 6144, 28672) for k in (256, 1024, 4096, 5120, 16384)]
NOISE = 0.04


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def gemms(formats: tuple[str, ...] = ("bf16", "fp8")) -> list[dict[str, object]]:
    cells = [(dtype, m, n, k) for dtype in formats for n, k in SHAPES for m in (1, 16, 300, 2048, 8192)]
    names = ("dtype", "m", "n", "k")
    return [
        {"id": i, "hardware": HARDWARE, **dict(zip(names, cell, strict=True)), "latency_s": 1}
        for i, cell in enumerate(cells)
    ]


def truth(seed: int = 1) -> dict[str, float]:
    """Values of the calibratable parameters drawn from their priors, within their ranges."""
    rng, values = np.random.default_rng(seed), {}
    for path, (declared, value) in numeric(load_system(SYSTEM, calibration="none")).items():
        if declared.calibratable:
            drawn = float(value) * np.exp(declared.prior_spread * rng.standard_normal())
            values[path] = float(np.clip(drawn, declared.bounds[0] * 1.1, declared.bounds[1] * 0.9))
    return values


def made_of(values: dict[str, float]) -> Calibration:
    """A calibration that says these values for certain."""
    system = load_system(SYSTEM, calibration="none")
    texts = {path: f"{value!r} {locate(system, path)[1].unit}".strip() for path, value in values.items()}
    texts = {path: float(text) if " " not in text else text for path, text in texts.items()}
    return Calibration(
        name="true",
        file="true.toml",
        hardware=HARDWARE,
        system=SYSTEM,
        parts={},
        values=texts,
        parameters=tuple(values),
        covariance=np.zeros((len(values),) * 2),
        spread={"gemm": 0.0},
    )


def measured(
    folder: Path, rows: list[dict[str, object]], values: dict[str, float], noise: np.ndarray | float
) -> Path:
    """A table of what the estimator says with these values, times e^noise."""
    blank = write(folder / "gemm.csv", rows)
    predictions = predict("gemm", read_measurements(blank).rows, Platforms(calibration=made_of(values)))
    times = np.array([row.values["latency_s"] for row in predictions]) * np.exp(noise)
    return write(
        blank, [row | {"latency_s": repr(float(time))} for row, time in zip(rows, times, strict=True)]
    )


def noise(count: int, seed: int = 2) -> np.ndarray:
    return NOISE * np.random.default_rng(seed).standard_normal(count)

"""Which columns of a row a calibration is fitted to."""

import csv
from pathlib import Path

import pytest

from diffperf.explore.calibrate.observations import fitted_columns
from diffperf.explore.measured.predictions import Prediction
from diffperf.explore.measured.table import read_measurements

INFERENCE = Path(__file__).parents[2] / "data" / "nvidia_llama2_inference.csv"
TIMES = {"latency_s": 9.0, "ttft_s": 0.5, "tpot_s": 0.02}


@pytest.mark.parametrize(
    ("measured", "predicted", "fitted"),
    [
        (("latency_s", "ttft_s", "tpot_s"), TIMES, ["latency_s"]),
        (("ttft_s", "tpot_s"), TIMES, ["ttft_s", "tpot_s"]),
        (("tpot_s",), TIMES, ["tpot_s"]),
        (("ttft_s", "tpot_s"), {"ttft_s": 0.5}, ["ttft_s"]),
        (("throughput_tokens_per_s",), TIMES | {"throughput_tokens_per_s": 9.0}, ["throughput_tokens_per_s"]),
        (("latency_s",), {"ttft_s": 0.5}, []),
    ],
)
def test_times_to_first_token_and_per_token_both(tmp_path, measured, predicted, fitted):
    with INFERENCE.open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))
    row |= dict.fromkeys((*TIMES, "throughput_tokens_per_s"), "") | dict.fromkeys(measured, "1")
    path = tmp_path / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow(row)
    (read,) = read_measurements(path).rows
    assert fitted_columns(read, Prediction(values=predicted)) == fitted

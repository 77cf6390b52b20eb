"""The study of ownership: its parts, its elasticities by finite differences, and its published figures."""

import csv

import jax
import pytest
from helpers import study_module

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.quantity import locate, real, replace


@pytest.fixture(scope="module")
def study():
    return study_module("ownership", "run")


def test_the_elasticity_of_an_hour_is_its_finite_difference(study):
    system = replace(dp.load_system("dgx-h100"), {"prices.utilization": real(1.0)})
    elasticities = jax.device_get(study.priced(system)[2])
    total = jax.jit(lambda values: study.hour_of(replace(system, values))[0].total)
    step = 1e-4
    for name, path in study.INPUTS.items():
        value = float(locate(system, path)[0])
        up, down = (float(total({path: real(value * (1 + sign * step))})) for sign in (1, -1))
        difference = (up - down) / (up + down) / step
        assert float(elasticities[name]) == pytest.approx(difference, abs=2e-3), name


def test_parts_are_the_whole_and_stand_between_published_figures(study, tmp_path):
    """The place is 0 at the hyperscaler's figure, 1 at the smaller cloud's; unknown hardware is left out."""
    row = study.row_of("h100-sxm5-80gb")
    bought = row["accelerator"] + row["host"] + row["network"] + row["racks"]
    running = row["interest"] + row["repair"] + row["facility"] + row["electricity"]
    assert bought + running == pytest.approx(row["hour"], rel=1e-6)
    assert sum(row[part] for part in study.PARTS) == pytest.approx(row["hour"], rel=1e-6), "all are shown"
    cases = tmp_path / "published.csv"
    with cases.open("w", newline="") as file:
        table = csv.writer(file)
        figures = ["tco_usd_per_gpu_hour", "tco_neocloud_usd_per_gpu_hour"]
        table.writerow(["hardware", *figures, "source", "date"])
        table.writerow(["h100-sxm5-80gb", row["hour"] - 0.3, row["hour"] + 0.1, "somebody", "2025"])
        table.writerow(["an-abacus", 1.0, 2.0, "somebody", "1200"])
    (case,) = study.compared(cases, [row])
    assert case["place"] == pytest.approx(0.75)


def test_a_table_without_a_column_is_refused_in_a_line(study, tmp_path):
    cases = tmp_path / "published.csv"
    cases.write_text("hardware,date\nh100-sxm5-80gb,2025\n")
    with pytest.raises(ConfigError, match="no column tco_usd_per_gpu_hour"):
        study.compared(cases, [])

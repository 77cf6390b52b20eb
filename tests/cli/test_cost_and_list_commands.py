"""diffperf cost and diffperf list."""

import json

import pytest

from diffperf.load import FOLDERS, available


def test_cost(run, tmp_path):
    result = run("cost dgx-a100 --devices 16 --set accelerator_markup=2 --plot cost.png --json cost.json")
    assert result.exit_code == 0, result.stderr
    data = json.loads((tmp_path / "cost.json").read_text())
    assert "purchase price" in result.stdout
    assert data["per_hour"]["total"] == pytest.approx(
        data["per_hour"]["depreciation"] + data["per_hour"]["electricity"]
    )
    assert data["cost"]["accelerator"]["total"] == pytest.approx(data["cost"]["manufacturing"])
    prices, network = data["system"]["prices"], data["system"]["network"]
    each = (
        2 * data["cost"]["manufacturing"] + prices["host"] + sum(tier["price"] for tier in network.values())
    )
    assert data["cost"]["capital"] == pytest.approx(16 * each)


def test_list_names_every_config(run, answer):
    everything = answer("list --json -")
    assert set(everything) == {*FOLDERS.values(), "problems", "spaces"}
    for folder, configs in everything.items():
        assert sorted(configs) == available(folder)
        assert all(line and "\n" not in line for line in configs.values())
    models = run("list models")
    assert "174.6 B parameters" in models.stdout
    assert "accelerators" not in models.stdout

"""diffperf cost and diffperf list."""

import json

import pytest

import diffperf as dp
from diffperf.load import FOLDERS, available


def test_cost(run, tmp_path):
    result = run("cost dgx-a100 --devices 16 --set accelerator_markup=2 --plot cost.png --json cost.json")
    assert result.exit_code == 0, result.stderr
    data = json.loads((tmp_path / "cost.json").read_text())
    assert "purchase price" in result.stdout
    parts = {name: usd for name, usd in data["per_hour"].items() if name != "total"}
    assert set(parts) == {"depreciation", "interest", "repair", "facility", "electricity"}
    assert data["per_hour"]["total"] == pytest.approx(sum(parts.values()))
    assert data["per_hour"]["total"] == pytest.approx(data["cost"]["run"])
    assert "CO2e of a device" in result.stdout
    assert data["cost"]["accelerator"]["total"] == pytest.approx(data["cost"]["manufacturing"])
    prices = data["system"]["prices"]
    # NVLink, and half an adapter, port and link of NDR InfiniBand with half their 29 W.
    network = 1000 + (1364 + 562.5 + 1280) / 2
    each = 2 * data["cost"]["manufacturing"] + prices["host"] + network
    node, host = data["cost"]["node"], data["system"]["host"]
    assert node["accelerators"] == data["system"]["accelerator"]["power_limit"]
    assert "power of fans" in result.stdout
    # At full load of the host's processors, whose other half of the way from idle is not in the hour's power.
    busier = (1 - host["processor_load"]) * (host["processors_busy"] - host["processors_idle"])
    watts = node["total"] + busier * (1 + host["fans"]) / host["supply_efficiency"] + 29 / 2
    tiers = data["network"]
    assert [tier["tier"] for tier in tiers] == ["nvlink", "infiniband"]
    assert sum(tier["price"] for tier in tiers) == pytest.approx(network)
    assert sum(tier["switch_area"] for tier in tiers) == pytest.approx(data["cost"]["switch_area"])
    assert data["cost"]["capital"] == pytest.approx(16 * (each + prices["rack"] * watts))


def test_cost_divides_the_design_over_a_volume(run, answer):
    """An H100's die on N4: 80 % of $542 million for 300 mm² by area, 20 % fixed (Chiplet Actuary)."""
    small, large = (answer(f"cost dgx-h100 --volume {n} --json -")["design"] for n in (10**5, 10**6))
    assert small["total"] == pytest.approx(10 * large["total"], rel=1e-6)
    die = 0.8 * 542e6 / 300 * 814 + 0.2 * 542e6
    assert large["modules"] + large["chips"] + large["masks"] == pytest.approx(die / 1e6, rel=1e-4)
    assert "Its design, divided over 1,000 accelerators" in run("cost dgx-h100 --volume 1000").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--volume 0", ["volume", "found 0", "from 1 to"]),
        ("--volume many", ["volume", "many"]),
        ("--set package.dies.compute.area=900mm^2", ["a die of 900 mm^2", "at most 858 mm^2", "stitched"]),
        ("--set package.dies.compute.spare_units=200", ["200 spare of 144"]),
        ("--set package.memory_stacks=40", ["40 memory stacks, 352 mm", "at most 12, along the 114 mm"]),
        ("--set package.packaging.interposer.bonding_yield=-1", ["found -1", "from 0.5 to 1"]),
        ("--set package.dies.compute.process.wafer_price=9000", ["a bare number has no unit"]),
    ],
)
def test_what_is_wrong_with_a_package_is_one_line(run, arguments, words):
    result = run(f"cost dgx-h100 {arguments}")
    assert result.exit_code != 0
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_list_names_every_config(run, answer):
    everything = answer("list --json -")
    assert set(everything) == {*FOLDERS.values(), "problems", "spaces"}
    for folder, configs in everything.items():
        assert sorted(configs) == available(folder)
        assert all(line and "\n" not in line for line in configs.values())
    models = run("list models")
    assert "174.6 B parameters" in models.stdout
    assert "accelerators" not in models.stdout


def test_list_says_which_stacks_were_measured(answer):
    stacks = answer("list stacks --json -")["stacks"]
    assert stacks["hai-llm"].startswith("from estimates: ")
    assert stacks["megatron-core"].startswith("from measured runs: ")


def test_cost_of_an_accelerator_by_itself(run, answer):
    """Dies by their kinds: a wafer's price over those on it, and the shares of MI300X's that ship."""
    by_itself, in_a_system = (answer(f"cost {name} --json -") for name in ("mi300x", "mi300x-8"))
    assert by_itself["dies"] == in_a_system["dies"]
    assert by_itself["cost"]["manufacturing"] == pytest.approx(in_a_system["cost"]["manufacturing"])
    compute, io = by_itself["dies"]
    assert (compute["die"], compute["count"], io["count"]) == ("compute", 8, 4)
    wafer = in_a_system["system"]["accelerator"]["package"]["dies"]["compute"]["process"]["wafer_price"]
    assert compute["raw"] * compute["dies_per_wafer"] == pytest.approx(wafer)
    assert compute["raw"] < compute["known_good"] < 1.3 * compute["raw"]
    assert "1 × mi300x" in run("cost mi300x --against h100-sxm5-80gb").stdout
    assert "Network, per device" not in run("cost mi300x").stdout  # a device by itself has none


def test_cost_of_an_accelerator_s_file(run, answer, tmp_path):
    """A file of an accelerator, or of a change of a shipped one, is priced by itself; a system's as such."""
    (tmp_path / "mine.toml").write_text('extends = "mi300x"\npackage.memory_price = "20 USD/GB"\n')
    (tmp_path / "two.toml").write_text('extends = "mi300x-8"\nn_devices = 2\n')
    shipped, mine = (answer(f"cost {name} --json -") for name in ("mi300x", "mine.toml"))
    assert mine["dies"] == shipped["dies"]
    assert mine["cost"]["accelerator"]["memory"] > 1.2 * shipped["cost"]["accelerator"]["memory"]
    assert "1 × mine" in run("cost mi300x --against mine.toml").stdout
    assert "2 × mi300x" in run("cost two.toml").stdout


def test_the_figure_of_costs_names_no_part_that_is_not_seen():
    """One MI300X has no network, and the racks of a device are too small a part of what DGX Spark costs."""
    for system, against, unseen in (("mi300x", "dgx-h100", "nothing"), ("dgx-spark", None, "racks")):
        *_, bought, hourly = dp.cost(system, against=against).figure().axes
        for axes in (bought, hourly):
            labels = axes.get_legend_handles_labels()[1]
            assert "accelerator" in labels
            assert not [label for label in labels if unseen in label]


def test_cost_and_performance_along_an_input(run, answer, tmp_path):
    """Wider links make tokens faster and devices dearer: the tier's price in proportion to its bandwidth."""
    over = "--over network.nvlink.bandwidth=450..900GB/s"
    command = f"cost dgx-h100 --model llama-3-8b --set strategy.tp=8 {over}"
    points = answer(f"{command} --json - --plot curve.png")["curve"]["points"]
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert all(point["fits"] for point in points)
    rates = [point["rate"] for point in points]
    assert rates == sorted(rates)
    assert points[-1]["device"] - points[0]["device"] == pytest.approx(1000, rel=0.05)  # of switch and racks
    hour, rate = points[0]["hour"] / 3600 * 8, points[0]["rate"]
    assert points[0]["million"] == pytest.approx(1e6 * hour / rate)
    alone = run("cost dgx-h100 --model llama-3-8b")
    assert alone.exit_code != 0
    assert "give over too" in alone.stderr


def test_cost_repeats_what_is_overridden(run, answer):
    line = "cost dgx-h100 --set hbm.bandwidth=4TB/s"
    path, text = "system.accelerator.memory.hbm.bandwidth", "4 TB/s (was 3.35 TB/s)"
    assert f"Overridden: {path} = {text}" in run(line).stdout
    assert answer(f"{line} --json -")["overrides"] == {path: text}

"""dp.die and diffperf die: against arithmetic by hand, dies counted on a wafer, and diffperf cost."""

import json
import math
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

import diffperf as dp
from diffperf.cli import cli
from diffperf.load import available, config_root


def file_of(folder: str, name: str) -> dict:
    return tomllib.loads((config_root() / folder / f"{name}.toml").read_text(encoding="utf-8"))


def test_a_die_on_n7_by_hand():
    """Wafer price and defects of configs/processes/tsmc-n7.toml; the formulas are written out here."""
    (row,) = dp.die("600 mm2", nodes="n7").rows()
    process = file_of("processes", "tsmc-n7")
    wafer, per_cm2 = float(process["wafer_price"].strip("$").replace(",", "")), 0.09
    assert process["defect_density"] == f"{per_cm2} 1/cm^2"
    fatal, clustering = 6 * per_cm2, process["clustering"]
    assert row["poisson"] == pytest.approx(math.exp(-fatal))
    assert row["murphy"] == pytest.approx(((1 - math.exp(-fatal)) / fatal) ** 2)
    assert row["seeds"] == pytest.approx(1 / (1 + fatal))
    assert row["negative_binomial"] == pytest.approx((1 + fatal / clustering) ** -clustering)
    assert row["without_defect"] == row["negative_binomial"]
    assert row["stitched"] == 1
    pitch, usable = math.sqrt(600) + 0.2, 290.0  # scribe lane; edge loss on both sides
    dies = math.pi * usable**2 / 4 / pitch**2 - math.pi * usable / math.sqrt(2 * pitch**2)
    assert row["dies_per_wafer"] == pytest.approx(dies)
    assert row["die"] == pytest.approx(wafer / dies)
    assert row["good_die"] == pytest.approx(wafer / dies / row["without_defect"])
    assert row["good_mm2"] == pytest.approx(row["good_die"] / 600)


def counted_on_a_wafer(width: float, height: float, usable: float, offsets: int = 8) -> float:
    """Whole dies in a circle, the mean over positions of the grid of dies; sizes in mm with the lane."""
    counts = []
    for right in np.arange(offsets) / offsets:
        for up in np.arange(offsets) / offsets:
            left = (np.arange(-60, 60) + right)[:, None] * width
            low = (np.arange(-60, 60) + up)[None, :] * height
            corner = np.hypot(np.maximum(-left, left + width), np.maximum(-low, low + height))
            counts.append(np.sum(corner <= usable / 2))
    return float(np.mean(counts))


@pytest.mark.parametrize(("area", "aspect"), [(25, 1), (60, 2), (100, 1), (200, 0.5), (300, 1), (600, 1)])
def test_dies_per_wafer_against_a_grid_on_a_wafer(area, aspect):
    """Within 5 %, and never too many: the formula leaves out somewhat more at the rim than is lost there."""
    (row,) = dp.die(area, nodes="n5", aspect=aspect).rows()
    sides = math.sqrt(area * aspect) + 0.2, math.sqrt(area / aspect) + 0.2
    counted = counted_on_a_wafer(*sides, 290.0)
    assert 0.95 * counted <= row["dies_per_wafer"] <= counted


def test_a_die_of_an_accelerator_is_as_in_its_cost():
    package = file_of("accelerators", "a100-sxm4-80gb")["package"]
    (asked,) = package["dies"]
    (priced,) = dp.cost("a100-sxm4-80gb").to_dict()["dies"]
    (row,) = dp.die(asked["area"], nodes=["n7"], aspect=asked.get("aspect", 1)).rows()
    assert row["process"] == priced["process"] == "tsmc-n7"
    assert row["dies_per_wafer"] == pytest.approx(priced["dies_per_wafer"])
    assert row["without_defect"] == pytest.approx(priced["without_defect"])
    assert row["die"] == pytest.approx(priced["raw"])


def test_all_shipped_nodes_are_priced_and_those_between_lie_between():
    assert {row["node"] for row in dp.die(100).rows()} == set(available("nodes"))
    old, between, new = dp.die(100, nodes=["n5", 4.5, "4 nm"]).rows()
    assert between["node"] == "4.5 nm"
    wafers = sorted([old["wafer_price"], new["wafer_price"]])
    assert wafers[0] <= between["wafer_price"] <= wafers[1]


def test_a_node_ages():
    """Two years are one learning time of N5: defects 0.05 + (0.12 - 0.05)/e per cm², wafers 2 % a year."""
    (row,) = dp.die(500, nodes="n5", age="2 year").rows()
    assert row["defect_density"] == pytest.approx((0.05 + 0.07 / math.e) / 100)
    assert row["wafer_price"] == pytest.approx(16988 * 0.98**2, rel=1e-3)
    (row,) = dp.die(500, nodes="n5", age=2, set={"process.defect_density": "0.08 1/cm^2"}).rows()
    assert row["defect_density"] == pytest.approx(0.0008)
    assert row["poisson"] == pytest.approx(math.exp(-5 * 0.08))


def test_a_die_beyond_the_reticle_is_stitched():
    """One field of 858 mm² and 0.4 of a second one: 0.9^0.4 of the dies have them joined."""
    answer = dp.die(
        1.4 * 858, nodes="n7", set={"process.stitching_yield": 0.9, "process.yield_model": "seeds"}
    )
    (row,) = answer.rows()
    assert row["stitched"] == pytest.approx(0.9**0.4)
    assert row["without_defect"] == row["seeds"]
    assert row["good_die"] == pytest.approx(row["die"] / row["seeds"] / 0.9**0.4)
    (line,) = (line for line in str(answer).splitlines() if "reticle" in line)
    assert "858 mm^2" in line
    assert "95.9%" in line
    assert "reticle" not in str(dp.die(858, nodes="n7"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"area": 0}, ["area", '"0 mm^2"', "from 1 mm^2"]),
        ({"area": "-5 mm2"}, ["area", "-5 mm2"]),
        ({"area": "mm2"}, ["area", "one number and a unit"]),
        ({"area": "60 mm"}, ["area", "wrong dimension"]),
        ({"area": None}, ["area", "null"]),
        ({"area": 9000}, ["a die of 9,000 mm^2", "at least one die on a wafer of 300 mm"]),
        ({"area": 100, "nodes": "n8"}, ["nodes", '"n8"', "configs/nodes"]),
        ({"area": 100, "nodes": ["n7", "40 nm"]}, ["nodes", "from 1 nm to 28 nm"]),
        ({"area": 100, "nodes": []}, ["nodes", "one node or more"]),
        ({"area": 100, "nodes": [None]}, ["nodes", "a name or nm"]),
        ({"area": 100, "nodes": True}, ["nodes", "a list"]),
        ({"area": 100, "aspect": 0}, ["aspect", "from 0.1 to 10"]),
        ({"area": 100, "age": -1}, ["age", "from 0 year to 50 year"]),
        ({"area": 100, "set": {"process.masks": "$5"}}, ["process.masks", "no price of a die depends on"]),
        ({"area": 100, "set": {"early_defects": 1e-3}}, ["early_defects", "give age too"]),
        ({"area": 100, "set": {"process.defect_density": "-1 1/cm^2"}}, ["process.defect_density", "from"]),
    ],
)
def test_what_is_wrong_is_one_line(arguments, words):
    with pytest.raises(dp.ConfigError) as problem:
        dp.die(**arguments)
    text = str(problem.value)
    assert text.startswith("dp.die: ")
    assert "\n" not in text
    for word in words:
        assert word in text


def test_the_command_writes_json_and_a_figure(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = ["--nodes", "n7,3.5 nm", "--age", "2", "--set", "process.scribe_lane=0.1mm"]
    command = ["die", "6.28 cm2", *options, "--json", "die.json", "--plot", "die.png"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.stderr
    written = json.loads((tmp_path / "die.json").read_text())
    asked = dp.die(628, nodes=["n7", "3.5 nm"], age=2, set={"process.scribe_lane": "0.1mm"})
    assert written.pop("diffperf")
    assert written == asked.to_dict()
    assert [row["node"] for row in written["nodes"]] == ["n7", "3.5 nm"]
    assert str(asked).splitlines() == [line.rstrip() for line in result.stdout.rstrip().splitlines()]
    assert (tmp_path / "die.png").stat().st_size > 10_000
    refused = CliRunner().invoke(cli, ["die", "628 kg"])
    assert refused.exit_code == 1
    assert len(refused.stderr.strip().splitlines()) == 1


def test_the_figure_draws_equal_curves_once_and_marks_the_reticle():
    axes = dp.die(200, nodes="n16,n12,n7").figure().axes[0]
    legend = axes.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["n7", "n16, n12"]  # one process makes both, and the dearest is on top
    assert "reticle: 858 mm²" in [text.get_text() for text in axes.texts]

"""diffperf sensitivity over ranges and between systems, map and breakeven: as Python answers, and in one line
where a range is wrong.
"""

import json

import pytest

import diffperf as dp

DECODE = "llama-2-7b dgx-a100 --devices 8 --tp 8 --global-batch 16 --phase decode"
GIVEN = {"devices": 8, "tp": 8, "global_batch": 16}


def plain(answer) -> dict:
    return json.loads(json.dumps(answer.to_dict()))


def check_certainty(found: dict, printed: str) -> None:
    """An answer about the configuration says how sure its time is, as the estimate of the same does."""
    estimated = dp.estimate("llama-2-7b", "dgx-a100", "decode", **GIVEN)
    sure = json.loads(json.dumps(estimated.certainty.as_dict()))
    assert sure["time_interval"] == pytest.approx(found["time_interval"], rel=1e-9)
    assert found["basis"] == "calibrated"
    assert estimated.certainty.line() in printed


@pytest.mark.slow
def test_ranges(run, answer, tmp_path):
    ranges = "--range hbm.bandwidth=1..4TB/s --range nvlink.bandwidth=±50% --range compute_units=100..120"
    found = answer(f"sensitivity {DECODE} {ranges} --json -")
    given = {
        "hbm.bandwidth": ("1 TB/s", 4e12),
        "nvlink.bandwidth": (150e9, 450e9),
        "compute_units": "100..120",
    }
    assert plain(dp.sensitivity("llama-2-7b", "dgx-a100", "decode", ranges=given, **GIVEN)) == found
    widest = found["ranges"][0]
    assert widest["path"] == "system.accelerator.memory.hbm.bandwidth"
    assert widest["at_low"] > found["before"] > widest["at_high"]
    printed = run(f"sensitivity {DECODE} {ranges} --plot swings.svg")
    assert "a compute unit brings" in printed.stdout
    check_certainty(found, printed.stdout)
    assert "4 TB/s" in (tmp_path / "swings.svg").read_text()


@pytest.mark.slow
def test_sobol(run, answer, tmp_path):
    ranges = "--range hbm.bandwidth=1..4TB/s --range strategy.global_batch=1..64 --samples 64 --interactions"
    found = answer(f"sensitivity {DECODE} {ranges} --json -")
    given = {"hbm.bandwidth": "1..4 TB/s", "strategy.global_batch": (1, 64)}
    settings = {"ranges": given, "sobol": True, "interactions": True, "samples": 64}
    again = dp.sensitivity("llama-2-7b", "dgx-a100", "decode", **settings, **GIVEN)
    assert plain(again) == found
    assert len(again.to_frame()) == 2
    assert len(found["interactions"]) == 1
    check_certainty(found, run(f"sensitivity {DECODE} {ranges} --plot sobol.svg").stdout)
    assert "share of the variance" in (tmp_path / "sobol.svg").read_text()


@pytest.mark.slow
def test_the_way_to_another_system(run, answer, tmp_path):
    found = answer(f"sensitivity {DECODE} --to dgx-h100 --json -")
    again = dp.sensitivity("llama-2-7b", "dgx-a100", "decode", to="dgx-h100", **GIVEN)
    assert plain(again) == found
    other = dp.estimate("llama-2-7b", "dgx-h100", "decode", **GIVEN)
    assert found["after"] == pytest.approx(float(other.report.time), rel=1e-9)
    assert sum(found["contributions"].values()) == pytest.approx(found["after"] - found["before"], rel=1e-9)
    settings = "--to-set hbm.bandwidth=4TB/s --to-set compute_units=120"
    printed = run(f"sensitivity {DECODE} {settings} --plot steps.svg")
    assert printed.exit_code == 0, printed.stderr
    check_certainty(found, printed.stdout)
    sure = plain(other)["time_interval"]
    assert found["to_certainty"]["time_interval"] == pytest.approx(sure, rel=1e-9)
    assert "before" in (tmp_path / "steps.svg").read_text()


@pytest.mark.slow
def test_map(run, answer, tmp_path):
    axes = "--x hbm.bandwidth=0.1..4TB/s --y strategy.global_batch=1..64 --cells 6"
    found = answer(f"map {DECODE} {axes} --json -")
    again = dp.bottleneck_map(
        "llama-2-7b",
        "dgx-a100",
        "decode",
        x=("hbm.bandwidth", "0.1..4 TB/s"),
        y=("strategy.global_batch", (1, 64)),
        cells=6,
        **GIVEN,
    )
    assert plain(again) == found
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert {cell["limit"] for cell in found["cells"]} == set(found["shares"])
    assert "<pre" in again._repr_html_()
    printed = run(f"map {DECODE} {axes} --plot map.svg")
    assert "hbm" in printed.stdout
    check_certainty(found, printed.stdout)
    assert "hbm bandwidth" in (tmp_path / "map.svg").read_text()


@pytest.mark.slow
def test_break_even(run, answer, tmp_path):
    asked = "--against dgx-h100 --x prices.accelerator_markup=2..20 --vary first"
    found = answer(f"breakeven {DECODE} {asked} --json -")
    again = dp.break_even(
        "llama-2-7b",
        "dgx-a100",
        "dgx-h100",
        "decode",
        x=("prices.accelerator_markup", (2, 20)),
        vary="first",
        **GIVEN,
    )
    assert plain(again) == found
    (crossing,) = found["crossings"]
    assert crossing["less_above"] == "dgx-h100"
    at = {"prices.accelerator_markup": crossing["value"]}
    costs = [
        float(dp.estimate("llama-2-7b", system, "decode", set=settings, **GIVEN).report.cost.run)
        for system, settings in (("dgx-a100", at), ("dgx-h100", {}))
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-5)
    printed = run(f"breakeven {DECODE} {asked} --plot curves.svg").stdout
    assert "dgx-h100 has less" in printed
    check_certainty(found["certainties"][0], printed)
    assert (tmp_path / "curves.svg").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sensitivity {} --range hbm.bandwidth=3", 'expected two ends such as "2..5 TB/s"'),
        ("sensitivity {} --range hbm.bandwidth=4..1TB/s", "a low end below the high end"),
        ("sensitivity {} --range hbm.bandwidth=1GB..2GB", "wrong dimension"),
        ("sensitivity {} --range hbm.bandwith=±10%", "did you mean"),
        ("sensitivity {} --range strategy.zero=1..2", "give a number a range"),
        ("sensitivity {} --range hbm.bandwidth=±100%", "expected a share below 100 %; write both ends"),
        ("sensitivity {} --range hbm.bandwidth=±1.2.3%", "expected two ends"),
        ("sensitivity {} --range hbm.bandwidth=2..5", 'without its unit: write "2..5 TB/s"'),
        ("sensitivity {} --range hbm.bandwidth=±10% --samples 16", "--samples: found 16 without --sobol"),
        ("sensitivity {} --range tp=1..8 --interactions", "--interactions: found one range; expected two"),
        ("map {} --x hbm.bandwidth=±150% --y tp=2..4", "expected a share below 100 %"),
        ("sensitivity {} --sobol", "add --range"),
        ("sensitivity {} --range tp=1..8 --sobol --samples 100", "a power of two"),
        ("sensitivity {} --to dgx-h10", 'did you mean "dgx-h100"'),
        ("sensitivity {} --to dgx-a100", "nothing that differs"),
        ("sensitivity {} --to dgx-h100 --range tp=1..8", "drop one of them"),
        ("map {} --x tp=1..8 --y tp=2..4", "another input than --x"),
        ("map {} --x tp --y tp=2..4", 'has no "="'),
        ("breakeven {} --against dgx-h100 --x tp=1..8 --vary none", "one of both, first, second"),
        ("breakeven {} --against dgx-h100 --x tp=1..8 --output tme", 'did you mean "time"'),
    ],
)
def test_mistakes_are_one_line(run, line, words):
    result = run(line.format(DECODE.replace("tp 8", "tp 8 --pp 1 --dp 1")))
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1

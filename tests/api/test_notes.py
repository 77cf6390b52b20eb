"""Notes of answers about figures that are easily taken for others."""

import pytest

import diffperf as dp
from diffperf.api.codesign_answer import baseline_lines
from diffperf.api.idle_settings import describe_idle_settings
from diffperf.api.question import Question

UNITS = "compute_units"


def text(answer) -> str:
    return " ".join(str(answer).split())


def test_ranges_of_degrees_say_how_many_devices_they_have():
    asked = {"devices": 8, "tp": 8, "global_batch": 8}
    answer = dp.sensitivity(
        "llama-3-8b", "dgx-h100", **asked, ranges={"tp": "1..8", "hbm.bandwidth": "3..4 TB/s"}
    )
    assert "Devices differ over strategy.tp: 1 at the low end, 8 at the high one, 8 in the" in text(answer)
    assert text(answer).count("Devices differ") == 1


def test_compute_units_alone_keep_their_rates():
    asked = {"devices": 8, "tp": 8, "global_batch": 8}
    assert "Rates are kept: the FLOP/s of h100" in text(
        dp.estimate("llama-3-8b", "dgx-h100", **asked, set={UNITS: 66})
    )
    both = {UNITS: 66, "accelerator.matrix.bf16.rate": "500 TFLOP/s"}
    assert "Rates are kept" not in text(dp.estimate("llama-3-8b", "dgx-h100", **asked, set=both))
    assert "Rates are kept" not in text(dp.estimate("llama-3-8b", "dgx-h100", **asked))


def test_shares_of_operators_are_explained():
    """At the power limit the shares of products add up to more than 100 %."""
    asked = {"devices": 8, "tp": 8, "global_batch": 64, "set": {"accelerator.power_limit": "400 W"}}
    answer = dp.estimate("llama-3-8b", "dgx-h100", **asked, operators=True)
    assert any(sum(operator.bounds.values()) > 1.01 for operator in answer.operators)
    assert "Shares may add up to more than 100 %" in text(answer)


def test_energies_of_a_plan_are_labelled():
    asked = {"devices": 8, "tp": 8, "global_batch": 8, "micro_batch": 1}
    answer = dp.plan("llama-3-8b", "dgx-h100", **asked, tokens=1e9, top=1)
    assert "device energy" in text(answer)
    assert "J of the facility" in text(answer)


PROBLEM = """
model = "MODEL"
system = "dgx-a100"
n_devices = 1
technology = "n7-hbm2e"
phase = "decode"
maximize = "tokens_per_second"
[strategy]
global_batch = 1
sequence_length = 1024
[[variable]]
path = "design.compute_units"
from = 60
to = 160
[[variable]]
path = "strategy.kv_precision"
[[constraint]]
quantity = "chip.power"
at_most = "350 W"
"""


@pytest.mark.parametrize(("model", "fits"), [("llama-2-70b", False), ("llama-3-8b", True)])
def test_a_baseline_that_does_not_fit_memory_is_said(tmp_path, model, fits):
    """An A100 of 80 GB does not hold the 138 GB of Llama-2 70B."""
    path = tmp_path / "problem.toml"
    path.write_text(PROBLEM.replace("MODEL", model), encoding="utf-8")
    lines = baseline_lines(dp.load_problem(str(path)))
    assert bool(lines) == (not fits)
    for line in lines:
        assert "The baseline does not fit memory" in line
        assert "the file's strategy.kv_precision or their defaults" in line


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("llama-3-8b", {"expert_imbalance": 3}, "expert imbalance (llama-3-8b has no experts)"),
        ("llama-3-8b", {"draft_share": 0.04}, "draft share (no tokens are drafted)"),
        ("llama-3-8b", {"recompute_share": 0.5}, "recompute share (recompute is none)"),
        ("llama-3-8b", {"recompute_up_projections": 1}, "recompute up projections (llama-3-8b has no latent"),
        ("llama-3-8b", {"recompute_share": 0.5, "recompute": "full"}, ""),
        ("llama-3-8b", {"expert_imbalance": 1}, ""),
        ("llama-3-8b", {"draft_tokens": 3}, "No drafted token is accepted"),
        ("llama-3-8b", {"draft_tokens": 3, "tokens_per_step": 2.5}, ""),
        ("mixtral-8x7b", {"expert_imbalance": 3}, ""),
    ],
)
def test_settings_without_effect_are_named(model, given, said):
    question = Question.about(
        model=dp.load_model(model),
        system=dp.load_system("dgx-h100"),
        calibration=None,
        settings={},
        strategy=given,
    )
    lines = describe_idle_settings(question, dp.load_strategy(given))
    assert [said in line for line in lines] == ([True] if said else [])


def test_an_estimate_names_settings_without_effect():
    answer = dp.estimate("llama-3-8b", "dgx-h100", devices=8, tp=8, global_batch=8, recompute_share=0.5)
    assert "Without effect: recompute share" in text(answer)


def test_a_price_that_follows_the_package_is_said():
    price, capacity = {"purchase_price": "40000 USD"}, {"hbm.capacity": "160 GiB"}
    said = "$40,000 is for a package that takes $2,739 to make: this one takes $4,233 and costs $61,817"
    assert said in text(dp.cost("dgx-h100", set=price | capacity))
    assert "is for a package" not in text(dp.cost("dgx-h100", set=price))
    asked = {"devices": 8, "tp": 8, "global_batch": 8}
    assert said in text(dp.estimate("llama-3-8b", "dgx-h100", **asked, set=price | capacity))


def test_a_markup_beside_a_published_price_is_said():
    markup = {"prices.accelerator_markup": 10}
    said = "The accelerator's markup changes nothing: h100-sxm5-80gb has a published price of $28,000"
    usual, changed = dp.cost("dgx-h100"), dp.cost("dgx-h100", set=markup)
    assert (said in text(changed), said in text(usual)) == (True, False)
    without = dp.cost("dgx-h100", set=markup | {"purchase_price": "0 USD"})
    assert said not in text(without)


def test_the_volume_of_a_design_has_separators():
    assert "divided over 1,000,000 accelerators" in text(dp.cost("dgx-h100", volume=1_000_000))

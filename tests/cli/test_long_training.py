"""--tokens of diffperf estimate and plan: a whole training with its interruptions."""

import pytest


@pytest.mark.slow
def test_estimate_and_plan_agree_on_a_whole_training(run, answer):
    """One layout, given to `estimate` and the only one that `plan` can choose."""
    layout = "gpt3-22b dgx-a100 --devices 64 --global-batch 64 --tp 8 --pp 2 --micro-batch 1 --tokens 300e9"
    estimated = answer(f"estimate {layout} --json -")
    training = estimated["training"]
    assert training["steps"] == pytest.approx(300e9 / (64 * 2048))
    assert training["time"] > training["steps"] * estimated["report"]["time"]
    assert training["time"] * training["goodput"] == pytest.approx(
        training["steps"] * estimated["report"]["time"], rel=1e-9
    )
    text = run(f"estimate {layout}").stdout
    assert "Training on 3e+11 tokens: 2,288,818 steps" in text
    assert "of the time is useful" in text
    between = training["checkpoint_interval"] / estimated["report"]["time"]
    assert f"({round(between):,} steps), " in text  # checkpoints are written between steps
    assert "J of the facility" in text  # where the table of plan has the energy of the devices
    fields = "--virtual-stages 1 --recompute none --zero 0"
    planned = answer(f"plan {layout} {fields} --json -")
    again = answer(f"estimate {layout} {fields} --json -")["training"]
    assert planned["training"] == pytest.approx(again, rel=1e-9)


@pytest.mark.parametrize("command", ["estimate", "plan"])
@pytest.mark.parametrize("tokens", ["many", "0", "inf"])
def test_tokens_are_a_number(run, command, tokens):
    result = run(f"{command} gpt3-22b dgx-a100 --tokens {tokens}")
    assert result.exit_code == 1
    assert "--tokens" in result.stderr
    assert result.stderr.count("\n") == 1

"""The largest batch and the longest prompts that fit memory, against estimates beside them."""

import pytest

import diffperf as dp
from diffperf.errors import ConfigError

LAYOUT = {"tp": 2, "pp": 1, "dp": 4}


@pytest.mark.parametrize("phase", ["prefill", "decode", "generate"])
def test_one_sequence_a_replica_more_does_not_fit(phase):
    asked = LAYOUT | {"sequence_length": 6000, "output_length": 100}
    batch = dp.estimate("llama-3-8b", "dgx-a100", phase, global_batch=8, **asked).greatest["global_batch"]
    fits = [
        dp.estimate("llama-3-8b", "dgx-a100", phase, global_batch=each, **asked).fits
        for each in (batch, batch + LAYOUT["dp"])
    ]
    assert batch % LAYOUT["dp"] == 0
    assert fits == [True, False]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_token_more_does_not_fit(phase):
    asked = LAYOUT | {"global_batch": 800, "output_length": 100}
    free = {"model.context_window": 0}
    answer = dp.estimate("llama-3-8b", "dgx-a100", phase, sequence_length=9000, set=free, **asked)
    assert not answer.fits
    length = answer.greatest["sequence_length"]
    fits = [
        dp.estimate("llama-3-8b", "dgx-a100", phase, sequence_length=each, set=free, **asked).fits
        for each in (length, length + 1)
    ]
    assert fits == [True, False]


def test_prompts_stay_within_the_window_of_the_model():
    asked = LAYOUT | {"global_batch": 4, "sequence_length": 1000, "output_length": 100}
    assert dp.estimate("llama-3-8b", "dgx-a100", "decode", **asked).greatest["sequence_length"] == 8092
    assert dp.estimate("llama-3-8b", "dgx-a100", "prefill", **asked).greatest["sequence_length"] == 8192
    no_room = asked | {"sequence_length": 10, "output_length": 9000}
    open_ended = {"model.context_window": 9000}
    answer = dp.estimate("llama-3-8b", "dgx-a100", "generate", set={"model.context_window": 0}, **no_room)
    assert answer.greatest["sequence_length"] > 1000
    with pytest.raises(ConfigError, match="9,010 tokens"):
        dp.estimate("llama-3-8b", "dgx-a100", "generate", set=open_ended, **no_room)
    learned = dp.estimate("gpt3-22b", "dgx-a100", "decode", **asked)
    assert learned.greatest["sequence_length"] == 2048 - 100


def test_weights_that_are_too_large_hold_no_batch():
    answer = dp.estimate("llama-3.1-405b", "dgx-a100", "decode", tp=8, pp=1, dp=1)
    assert answer.greatest == {"global_batch": 0.0, "sequence_length": 0.0}
    assert dp.estimate("llama-3-8b", "dgx-a100", tp=8, pp=1).greatest == {}

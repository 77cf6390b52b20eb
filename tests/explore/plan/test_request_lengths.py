"""The lengths that servers must accept, against a large sample of log-normal prompts and answers."""

import numpy as np
import pytest

from diffperf.explore.plan.request_lengths import ACCEPTED, longest_prompt, longest_request
from diffperf.quantity import replace
from diffperf.workload.requests import Requests

SAMPLES = 2_000_000


def lognormal(rng, mean, spread):
    deviation = np.sqrt(np.log1p(spread**2))
    return mean * np.exp(deviation * rng.standard_normal(SAMPLES) - deviation**2 / 2)


@pytest.mark.parametrize(
    ("input_spread", "output_spread"), [(0.0, 0.3), (0.0, 0.8), (0.8, 0.8), (1.5, 0.1), (0.5, 0.0)]
)
def test_the_share_of_a_sample(input_spread, output_spread):
    lengths = {"input_length": 500.0, "output_length": 1500.0}
    spreads = {"input_spread": input_spread, "output_spread": output_spread}
    requests = replace(Requests(), lengths | spreads)
    rng = np.random.default_rng(0)
    prompts, answers = lognormal(rng, 500.0, input_spread), lognormal(rng, 1500.0, output_spread)
    assert longest_prompt(requests) == pytest.approx(np.quantile(prompts, ACCEPTED), rel=0.02)
    assert longest_request(requests) == pytest.approx(np.quantile(prompts + answers, ACCEPTED), rel=0.02)


def test_equal_lengths_add_up():
    requests = replace(Requests(), {"input_length": 500.0, "output_length": 1500.0, "output_spread": 0.0})
    assert longest_request(requests) == 2000.0

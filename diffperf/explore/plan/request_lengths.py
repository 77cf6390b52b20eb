"""The lengths of requests that a server must accept: log-normal ones, as in the estimate of serving."""

import math

import numpy as np
from scipy.special import ndtr

from diffperf.workload.requests import Requests

ACCEPTED = 0.999  # share of the requests that a server's limits let through
# Places on the normal distribution at which the narrower of two lengths is evaluated. Their steps are fine
# enough for lengths exact to 0.1 %.
_NORMAL = np.linspace(-6.0, 6.0, 1201)
_HALVINGS = 40


def longest_prompt(requests: Requests) -> float:
    """Tokens that the share `ACCEPTED` of the prompts do not exceed."""
    return _quantile_of_sum((float(requests.input_length), float(requests.input_spread)), (0.0, 0.0))


def longest_request(requests: Requests) -> float:
    """Tokens that the share `ACCEPTED` of the requests do not exceed, prompt and answer together, whose
    lengths are independent.
    """
    return _quantile_of_sum(
        (float(requests.input_length), float(requests.input_spread)),
        (float(requests.output_length), float(requests.output_spread)),
    )


def _quantile_of_sum(first: tuple[float, float], second: tuple[float, float]) -> float:
    """The quantile `ACCEPTED` of the sum of two log-normal lengths, each a mean and a standard deviation over
    it: P(a + b ≤ x) = Σ_z φ(z) Φ((ln(x − a(z)) − µ_b) / σ_b), with b the one of the larger spread.
    """
    (narrow, small), (wide, large) = sorted((first, second), key=lambda length: length[1])
    if large == 0:
        return narrow + wide
    deviation = math.sqrt(math.log1p(large**2))
    center = math.log(wide) - deviation**2 / 2
    own = math.sqrt(math.log1p(small**2))
    narrow_lengths = narrow * np.exp(own * _NORMAL - own**2 / 2)
    weights = np.exp(-(_NORMAL**2) / 2)
    weights /= weights.sum()

    def share_up_to(length: float) -> float:
        left = np.maximum(length - narrow_lengths, 1e-300)
        return float(np.sum(weights * ndtr((np.log(left) - center) / deviation)))

    low, high = 0.0, wide * math.exp(6 * deviation) + float(narrow_lengths.max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_up_to(middle) < ACCEPTED else (low, middle)
    return high

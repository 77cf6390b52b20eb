"""Quantities that a batch of sequences, of a strategy, and a stream of requests have in common: what of the
prompts is known already, and how answers are drafted.
"""

from typing import Any

from diffperf.quantity import quantity


def cached_share() -> Any:
    """Declares the share of prompts that need no prefill."""
    return quantity(
        "", "share of a prompt's tokens that the engine finds in its prefix cache", bounds=(0, 1), default=0
    )


def tokens_per_step() -> Any:
    """Declares how many tokens a decode step adds.

    Of g drafted tokens that are each accepted with a probability a, as long as those before are, these are
    (1 − a^(g + 1)) / (1 − a) on average (Leviathan et al., arXiv 2211.17192, Eq. 1).
    """
    return quantity(
        "",
        "tokens that a decode step adds to a sequence: 1 and the accepted ones of those drafted",
        bounds=(1, 64),
        default=1,
    )


def draft_tokens() -> Any:
    """Declares how many tokens are drafted before a decode step verifies them."""
    return quantity(
        "",
        "tokens drafted for each sequence and step by speculative decoding or multi-token prediction",
        bounds=(0, 64),
        default=0,
    )


def draft_share() -> Any:
    """Declares what a drafted token costs: a draft model's share, or a module of the model itself."""
    return quantity(
        "",
        "time to draft a token over that of a decode pass; 0 for a module of multi-token prediction, which "
        "takes the time of a layer and of the vocabulary projection",
        bounds=(0, 1),
        default=0,
    )

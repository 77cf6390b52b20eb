"""Speculative decoding: what drafting the tokens that a decode pass verifies adds to the pass."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.energy import energy_beside_work
from diffperf.estimate.pass_time import TimedPass
from diffperf.quantity import Scalar
from diffperf.relax import smaller
from diffperf.workload.configuration import Configuration


def drafting_time(
    c: Configuration, token: Float[Array, "*batches"], drafts: Scalar, sequences: Float[Array, "*batches"]
) -> Float[Array, "*batches"]:
    """Seconds of a decode step beside its pass, where each of `drafts` tokens takes `token` seconds to draft.

    Engines that draft run their steps one after another: the host looks at every sequence in between.
    """
    verifying = c.system.stack.draft_step + c.system.stack.draft_sequence * sequences
    return drafts * token + smaller(drafts, 1.0) * verifying


def drafted_token_time(
    given_share: Scalar, one_pass: Float[Array, "*batches"], module: Float[Array, "*batches"]
) -> Float[Array, "*batches"]:
    """Seconds to draft a token: a given share of those of a decode pass, or those of a module of multi-token
    prediction, which is a layer and the vocabulary projection (DeepSeek-V3, arXiv 2412.19437 §2.2).
    """
    return jnp.where(given_share > 0, given_share * one_pass, module)


def with_drafts(c: Configuration, timed: TimedPass) -> TimedPass:
    """A decode pass with the drafting of the tokens that it verifies.

    A module that drafts works on one token of each sequence, the pass on the drafted ones too: reading its
    weights takes as long for either, and where products take longer than that, the module is too slow here.
    The energy of drafting is that of a pass in the same time.
    """
    strategy, one = c.strategy, timed.breakdown
    module = (one.total - one.head - one.host) / c.model.depth + one.head
    token = drafted_token_time(strategy.draft_share, one.total, module)
    drafted = strategy.draft_tokens * token
    drafting = drafting_time(c, token, strategy.draft_tokens, strategy.replica_sequences)
    host = drafting - drafted
    return dataclasses.replace(
        timed,
        breakdown=dataclasses.replace(one, drafting=drafting),
        busy=timed.busy + drafting,
        energy=timed.energy * (1 + drafted / one.total) + energy_beside_work(c, host, host, timed.clock),
    )

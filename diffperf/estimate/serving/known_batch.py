"""The steps of engines whose running sequences are known: those with prompts, and those without."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.pass_time import launch_time
from diffperf.estimate.serving.engine_passes import passes, power_limit
from diffperf.estimate.serving.serving_report import static_power
from diffperf.quantity import Scalar
from diffperf.relax import larger
from diffperf.workload.configuration import Configuration
from diffperf.workload.passes import TokenPass, token_pass


class KnownBatch(eqx.Module):
    """The steady state of engines that always run as many sequences.

    - `decode_time`: seconds of a step without prompts; `prompts_time`: of one with them.
    - `decode_energy`, `prompts_energy`: joules of all devices in such steps, those of idle power among them.
    - `with_prompts`: share of the steps that have prompts.
    """

    decode_time: Scalar
    prompts_time: Scalar
    decode_energy: Scalar
    prompts_energy: Scalar
    with_prompts: Scalar

    @property
    def mean_time(self) -> Scalar:
        """Seconds of a step in the mean."""
        return self.decode_time + self.with_prompts * (self.prompts_time - self.decode_time)

    @property
    def mean_energy(self) -> Scalar:
        """Joules of a step in the mean."""
        return self.decode_energy + self.with_prompts * (self.prompts_energy - self.decode_energy)


def known_batch(c: Configuration, mean_answer: Scalar) -> KnownBatch:
    """The steps of engines that run the sequences of the strategy's batch, one token of each in a step.

    Answers of `mean_answer` tokens end by themselves, and as many prompts begin: λ in a step of an engine in
    the mean. They end independently of each other, so that their number has a Poisson distribution, and
    1 − exp(−λ) of the steps have prompts. These share a step with the decoding sequences, and its linear
    layers read their weights once for all tokens (chunked prefill; Sarathi-Serve, OSDI'24 §4.1).
    """
    strategy = c.strategy
    begun = strategy.replica_sequences / mean_answer
    with_prompts = -jnp.expm1(-begun)
    decode = token_pass(c)
    prompts = TokenPass(
        sequences=begun / with_prompts,  # of a step that has any
        queries=strategy.prefilled_length,
        context=strategy.sequence_length,
        serving=True,
    )
    parts = passes(
        c,
        {
            "decode": decode,
            "prompts": prompts,
            # Its linear layers have the tokens of both; context-parallel ranks share those of prompts.
            "both": dataclasses.replace(
                decode, sequences=decode.sequences + prompts.tokens_on_rank(strategy)
            ),
            "weights": dataclasses.replace(decode, sequences=jnp.ones_like(decode.sequences), parts=1.0),
        },
    )
    alone = parts["decode"].of_tokens + parts["decode"].of_sequences
    together = parts["both"].of_tokens + parts["decode"].of_sequences + parts["prompts"].attention
    # The attention of decoding sequences lets the device rest, that of prompts does not: their linear layers
    # run at a lower clock.
    of_both = parts["both"].throttling - parts["decode"].throttling
    together = together + c.relax.excess(parts["prompts"].throttling, larger(of_both, 0.0))
    together = larger(together, launch_time(c))
    # Prompts use the weights that the step reads anyway.
    added = larger(parts["prompts"].energy - parts["weights"].energy, 0.0)
    # At the clock that the power limit leaves them, whose times steps have, they draw no more than it.
    watts = power_limit(c, parts["decode"], parts["prompts"])
    idle = static_power(c.system)
    return KnownBatch(
        decode_time=alone,
        prompts_time=together,
        decode_energy=parts["decode"].energy + idle * alone,
        prompts_energy=c.relax.minimum(parts["decode"].energy + added, watts * together) + idle * together,
        with_prompts=with_prompts,
    )

"""Pipeline schedules: how long stages stand idle, and how many micro-batches they hold.

Every formula of idle time and micro-batches is that of an event-by-event run of the schedule in which
stages are alike and transfers take no time of their own.
"""

import equinox as eqx
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, choose
from diffperf.workload.strategy import Strategy


class StagePass(eqx.Module):
    """Seconds that a stage takes for one micro-batch through all its layers."""

    forward: Scalar
    backward: Scalar  # recomputation and both gradients
    weight_gradients: Scalar  # the part of the backward pass that no other stage waits for

    @property
    def total(self) -> Scalar:
        """Seconds of the forward and the backward pass."""
        return self.forward + self.backward


def bubble(stage: StagePass, strategy: Strategy, relax: Relaxation) -> Scalar:
    """Seconds of a step in which the slowest stage, which works on all micro-batches, has nothing to do;
    `stage` is the mean of the others.

    With p stages, m micro-batches, forward time F, time B of the whole backward pass, time W of its weight
    gradients, and H = p/2 − 1:

    - GPipe (arXiv 1811.06965) and 1F1B (arXiv 2104.04473 §2.2): (p − 1)(F + B), over v where the stages
      interleave v chunks.
    - Zero-bubble H1 (arXiv 2401.10241 §2.1): stage i starts its weight gradients i micro-batches late, and
      fills the drain with what is left of them: (p − 1)(F + B − W) − (min(m, p) − 1)·min(W, F, B − W).
      With m ≥ p and the least W that is (p − 1)(F + B − 2W), as in its Table 2. Less than p micro-batches
      may idle less where B − W is less than both W and F.
    - DualPipe (arXiv 2412.19437 §3.2.1; orders of github.com/deepseek-ai/DualPipe): micro-batches from
      both ends, at least 2p, where a pass forward and one backward that overlap take F + B: H·(2F + max(B
      − 2W, 0)) + max(H·(B − W) − (H + 1)·F, 0). Where B − W = F that is H·(F + 2B − 3W), as in its Table
      2.
    """
    others, weights = strategy.pp - 1, stage.weight_gradients
    inputs = relax.excess(stage.backward, weights)  # s of input gradients and recomputation

    def one_way() -> Scalar:
        return others / strategy.virtual_stages * stage.total

    def late_weights() -> Scalar:
        late = relax.minimum(strategy.micro_batches, strategy.pp) - 1
        return others * (stage.forward + inputs) - late * relax.minimum(weights, stage.forward, inputs)

    def both_ways() -> Scalar:
        halves = relax.excess(strategy.pp / 2, 1.0)
        first = halves * (2 * stage.forward + relax.excess(inputs, weights))
        return first + relax.excess(halves * inputs, (halves + 1) * stage.forward)

    return choose(
        strategy.schedule,
        {"gpipe": one_way, "1f1b": one_way, "zero_bubble": late_weights, "dualpipe": both_ways},
    )


def stage_messages(strategy: Strategy, relax: Relaxation) -> Scalar:
    """Messages between pipeline stages in a step, one after the other, that the busiest stage sends, receives
    or waits for.

    A micro-batch enters and leaves a chunk of a stage in both directions: four messages, of which the first
    and the last chunk of the pipeline lack two. Of more than two stages the last but one has all four, and
    waits for two messages a stage before it but the first: one until the first micro-batch arrives there, one
    after it has sent the last gradients. Without interleaving that is 2·m messages in a pipeline of two
    stages, and 4·m + 2·(p − 3) in one of p. With interleaving an event-by-event run counts up to 1.4 times as
    many, as neighbours wait for each other.
    """
    others = relax.has_others(strategy.pp)
    between = relax.minimum(1.0, relax.excess(strategy.pp, 2.0))  # 1 where there are stages between both ends
    of_micro_batch = 4 * strategy.virtual_stages * others - 2 * (others - between)
    return strategy.micro_batches * of_micro_batch + 2 * relax.excess(strategy.pp, 3.0)


def unpaired_micro_batches(strategy: Strategy) -> Scalar:
    """Micro-batches whose passes DualPipe runs alone on the last stage, so that no other pass hides their
    communication: p/2 + 2 of them.

    The number is that of an event-by-event run in which passes that run alone take longer by c in either
    direction, and pairs do not: the step is longer by (p/2 + 2)·2c beside the bubble of passes that are
    longer by c. Other schedules run every pass alone, and count none here.
    """
    return strategy.schedule.dualpipe * (strategy.pp / 2 + 2)


def in_flight(strategy: Strategy, relax: Relaxation, position: Scalar | float = 0.0) -> Scalar:
    """Micro-batches whose activations a stage holds, in units of all its layers; `position` is 0 for the
    first stage, 1 for the last. Never more than there are.

    GPipe holds all. 1F1B holds one per stage from its own to the last; interleaving adds (p − 1)/v to the
    first (arXiv 2205.05198 §4.2.3; 2104.04473 §2.2). Zero-bubble H1 holds p on every stage, those that
    wait for their weight gradients included (arXiv 2401.10241 §2.1), and DualPipe p + 1, some of them with
    its other half's layers (arXiv 2412.19437, Table 2).
    """
    after = (strategy.pp - 1) * (1 - position)
    chunks = relax.has_others(strategy.virtual_stages)
    # Chunks of an interleaved stage's warm-up, and its own.
    filling = (strategy.virtual_stages - 1) * strategy.pp + 1 + 2 * after
    in_stage = 1 + after + chunks * (filling / strategy.virtual_stages - 1 - after)
    whole = jnp.ones_like(in_stage)
    return choose(
        strategy.schedule,
        {
            "gpipe": lambda: strategy.micro_batches * whole,
            "1f1b": lambda: relax.minimum(strategy.micro_batches, in_stage),
            "zero_bubble": lambda: relax.minimum(strategy.micro_batches, strategy.pp * whole),
            "dualpipe": lambda: relax.minimum(strategy.micro_batches, (strategy.pp + 1) * whole),
        },
    )

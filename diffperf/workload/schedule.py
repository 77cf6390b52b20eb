"""Pipeline schedules: how long stages stand idle, and how many micro-batches they hold.

Every formula is that of an event-by-event run of the schedule where stages are alike and transfers take no time of their own.
"""

import equinox as eqx
import jax.numpy as jnp

from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, choose, larger
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


class StagePass(eqx.Module):
    """Seconds that a stage takes for one micro-batch through all its layers."""

    forward: Scalar
    backward: Scalar  # recomputation and both gradients
    weight_gradients: Scalar  # the part of the backward pass that no other stage waits for

    @property
    def total(self) -> Scalar:
        return self.forward + self.backward


def bubble(stage: StagePass, strategy: Strategy, relax: Relaxation) -> Scalar:
    """Seconds of a step in which the last stage, with all its micro-batches to work on, has nothing to do.

    With p stages, m micro-batches, F forward, B the whole backward pass, W its weight gradients, and H = p/2 − 1:

    - GPipe (arXiv 1811.06965) and 1F1B (arXiv 2104.04473 §2.2): (p − 1)(F + B), over v where the stages interleave v chunks.
    - Zero-bubble H1 (arXiv 2401.10241 §2.1): stage i starts its weight gradients i micro-batches late, and fills the drain with
      what is left of them: (p − 1)(F + B − W) − (min(m, p) − 1)·min(W, F, B − W). With m ≥ p and the least W that is
      (p − 1)(F + B − 2W), as in its Table 2. Less than p micro-batches may idle less where B − W is less than both W and F.
    - DualPipe (arXiv 2412.19437 §3.2.1; orders of github.com/deepseek-ai/DualPipe): micro-batches from both ends, at least 2p,
      where a pass forward and one backward that overlap take F + B: H·(2F + max(B − 2W, 0)) + max(H·(B − W) − (H + 1)·F, 0).
      Where B − W = F that is H·(F + 2B − 3W), as in its Table 2.
    """
    others, weights = strategy.pp - 1, stage.weight_gradients
    inputs = relax.excess(stage.backward, weights)  # input gradients, and recomputation

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


def in_flight(strategy: Strategy, relax: Relaxation, position: Scalar | float = 0.0) -> Scalar:
    """Micro-batches whose activations a stage holds, in units of all its layers; `position` is 0 for the first stage, 1 for the
    last. Never more than there are.

    GPipe holds all. 1F1B holds one per stage from its own to the last; interleaving adds (p − 1)/v to the first (arXiv 2205.05198
    §4.2.3; 2104.04473 §2.2). Zero-bubble H1 holds p on every stage, those that wait for their weight gradients included
    (arXiv 2401.10241 §2.1), and DualPipe p + 1, some of them with its other half's layers (arXiv 2412.19437, Table 2).
    """
    after = (strategy.pp - 1) * (1 - position)
    chunks = relax.minimum(strategy.virtual_stages - 1, 1.0)
    filling = (
        (strategy.virtual_stages - 1) * strategy.pp + 1 + 2 * after
    )  # chunks of an interleaved stage's warm-up and its own
    held = 1 + after + chunks * (filling / strategy.virtual_stages - 1 - after)
    whole = jnp.ones_like(held)
    return choose(
        strategy.schedule,
        {
            "gpipe": lambda: strategy.micro_batches * whole,
            "1f1b": lambda: relax.minimum(held, strategy.micro_batches),
            "zero_bubble": lambda: relax.minimum(strategy.pp * whole, strategy.micro_batches),
            "dualpipe": lambda: relax.minimum((strategy.pp + 1) * whole, strategy.micro_batches),
        },
    )


def stage_layers(model: Model, strategy: Strategy, relax: Relaxation) -> tuple[Scalar, Scalar]:
    """Layers of the fullest pipeline stage and of the last one, which has the vocabulary projection to compute as well.

    All hold the same whole number of layers per chunk, the fullest at least; or the last holds fewer, so that all compute as
    much, or none where the projection alone is more: each takes as long as its matrices are large (nanotron's partition).
    """
    depth, chunks = model.depth, strategy.virtual_stages

    def even() -> tuple[Scalar, Scalar]:
        layers = relax.ceil(depth / (strategy.pp * chunks)) * chunks
        return layers, layers

    def balanced() -> tuple[Scalar, Scalar]:
        matrices = sum(kind.count * kind.active_matrices(model.hidden) for kind in model.layers)
        projection = model.embedding_parameters * depth / matrices  # in layers
        last = relax.excess((depth + projection) / strategy.pp, projection)
        alone = 1 - relax.minimum(strategy.pp - 1, 1.0)
        return (1 - alone) * relax.ceil((depth - last) / larger(strategy.pp - 1, 1.0)) + alone * depth, last

    return choose(strategy.balanced_head, {"off": even, "on": balanced})


def copies(strategy: Strategy) -> Scalar:
    """Stages' worth of layers that a device holds: two with DualPipe, one from either end."""
    return 1 + strategy.schedule.dualpipe

"""Rules of the pipeline: how layers are split into stages and chunks, and what its schedules need."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool

from diffperf.quantity import Scalar, replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.rules.verdict import Verdict, Violation
from diffperf.workload.rules.wording import nearest_multiples, show, use_nearest
from diffperf.workload.strategy import Strategy
from diffperf.workload.whole_numbers import divides, reaches

_HALF_A_LAYER = 0.5  # what is less is rounding


def every_chunk_has_a_layer(configuration: Configuration) -> Verdict:
    """Every chunk of every pipeline stage has at least one layer, or an embedding in place of one.

    Chunks need not be of one size.
    """
    model, strategy = configuration.model, configuration.strategy
    shared, stages = _shared_layers(model, strategy)

    def explain() -> Violation:
        return Violation(
            key="strategy.pp",
            found=f"{show(strategy.pp)} stages of {show(strategy.virtual_stages)} chunks "
            f"for {show(model.depth)} layers",
            expected="at least one layer per chunk",
            remedy=f"use at most {show(model.depth)} chunks in all: {_fewer_chunks(model, strategy)}"
            + _in_place_of_layers(model, strategy),
        )

    chunks = stages * strategy.virtual_stages
    return Verdict((chunks <= 0) | reaches(shared, chunks), explain)


def given_stages_leave_layers(configuration: Configuration) -> Verdict:
    """Layers that the strategy gives the first and the last stage leave some for the other stages, and none
    where there are no other stages.
    """
    model, strategy = configuration.model, configuration.strategy
    first, last = strategy.first_stage_layers, strategy.last_stage_layers
    _, others = _shared_layers(model, strategy)
    left = model.depth - first - last

    def explain() -> Violation:
        return Violation(
            key="strategy.first_stage_layers" if float(first) > 0 else "strategy.last_stage_layers",
            found=f"{show(first)} and {show(last)} layers of the first and the last of {show(strategy.pp)} "
            f"stages, of {show(model.depth)} in all",
            expected="numbers that leave layers for all other stages, and none over",
            remedy="change first_stage_layers or last_stage_layers, or use 0 for as many as the others",
        )

    fills = jnp.where(others > 0, left > 0, jnp.abs(left) < _HALF_A_LAYER)
    none = (first <= 0) & (last <= 0)
    return Verdict(none | ((strategy.pp > 1) & fills), explain)


def _shared_layers(model: Model, strategy: Strategy) -> tuple[Scalar, Scalar]:
    """The layers that stages share evenly, with embeddings that take the place of one, and the number of
    these stages: all but a first or last stage with a number of layers of its own.
    """
    first, last = strategy.first_stage_layers, strategy.last_stage_layers
    no_first, no_last = jnp.where(first > 0, 0.0, 1.0), jnp.where(last > 0, 0.0, 1.0)
    pipeline = jnp.where(strategy.pp > 1, 1.0, 0.0)
    embeddings = no_first * strategy.embedding_in_split.on + no_last * strategy.loss_in_split.on
    stages = strategy.pp - pipeline * (2 - no_first - no_last)
    return model.depth - first - last + pipeline * embeddings, stages


def _fewer_chunks(model: Model, strategy: Strategy) -> str:
    """The most stages with as many chunks each, and the most chunks of as many stages, that have a layer."""
    stages = math.floor(float(model.depth / strategy.virtual_stages))
    chunks = math.floor(float(model.depth / strategy.pp))
    interleaved = chunks > 0 and float(strategy.virtual_stages) > 1
    return f"pp {max(stages, 1)}" + (f" or virtual_stages {chunks}" if interleaved else "")


def _in_place_of_layers(model: Model, strategy: Strategy) -> str:
    """The embeddings that give every chunk something to do in place of layers, as a last part of a remedy;
    empty where they do not. Inference does not take them.
    """
    switches = ("embedding_in_split", "loss_in_split")
    where = "" if float(strategy.virtual_stages) > 1 else "in training "
    for names in (switches[1:], switches):  # the vocabulary projection alone, or both
        shared, stages = _shared_layers(model, replace(strategy, dict.fromkeys(names, True)))
        if bool(reaches(shared, stages * strategy.virtual_stages)):
            return f", or {where}{' and '.join(names)} on"
    return ""


def interleaving_needs_a_pipeline(configuration: Configuration) -> Verdict:
    """A model has chunks to interleave only where it is split into pipeline stages."""
    strategy = configuration.strategy

    def explain() -> Violation:
        return Violation(
            key="strategy.virtual_stages",
            found=f"{show(strategy.virtual_stages)} chunks with one pipeline stage",
            expected="interleaving only where pp is above 1",
            remedy="set virtual_stages to 1 or pp above 1",
        )

    return Verdict(_is_not_interleaved(strategy) | (strategy.pp > 1), explain)


def only_1f1b_interleaves(configuration: Configuration) -> Verdict:
    """Only 1F1B, of all schedules, is defined for several chunks per stage (Megatron-LM, arXiv 2104.04473
    §2.2).
    """
    strategy = configuration.strategy

    def explain() -> Violation:
        schedule = strategy.schedule.likeliest()
        return Violation(
            key="strategy.virtual_stages",
            found=f"{show(strategy.virtual_stages)} chunks per stage with schedule {schedule}",
            expected="one chunk per stage: only 1f1b interleaves",
            remedy='set virtual_stages to 1 or schedule to "1f1b"',
        )

    return Verdict(_is_not_interleaved(strategy) | (strategy.schedule["1f1b"] > 0.5), explain)


def stages_divide_interleaved_micro_batches(configuration: Configuration) -> Verdict:
    """Interleaved 1F1B passes micro-batches on in groups of one for each stage (Megatron-LM, arXiv 2104.04473
    §2.2).
    """
    strategy = configuration.strategy

    def explain() -> Violation:
        unit = strategy.dp * strategy.micro_batch * strategy.pp
        batches = nearest_multiples(strategy.global_batch, unit)
        return Violation(
            key="strategy.virtual_stages",
            found=f"{show(strategy.micro_batches)} micro-batches for {show(strategy.pp)} interleaved stages",
            expected="a multiple of pp micro-batches (arXiv 2104.04473 §2.2)",
            remedy=f"use a global_batch of {batches}, or set virtual_stages to 1",
        )

    return Verdict(_is_not_interleaved(strategy) | divides(strategy.pp, strategy.micro_batches), explain)


def dualpipe_feeds_both_ends(configuration: Configuration) -> Verdict:
    """DualPipe feeds an even number of stages from both ends (DeepSeek-V3, arXiv 2412.19437 §3.2.1)."""
    model, strategy = configuration.model, configuration.strategy

    def explain() -> Violation:
        possible = _possible_dualpipe_stages(model, strategy)
        return Violation(
            key="strategy.schedule",
            found=f"dualpipe with {show(strategy.pp)} stages and "
            f"{show(strategy.micro_batches)} micro-batches",
            expected="an even number of stages, and two micro-batches for each (arXiv 2412.19437 §3.2.1)",
            remedy=use_nearest("pp", strategy.pp, possible, "a larger global_batch or another schedule"),
        )

    fed = divides(jnp.asarray(2.0), strategy.pp) & reaches(strategy.micro_batches, 2 * strategy.pp)
    return Verdict((strategy.schedule.dualpipe < 0.5) | fed, explain)


def _possible_dualpipe_stages(model: Model, strategy: Strategy) -> list[int]:
    """The even numbers of stages that have at least one layer and two micro-batches each."""
    most = min(float(model.depth), float(strategy.micro_batches) / 2)
    return list(range(2, math.floor(most) + 1, 2))


def _is_not_interleaved(strategy: Strategy) -> Bool[Array, ""]:
    """Whether every pipeline stage is a single chunk of the model."""
    return jnp.asarray(strategy.virtual_stages <= 1)

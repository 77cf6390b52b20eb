"""The passes and the memory of an engine: the one place where serving asks for times of passes."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp

from diffperf.estimate.drafting import drafted_token_time, drafting_time
from diffperf.estimate.energy import dynamic_limit
from diffperf.estimate.pass_time import TimedPass, fullest_share, launch_time, timed_passes
from diffperf.estimate.serving.engine_steps import InterpolatedSteps
from diffperf.estimate.serving.monotone_interpolation import Interpolant
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar, replace
from diffperf.relax import Relaxation, larger, smaller
from diffperf.traced_once import traced_once
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import Memory, inference_memory, kv_cache_bytes
from diffperf.workload.passes import TokenPass, sequence_parts
from diffperf.workload.requests import Requests

# Batches at which passes are evaluated, spread evenly on a logarithmic scale; between them, passes are
# interpolated. Their number is a choice: each takes an evaluation of a pass.
NODES = 6
_LEAST_LARGEST = 2.0  # sequences of the largest batch, so that nodes differ


class PassParts(eqx.Module):
    """The time of a pass by what it depends on, and its energy beyond idle power, of all devices of the
    system.

    - `of_tokens`: seconds of what depends on the number of tokens alone.
    - `of_sequences`: seconds of attention, vocabulary projection and the engine's host, with the waits in a
      pipeline for stages that have these.
    - `attention`: seconds of attention alone, with the exposed exchange of context-parallel ranks around it;
      `head`: of the vocabulary projection alone; `per_layer`: seconds of an average layer.
    - `throttling`: the seconds of `of_tokens` that the power limit adds.
    - `energy`: joules beyond the idle power.
    """

    of_tokens: Scalar
    of_sequences: Scalar
    attention: Scalar
    head: Scalar
    per_layer: Scalar
    throttling: Scalar
    energy: Scalar

    @property
    def power(self) -> Scalar:
        """Watts beyond the idle power."""
        return self.energy / (self.of_tokens + self.of_sequences)


@traced_once
def passes(c: Configuration, passed: dict[str, TokenPass]) -> dict[str, PassParts]:
    """The passes of one engine, by name."""
    return {name: _parts(c, timed) for name, timed in timed_passes(c, passed).items()}


def _parts(c: Configuration, timed: TimedPass) -> PassParts:
    part = timed.breakdown
    attention = part.attention + part.context_parallel
    in_layers = part.matmul + part.elementwise + part.tensor_parallel + part.expert_parallel
    # Micro-batches wait for the fullest stage as far as it has more layers than a mean one, else for heads.
    for_layers = smaller(part.pipeline_queue, (fullest_share(c) - 1) * in_layers)
    of_sequences = attention + part.head + part.host + part.pipeline_queue - for_layers
    return PassParts(
        of_tokens=part.total - of_sequences,
        of_sequences=of_sequences,
        attention=attention,
        head=part.head,
        per_layer=(part.total - part.head - part.host) / c.model.depth,
        throttling=timed.throttling,
        energy=timed.energy.dynamic,
    )


def decode_pass(c: Configuration, queries: Scalar, context: Scalar) -> TokenPass:
    """A pass in which the sequences that an engine runs get `queries` tokens each after a context of
    `context` tokens. In a pipeline each stage works on its part of the sequences at a time.
    """
    parts = sequence_parts(c)
    return TokenPass(
        sequences=c.strategy.replica_sequences / parts,
        queries=queries,
        context=context,
        parts=parts,
        generating=True,
        serving=True,
    )


def running_sequences(c: Configuration, running: Scalar) -> Configuration:
    """The configuration whose engines run so many sequences each."""
    return dataclasses.replace(c, strategy=replace(c.strategy, {"global_batch": running * c.strategy.dp}))


def prompt_chunk_pass(requests: Requests) -> TokenPass:
    """An average chunk of a prompt.

    Its context is such that a token of it attends to as much as a token of a prompt does on average.
    """
    # From the mean length itself: a mean over representative lengths is round but for rounding errors, and
    # kernels that work on whole tiles would take one more.
    prompt = larger(requests.input_length * (1 - requests.cached_share), 1.0)
    tokens = jnp.minimum(prompt, requests.chunk)
    cached = larger(requests.input_length - prompt, 0.0)
    weighted = prompt * (1 + requests.input_spread**2)  # mean length of the prompt of a random token
    context = cached + weighted / 2 + tokens / 2
    return TokenPass(sequences=jnp.ones_like(prompt), queries=tokens, context=context, serving=True)


def step_tokens(c: Configuration, requests: Requests) -> Scalar:
    """Most tokens of an engine's step: every stage of a pipeline works on a chunk of its own."""
    return requests.chunk * c.strategy.pp


class EnginePasses(eqx.Module):
    """The passes of an engine: the times of its steps, and the energy of the whole system beyond idle power.

    - `decode_energy`: joules of a decode step, against sequences of each engine.
    - `prompt_energy`: joules for a token of a prompt in a step of its own; `weights_energy`: joules of a
      step with a single token, nearly all of them for reading weights.
    - `power_limit`: the most watts that the system can draw beyond idle power.
    """

    steps: InterpolatedSteps
    decode_energy: Interpolant
    prompt_energy: Scalar
    weights_energy: Scalar
    power_limit: Scalar
    relax: Relaxation


def engine_passes(c: Configuration, requests: Requests, traffic: Traffic, most: Scalar) -> EnginePasses:
    """The passes of an engine that decodes for up to `most` sequences, from those at `NODES` batches."""
    queries, ranks = 1 + requests.draft_tokens, c.strategy.cp
    # No step has more tokens than a full one, or than all sequences decode. A full one is a node, whatever
    # the number of sequences: passes that work on whole tiles jump where a node crosses the edge of a tile.
    # Context-parallel ranks share the tokens of prompts.
    largest_batch = larger(larger(most, step_tokens(c, requests) / (queries * ranks)), _LEAST_LARGEST)
    exponents = jnp.linspace(0.0, 1.0, NODES, dtype=most.dtype)
    nodes = jnp.exp(exponents * jnp.log(largest_batch))

    def decode_at(running: Scalar) -> PassParts:
        filled = running_sequences(c, running)
        return passes(filled, {"decode": decode_pass(filled, queries, traffic.context)})["decode"]

    decode = jax.vmap(decode_at)(nodes)
    # A drafting pass has one token of each sequence, a decode pass the drafted ones too: a module that reads
    # its weights takes about as long for either.
    module = Interpolant.through(nodes * queries, decode.per_layer + decode.head)
    one_pass = decode.of_tokens + decode.of_sequences
    drafted = drafted_token_time(requests.draft_share, one_pass, jax.vmap(module)(nodes))
    drafting = drafting_time(c, drafted, requests.draft_tokens, nodes)
    chunk = prompt_chunk_pass(requests)
    prompt, prefix = _prompt_pass(running_sequences(c, jnp.ones_like(most)), chunk)
    # Linear layers are those of decode passes, in which attention waits for memory and lets the device rest.
    # Prompts have little of it, so that the power limit slows their layers more.
    prompt_throttling = c.relax.excess(
        prompt.throttling / chunk.queries,
        decode.throttling[-1] / (nodes[-1] * queries) * (c.strategy.pp / ranks),
    )
    return EnginePasses(
        steps=InterpolatedSteps(
            of_tokens=Interpolant.through(nodes * queries, decode.of_tokens),
            of_sequences=Interpolant.through(nodes, decode.of_sequences + drafting),
            # Each stage of a pipeline has a part of the prompt tokens of a step.
            of_prompt_token=((prompt.attention + prefix) / chunk.queries + prompt_throttling) / c.strategy.pp,
            queries=queries,
            prompt_ranks=ranks,
            prompt_launch=launch_time(c) / c.strategy.pp,
        ),
        # Drafting draws the power of a decode pass.
        decode_energy=Interpolant.through(
            nodes, decode.energy * (1 + requests.draft_tokens * drafted / one_pass)
        ),
        prompt_energy=prompt.energy / chunk.queries,
        weights_energy=decode.energy[0],
        power_limit=larger(power_limit(c, prompt), jnp.max(jax.vmap(lambda parts: parts.power)(decode))),
        relax=c.relax,
    )


def _prompt_pass(c: Configuration, chunk: TokenPass) -> tuple[PassParts, Scalar]:
    """The pass of a chunk of a prompt, and those of its seconds that linear layers spend on tokens before it,
    at the clock that software allows: latent attention projects their latents to keys and values.
    """
    if not any(layers.latent is not None for layers in c.model.layers):
        return passes(c, {"prompt": chunk})["prompt"], jnp.zeros_like(chunk.queries)
    first = dataclasses.replace(chunk, context=chunk.queries)
    both = passes(c, {"prompt": chunk, "first": first})
    later, alone = (both[name].of_tokens - both[name].throttling for name in ("prompt", "first"))
    return both["prompt"], c.relax.excess(later, alone)


def power_limit(c: Configuration, *of_passes: PassParts) -> Scalar:
    """The most watts that all devices can draw beyond their idle power: what the power limit leaves, or what
    passes take that exceed it even at the lowest clock.
    """
    return functools.reduce(larger, (parts.power for parts in of_passes), dynamic_limit(c.system))


def sequence_bytes(c: Configuration, context: Scalar) -> Scalar:
    """Bytes of the KV cache of one sequence of `context` tokens on a device, in whole blocks."""
    alone = replace(c.strategy, {"global_batch": c.strategy.dp})
    return kv_cache_bytes(dataclasses.replace(c, strategy=alone), context)


def engine_memory(c: Configuration, requests: Requests, traffic: Traffic, sequences: Scalar) -> Memory:
    """The memory of a device: weights, `sequences` sequences of mean context, activations of a full step.

    Engines keep their KV cache in device memory, whatever share of it other memory levels may hold.
    """
    step = {
        "global_batch": c.strategy.dp,
        "sequence_length": requests.chunk,
        "cached_share": jnp.zeros_like(requests.chunk),
        "output_length": jnp.zeros_like(requests.chunk),
    }
    base = inference_memory(eqx.tree_at(lambda c: c.strategy, c, replace(c.strategy, step)))
    return base.with_cache(c, sequences * sequence_bytes(c, traffic.context))


def kv_room(c: Configuration, requests: Requests, traffic: Traffic) -> tuple[Scalar, Scalar]:
    """Bytes of device memory that the KV cache may take, and those that one sequence takes.

    The room is what weights and the activations of a step leave, and at least that of one sequence. An
    engine with a paged cache admits what fits and takes blocks as sequences grow (PagedAttention, SOSP'23
    §4.3), so that the mean context of running sequences counts, not the longest.
    """
    alone = engine_memory(c, requests, traffic, jnp.ones_like(traffic.context))
    left = larger(alone.capacity - alone.peak, 0.0) / c.system.stack.fragmentation
    # A model whose state does not grow may keep next to nothing: a byte bounds the number of sequences.
    cache = larger(alone.kv_cache, 1.0)
    return left + cache, cache

"""Operator by operator: how long each kernel of a training step takes, and which resource bounds it.

What bounds a kernel is read off derivatives: its time falls by some share of a per cent for one per cent more of a resource, and
the shares of all resources, with what no rate changes (latencies and launches), add up to one.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.kernels.attention import context_passes
from diffperf.estimate.kernels.elementwise import as_fused, stream_work
from diffperf.estimate.kernels.gemm import gemm_work
from diffperf.estimate.kernels.roofline import Machine, together
from diffperf.estimate.layer import layer_tables
from diffperf.hardware.system import System
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Layers
from diffperf.workload.operators import concatenate, head
from diffperf.workload.schedule import stage_layers

OVERHEAD = "latency and launch"


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator of a training step on a device of the slowest pipeline stage.

    - `count`: how often it runs in a step.
    - `time`: s in all.
    - `bounds`: by resource, the share of a per cent that one per cent more of it saves.
    """

    name: str
    count: float
    time: float
    bounds: dict[str, float]

    @property
    def bound(self) -> str:
        """The resource that bounds it most."""
        return max(self.bounds, key=self.bounds.__getitem__)


def _resources(system: System) -> list[str]:
    levels = [f"{level.name} bandwidth" for level in system.accelerator.memory[1:]]
    return ["matrix units", "vector units", *levels, "power"]


def _scaled(system: System, growth: Float[Array, " resources"]) -> System:
    """The system with each of its resources grown by a logarithm."""
    factor = jnp.exp(growth)
    accelerator = system.accelerator
    matrix = jax.tree.map(lambda kind: eqx.tree_at(lambda k: k.rate, kind, kind.rate * factor[0]), accelerator.matrix,
                          is_leaf=lambda node: hasattr(node, "rate"))  # fmt: skip
    memory = tuple(
        level
        if index == 0
        else eqx.tree_at(lambda m: m.bandwidth, level, level.bandwidth * factor[1 + index])
        for index, level in enumerate(accelerator.memory)
    )
    # Energies stay; leakage grows with the limit, so that what is left for arithmetic and data grows by the same factor.
    grown = eqx.tree_at(
        lambda a: (a.matrix, a.vector, a.memory, a.power_limit, a.static_power),
        accelerator,
        (
            matrix,
            accelerator.vector * factor[1],
            memory,
            accelerator.power_limit * factor[-1],
            accelerator.static_power * factor[-1],
        ),
    )
    return eqx.tree_at(lambda s: s.accelerator, system, grown)


def _linear_names(layers: Layers) -> list[str]:
    """The rows of `linear_layers`, in their order."""
    attention = ["qkv"] if layers.latent is None else ["latents", "queries", "keys and values"]
    mlp = ["mlp up", "mlp down"]
    if layers.mixture is not None:
        mlp = ["experts up", "experts down", "shared experts up", "shared experts down", "router"]
    return [*attention, "attention output", *mlp]


def _elementwise_names(layers: Layers) -> list[str]:
    """The rows of `elementwise_forward`, in their order."""
    names = ["norm 1", "norm 2", "residual 1", "residual 2", "activation", "rotary embedding"]
    return names if layers.mixture is None else [*names, "copy to experts", "copy from experts"]


def _names(inputs: Configuration) -> list[str]:
    names = []
    for group in inputs.model.kinds:
        sort = "dense" if group.mixture is None else "experts"
        numbers = [f" {i + 1}" if len(group.count) > 1 else "" for i in range(len(group.count))]
        kinds = [f" ({sort} layers{number})" if len(inputs.model.layers) > 1 else "" for number in numbers]
        linear, elementwise = _linear_names(group), _elementwise_names(group)
        for kind in kinds:
            names += [f"{name}{kind}" for name in linear]
            names += [f"{name}, gradient of inputs{kind}" for name in linear]
            names += [f"{name}, gradient of weights{kind}" for name in linear]
            core = "attention core" if group.recurrence is None else "recurrence"
            names += [f"{core}{kind}", f"{core}, backward{kind}"]
            names += [f"{name}{kind}" for name in elementwise] + [
                f"{name}, backward{kind}" for name in elementwise
            ]
    return [*names, "vocabulary projection", "vocabulary projection, gradients", "loss"]


def _times(
    inputs: Configuration, growth: Float[Array, " resources"]
) -> tuple[Float[Array, " operators"], Float[Array, " operators"]]:
    """Seconds of each operator, in the order of `_names`, and how often it runs in a step."""
    model, strategy, relax = inputs.model, inputs.strategy, Exact()
    machine = Machine.of(_scaled(inputs.system, growth), strategy, relax)
    logits = head(model, strategy.tp, strategy.tokens)
    gemms = {"head": concatenate(logits, logits.backward)}
    streams = {
        "loss": jnp.reshape(24 * strategy.tokens * model.vocabulary / strategy.tp / machine.activation, (1,))
    }
    groups = layer_tables(
        model, strategy, strategy.micro_batch, strategy.sequence_length, strategy.sequence_length
    )
    for i, tables in enumerate(groups):
        linear = tables.linear
        gemms |= {(i, 0): linear, (i, 1): linear.input_gradient, (i, 2): linear.weight_gradient}
        if tables.core is None:
            streams |= {(i, "recurrence", part): tables.softmax[part] for part in (0, 1)}
        streams |= {(i, 3): tables.forward * as_fused(machine), (i, 4): tables.backward * as_fused(machine)}
    products, moved = together(gemm_work, machine, gemms), together(stream_work, machine, streams)
    attending = {i: tables.core for i, tables in enumerate(groups) if tables.core is not None}
    cores = together(context_passes, machine, attending) if attending else {}

    layers = stage_layers(model, strategy, relax)[1] * strategy.micro_batches
    times, counts = [], []
    for i, tables in enumerate(groups):
        linear = [products[i, part].time for part in range(3)]
        if tables.core is None:
            passes = [moved[i, "recurrence", part].total().time[:, None] for part in (0, 1)]
        else:
            passes = [work.time[:, None] for work in cores[i]]
        elementwise = [moved[i, part].time * machine.elementwise_kernels for part in (3, 4)]
        times.append(jnp.ravel(jnp.concatenate([*linear, *passes, *elementwise], axis=1)))
        counts.append(jnp.repeat(layers * tables.share, len(times[-1]) // len(tables.share)))
    projection = products["head"].time
    times.append(
        jnp.concatenate([projection[:1], jnp.sum(projection[1:], keepdims=True), moved["loss"].time])
    )
    counts.append(jnp.repeat(strategy.micro_batches, 3))
    return jnp.concatenate(times), jnp.concatenate(counts)


@jax.jit
def _evaluate(inputs: Configuration):
    """Times, counts, and by how much each time falls as each resource grows, relative to both."""

    def at(growth):
        times, counts = _times(inputs, growth)
        return times, (times, counts)

    slopes, (times, counts) = jax.jacfwd(at, has_aux=True)(jnp.zeros(len(_resources(inputs.system))))
    return times, counts, -slopes / jnp.where(times > 0, times, 1.0)[:, None]


def operators(inputs: Configuration) -> list[Operator]:
    """The operators of a training step with fused attention, the longest first; recomputation and communication are not among them.

    An operator that the model lacks, such as shared experts of which there are none, is left out.
    """
    times, counts, shares = jax.device_get(_evaluate(inputs))
    resources = _resources(inputs.system)
    found = []
    for name, time, count, share in zip(_names(inputs), times, counts, shares, strict=True):
        bounds = {resource: max(float(part), 0.0) for resource, part in zip(resources, share, strict=True)}
        bounds[OVERHEAD] = max(1.0 - sum(bounds.values()), 0.0)
        if time > 0:
            found.append(Operator(name, float(count), float(time * count), bounds))
    return sorted(found, key=lambda one: -one.time)


def memory_bound_share(found: list[Operator]) -> float:
    """The share of the operators' time that more bandwidth of some memory level would save, to first order."""
    bound = sum(
        one.time * sum(share for name, share in one.bounds.items() if name.endswith(" bandwidth"))
        for one in found
    )
    return bound / sum(one.time for one in found)

"""Time and energy of one micro-batch in a layer of every kind, and in the pipeline stage that sets the pace.

Arrays with an axis of kinds are ordered as `Model.grouped`.
"""

import functools

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.exposure import LayerCompute, Traffic, Window, exposed_of_layer
from diffperf.estimate.kernels.clock import Clock
from diffperf.estimate.kernels.evaluation import ClockedTime, LabelValues, TimedOperators
from diffperf.estimate.kernels.roofline import Work, waiting
from diffperf.estimate.network.transfers import TimedCollective, Transfer
from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, positive, smaller
from diffperf.software.stack import KERNELS_OF_PASS
from diffperf.workload.attention_operators import fused_softmax
from diffperf.workload.collective import LAYER_PURPOSES, STEP_PURPOSES
from diffperf.workload.configuration import Configuration
from diffperf.workload.operators import SEPARATE_SOFTMAX_KERNELS
from diffperf.workload.recomputation import Recomputation
from diffperf.workload.schedule import StagePass, unpaired_micro_batches
from diffperf.workload.stages import (
    DeviceStages,
    at_both_ends,
    device_stages,
    layers_of_model,
    one_stage,
    over_kinds,
)

PerKind = Float[Array, "..."]  # of a layer of each kind, or of all kinds alike

# All-reduces among the kernels of a forward pass of a layer: see `_launched_kernels`.
_ALL_REDUCES_OF_PASS = 2.0


class LayerWork(eqx.Module):
    """What the operators of one micro-batch take in a layer of every kind, on a device.

    - `forward`, `backward`, `weight_gradients`: seconds of the forward pass, and of the parts of the backward
      pass that other pipeline stages do and do not wait for, without what it recomputes.
    - `elementwise`, `recomputed`: seconds in both passes.
    - `matmul`, `attention`: the work of both passes; `whole`: that of all operators, with what is recomputed.
    """

    forward: ClockedTime
    backward: ClockedTime
    weight_gradients: ClockedTime
    elementwise: ClockedTime
    recomputed: ClockedTime
    matmul: Work
    attention: Work
    whole: Work

    @classmethod
    def of(cls, operators: TimedOperators) -> "LayerWork":
        """What the operators of the layers of each kind take at their clock."""
        parts: dict[str, LabelValues] = {
            "forward": {"direction": "forward"},
            "backward": {"direction": "backward"},
            "weight_gradients": {"direction": "weights"},
            "elementwise": {"part": "elementwise"},
        }
        kinds: list[LabelValues] = [{"per": "layer", "kind": kind} for kind in range(operators.kinds)]
        times = operators.times([{**kind, **part} for part in parts.values() for kind in kinds])
        columns = jnp.reshape(times.time, (-1, len(kinds))), jnp.reshape(times.clocked, (-1, len(kinds)))
        matmul, attention = (
            operators.totals([{**kind, "part": part} for kind in kinds]) for part in ("matmul", "attention")
        )
        return cls(
            **{
                part: ClockedTime(time=time, clocked=clocked)
                for part, time, clocked in zip(parts, *columns, strict=True)
            },
            recomputed=operators.times(kinds, recomputed=True),
            matmul=matmul,
            attention=attention,
            whole=operators.totals(kinds, recomputed=True),
        )

    def at(self, clock: Clock) -> "LayerWork":
        """The same at a clock, from what the operators take at the clock that software allows."""
        return LayerWork(
            forward=clock.slow_time(self.forward),
            backward=clock.slow_time(self.backward),
            weight_gradients=clock.slow_time(self.weight_gradients),
            elementwise=clock.slow_time(self.elementwise),
            recomputed=clock.slow_time(self.recomputed),
            matmul=clock.slow(self.matmul),
            attention=clock.slow(self.attention),
            whole=clock.slow(self.whole),
        )


class LayerStep(eqx.Module):
    """Seconds of one micro-batch in a layer of every kind, on a device.

    - `weight_gradients`: those of the part of the backward pass that no other stage waits for.
    - `recomputed`, `elementwise`: seconds in both passes; `backward` is without what it recomputes.
    - `compute`: the work of both passes, under which communication may run.
    """

    forward: PerKind
    backward: PerKind
    weight_gradients: PerKind
    recomputed: PerKind
    elementwise: PerKind
    compute: LayerCompute

    @classmethod
    def of(cls, work: LayerWork, c: Configuration) -> "LayerStep":
        """Seconds of the work of a micro-batch in a layer of each kind."""
        matmul, attention, whole = (
            Window.of(part, c.system, c.relax) for part in (work.matmul, work.attention, work.whole)
        )
        return cls(
            forward=work.forward.time,
            backward=work.backward.time + work.weight_gradients.time,
            weight_gradients=work.weight_gradients.time,
            recomputed=work.recomputed.time,
            elementwise=work.elementwise.time,
            compute=LayerCompute(matmul=matmul, attention=attention, whole=whole),
        )


# Least time that stages other than the last work, over that for which a stage waits: a stage of hardly any
# layer is no measure of a wait.
_LEAST_PASSES = 1e-4


class NetworkStep(eqx.Module):
    """Transfers of collectives, by purpose: of an average layer and micro-batch; in `totals` those around the
    vocabulary of a micro-batch, and all others of the step.
    """

    layer: dict[str, Transfer]
    by_kind: dict[str, PerKind]  # of a layer of each kind over an average layer
    totals: dict[str, Transfer]
    # 1 where neighbouring pipeline stages lie in different domains of the innermost network tier, else 0.
    crosses_tiers: Scalar

    @classmethod
    def of(cls, collectives: list[TimedCollective], c: Configuration) -> "NetworkStep":
        """Transfers of the collectives of a step, added up by purpose."""
        nothing = Transfer.nothing(c.system)
        layer: dict[str, Transfer] = dict.fromkeys(LAYER_PURPOSES, nothing)
        totals: dict[str, Transfer] = dict.fromkeys(STEP_PURPOSES, nothing)
        alike = jnp.ones_like(layers_of_model(c.model))
        by_kind: dict[str, PerKind] = dict.fromkeys(LAYER_PURPOSES, alike)
        outside = jnp.zeros_like(c.strategy.pp)
        for timed in collectives:
            purpose = timed.collective.purpose
            if timed.collective.per == "layer":
                layer[purpose] = layer[purpose] + timed.transfer * timed.collective.in_layer
                by_kind[purpose] = alike * timed.collective.by_kind
            else:
                totals[purpose] = totals[purpose] + timed.transfer * timed.collective.forward
            if purpose == "pipeline":  # share of a message that leaves the innermost tier
                outside = jnp.sum(timed.transfer.sent[1:]) / timed.collective.volume
        crosses = c.relax.minimum(1.0, (c.strategy.pp - 1) * outside)
        return cls(layer=layer, by_kind=by_kind, totals=totals, crosses_tiers=crosses)

    @property
    def at_ends(self) -> Transfer:
        """Transfers of a micro-batch around the embeddings and the vocabulary projection."""
        return self.totals["embeddings"] + self.totals["vocabulary projection"]

    def layer_traffic(self) -> dict[str, Traffic]:
        """The collectives of a layer of each kind by purpose."""
        return {
            purpose: Traffic.of(transfer, self.by_kind[purpose]) for purpose, transfer in self.layer.items()
        }

    def sent(self, layers: Float[Array, " kinds"], ends: Scalar, stages: Scalar) -> Transfer:
        """Transfers of an average device in a step in which it runs `layers` layers of each kind, and `ends`
        embeddings and projections of a micro-batch; two of the pipeline's `stages` share a tied embedding.
        """
        in_layers = [
            transfer * over_kinds(layers, self.by_kind[purpose]) for purpose, transfer in self.layer.items()
        ]
        embedding = self.totals["tied embedding"] * (2 / stages)
        result = embedding + self.totals["pipeline"] + self.totals["gradients"] + self.totals["weights"]
        result = result + self.at_ends * ends
        for transfer in in_layers:
            result = result + transfer
        return result


class LayerWaits(eqx.Module):
    """Seconds for which a device waits in a layer of each kind, or is slowed down there.

    - `exposed`: exposed seconds of both passes by the purpose of collectives.
    - `forward`, `backward`: seconds of a pass that it waits for the host and for a stalled group.
    """

    exposed: dict[str, PerKind]
    forward: PerKind
    backward: PerKind

    @classmethod
    def of(cls, c: Configuration, layer: LayerStep, network: NetworkStep) -> "LayerWaits":
        """The waits of a micro-batch in a layer of each kind.

        The host launches kernels before the device needs them, and the device waits where its queue runs
        empty: a pass takes the longer of both, nearly.
        """
        exposed = exposed_of_layer(network.layer_traffic(), layer.compute, c)
        half = sum(exposed.values()) / 2
        launch, routing = _host_waits(c, network)
        stall = _group_stall(c)
        runs = 1 + Recomputation.of(c.strategy).layer
        backward = layer.backward + layer.recomputed + half
        return cls(
            exposed=exposed,
            forward=waiting(layer.forward + half, launch) + routing + stall,
            backward=waiting(backward, runs * launch) + runs * stall,
        )

    @property
    def of_host(self) -> PerKind:
        """Seconds of both passes without those of exposed communication."""
        return self.forward + self.backward

    @property
    def of_network(self) -> PerKind:
        """Seconds of exposed communication of all purposes in both passes."""
        return functools.reduce(jnp.add, self.exposed.values())

    @property
    def total(self) -> PerKind:
        """Seconds of both passes."""
        return self.of_network + self.of_host


class SlowestStage(eqx.Module):
    """The pipeline stage that sets the pace, and the stages before the last.

    - `layers`: layers of each kind whose time, with that of `head`, is the last stage's time per micro-batch:
      its own, or, where it waits for a slower stage, as many of that stage's as the wait lasts.
    - `head`, `embeddings`: vocabulary projections and embeddings of tokens that the last stage computes per
      micro-batch.
    - `forward`, `backward`: seconds of a micro-batch on the slowest stage before the last, with exposed
      communication and what is recomputed.
    - `memory_share`: share of the seconds of both passes that grow as device memory becomes slower.
    - `waits`: seconds that a layer of each kind waits for the host in both passes.
    - `exposed`: exposed seconds of a layer of each kind by the purpose of collectives.
    - `traffic`: collectives of the layers in both passes of a micro-batch on the slowest stage before the
      last.
    - `uncovered`: seconds of a step in which the dispatch to experts, hidden at other times, has no other
      micro-batch to hide under.
    - `micro_batch`: the mean pass of all stages but the slowest, with waits.
    """

    layers: Float[Array, " kinds"]
    head: Scalar
    embeddings: Scalar
    forward: Scalar
    backward: Scalar
    memory_share: Scalar
    waits: PerKind
    exposed: dict[str, PerKind]
    traffic: list[Traffic]
    uncovered: Scalar
    micro_batch: StagePass

    @classmethod
    def of(cls, c: Configuration, layer: LayerStep, network: NetworkStep, head: Scalar) -> "SlowestStage":
        """The slowest stage where vocabulary projection and loss of a micro-batch take `head` seconds.

        Half of the exposed communication is in either pass.
        """
        traffic, waits = network.layer_traffic(), LayerWaits.of(c, layer, network)
        half = waits.of_network / 2
        forward, backward = layer.forward + half, layer.backward + layer.recomputed + half
        stages = device_stages(c.model, c.strategy, c.relax)
        rows = stages.all_layers
        before = (rows[0] + stages.middles) / larger(c.strategy.pp - 1, 1.0)  # the mean stage before the last
        time = layer.compute.whole.time + waits.total
        embeddings = at_both_ends(stages.embeddings, one_stage(c.strategy, c.relax))
        embedding, projection = (
            network.totals[purpose].time for purpose in ("embeddings", "vocabulary projection")
        )
        heads = stages.heads * (head + projection) + embeddings * embedding
        first, middle = over_kinds(rows[:2], time)
        is_first, slowest = _slowest_before_last(first + heads[0], middle)
        fullest = jnp.where(is_first, rows[0], rows[1])
        waited = c.relax.excess(slowest, heads[-1])
        layers = _layers_waited_for(waited, rows[-1], fullest, time)
        whole_passes = forward + waits.forward, backward + waits.backward
        filling = _idle_share(c, stages, *whole_passes, heads)
        # Half of what hides under another micro-batch is in either pass, and shows while the pipeline fills
        # and drains.
        purpose = "expert parallelism"
        hidden = (traffic[purpose].time - waits.exposed[purpose]) * c.strategy.schedule.dualpipe
        both_passes = positive(over_kinds(fullest, forward + backward))
        alone = over_kinds(before, hidden / 2)
        return cls(
            layers=layers,
            head=stages.heads[-1],
            embeddings=embeddings[-1],
            forward=over_kinds(fullest, forward),
            backward=over_kinds(fullest, backward),
            memory_share=over_kinds(fullest, layer.compute.whole.memory) * inverse(both_passes),
            waits=waits.of_host,
            exposed=waits.exposed,
            traffic=[of_layer.in_layers(fullest) for of_layer in traffic.values()],
            uncovered=unpaired_micro_batches(c.strategy) * over_kinds(layers, hidden),
            micro_batch=StagePass(
                forward=filling * (over_kinds(before, whole_passes[0]) + alone),
                backward=filling * (over_kinds(before, whole_passes[1]) + alone),
                weight_gradients=filling * over_kinds(before, layer.weight_gradients),
            ),
        )


def _layers_waited_for(
    waited: Scalar, last: Float[Array, " kinds"], slowest: Float[Array, " kinds"], time: PerKind
) -> Float[Array, " kinds"]:
    """Layers of each kind after whose time the last stage ends its part of a micro-batch, beside the head.

    The slowest stage sets the pace. Where that is not the last, the last stage waits for it as if it had so
    many more layers, as far as its own vocabulary projections do not cover the difference: for `waited`
    seconds. `last` and `slowest` are the layers of the last stage and of the slowest before it, `time` the
    seconds of a layer of each kind.
    """
    passes = larger(over_kinds(slowest, time), _LEAST_PASSES * waited)
    like_slowest = slowest * (waited * inverse(positive(passes)))
    return jnp.where(over_kinds(last, time) >= waited, last, like_slowest)


def _slowest_before_last(first: Scalar, middle: Scalar) -> tuple[Array, Array]:
    """Whether the first stage is the slowest before the last, and seconds of the slowest; from the seconds
    of a micro-batch on the first stage, its heads included, and on a middle stage.
    """
    is_first = first >= middle
    return is_first, jnp.where(is_first, first, middle)


def _idle_share(
    c: Configuration,
    stages: DeviceStages,
    forward: PerKind,
    backward: PerKind,
    heads: Float[Array, " stages"],
) -> Scalar:
    """Idle time of the slowest stage under 1F1B, over the passes through the layers of all stages before the
    last; 1 where the last stage is the slowest and tensor-parallel ranks do not exchange embedded tokens.

    A step takes at least as long as any of its stages computes and waits, and nearly as long as the longest
    of these: an event-by-event run finds the same. While a micro-batch is on its way through the n stages
    after a stage, which takes D, that stage works on n others: it waits for max(D − n·F, 0) as the pipeline
    fills and for max(D − n·B, 0) as it drains, beside the passes of the stages before it. If there are no
    more than n others, it works on those, and the waits are one: all forward passes come before it, all
    backward passes after it. Middle stages that hold less than the fullest come after the latter.

    - `forward`, `backward`: seconds of a pass of a micro-batch through a layer of each kind.
    - `heads`: seconds of embeddings and of projections to the vocabulary on the first, a middle and the last
      stage; a third of them counts as forward.
    """
    relax, strategy = c.relax, c.strategy
    rows, between = stages.all_layers, larger(strategy.pp - 2, 0.0)
    passes = over_kinds(rows, forward) + heads / 3, over_kinds(rows, backward) + heads * (2 / 3)
    first, middle, after = passes[0] + passes[1]
    middles = over_kinds(stages.middles, forward + backward)
    full = between - stages.lighter

    def waits(stage: int, way: Scalar, number: Scalar) -> Scalar:
        """Seconds that a stage waits for micro-batches on their way through a number of stages after it."""
        others = smaller(number, strategy.micro_batches - 1)
        filling, draining = (relax.excess(way, others * each[stage]) for each in passes)
        two_waits = smaller(larger(strategy.micro_batches - 1 - number, 0.0), 1.0)
        return larger(filling, draining) + two_waits * smaller(filling, draining)

    # Under DualPipe the projections of the first device are those of the last stage.
    to_middles = first - strategy.schedule.dualpipe * heads[0]
    before = to_middles + middles
    lighter = larger(middles - full * middle, 0.0)  # s of all lighter middle stages
    after_full = waits(1, lighter + after, stages.lighter + 1)
    of_middle = to_middles + larger(full - 1, 0.0) * middle + after_full
    of_first = waits(0, middles + after, 1 + between)
    slowest = larger(larger(first, middle), after)
    # A micro-batch through all chunks shortens the wait of a faster stage by what that one is faster.
    gained = strategy.micro_batches * strategy.virtual_stages
    idle = before - gained * (slowest - after)
    idle = larger(idle, smaller(between, 1.0) * of_middle - gained * (slowest - middle))
    idle = larger(idle, of_first - gained * (slowest - first))
    in_layers = first - heads[0] + middles
    return idle * inverse(positive(larger(in_layers, _LEAST_PASSES * idle)))


def _launched_kernels(c: Configuration) -> PerKind:
    """Kernels of a pass of a layer of each kind, over those with a fused softmax of stored scores and tensor
    parallelism.

    A forward pass of Megatron-LM takes sixteen, as its transformer.py runs them with fusions: four linear
    layers, two products of scores, their softmax and dropout, a copy of the outputs, two norms, the
    activation, two additions of bias, dropout and residual, and two all-reduces, which a rank without tensor
    parallelism leaves out (`_reduce` in mpu/mappings.py). That the backward pass takes as large a share more
    or less is an estimate.
    """
    stack, strategy = c.system.stack, c.strategy
    fused = [fused_softmax(layers, strategy, stack) if layers.attends else None for layers in c.model.grouped]
    alone = 1 - c.relax.has_others(strategy.tp)
    always = 1 - _ALL_REDUCES_OF_PASS / KERNELS_OF_PASS * alone
    further = SEPARATE_SOFTMAX_KERNELS / KERNELS_OF_PASS * strategy.attention.standard
    return jnp.stack([always if weight is None else always + (1 - weight) * further for weight in fused])


def _host_waits(c: Configuration, network: NetworkStep) -> tuple[PerKind, PerKind]:
    """Seconds that the host takes to launch one pass of a layer, and that a layer's forward pass waits for
    the host's routing, by kind.

    The host reads how many tokens go to each expert before it sizes the experts' kernels; experts of a set
    capacity do not need that.
    """
    stack, strategy = c.system.stack, c.strategy
    launch = stack.host_launch * _launched_kernels(c)
    tensor_parallel = c.relax.has_others(strategy.tp)
    stalls = network.crosses_tiers * tensor_parallel * strategy.tp * stack.rank_stall
    routes = jnp.asarray([float(kind.mixture is not None) for kind in c.model.grouped], strategy.tp.dtype)
    routing = jnp.where(strategy.capacity_factor > 0, 0.0, stack.routing_wait)
    return launch + stalls, routes * routing


def _group_stall(c: Configuration) -> Scalar:
    """Seconds for which a layer's pass stalls as its tensor-parallel ranks lie in several domains of the
    innermost network tier.
    """
    strategy = c.strategy
    domains = strategy.tp * strategy.stride_of("tp") * inverse(c.system.network[0].size)
    several = c.relax.has_others(larger(domains, 1.0))
    return several * strategy.tp * c.system.stack.group_stall

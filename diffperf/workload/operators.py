"""Operators: units of work that one kernel does on one device, in tables that one evaluation of a kernel
covers.

A table says what its operators have to do (matrix products, bytes to stream, attention cores). An
`Operators` record adds their names, how often each runs, and which part of the time they belong to. How
long they take is `diffperf.estimate.kernels`' business. The last axis of every array in a table runs over
its operators; a leading axis, where there is one, runs over the kinds of layers that ask for the same
operators. All dimensions are those that remain on one device after parallelism.
"""

import dataclasses
import functools
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.hardware.formats import PRECISION_BYTES
from diffperf.quantity import Scalar
from diffperf.relax import inverse, larger, smaller
from diffperf.workload.model import NO_WINDOW

# Kernels of a softmax that is not fused, beyond the one of a softmax that is: conversions to fp32 and back,
# scale and mask (`AttentionCore.softmax`).
SEPARATE_SOFTMAX_KERNELS = 4.0

# Bytes of a dropout mask over those of a 16-bit element: kernels that apply dropout read or write one byte
# for each element (arXiv 2205.05198 §4.1).
DROPOUT_MASK = 0.5

PerCore = Float[Array, "*operators"]  # a number of each attention core of a table

Columns = Mapping[str, tuple[Array | float, ...]]  # a row of numbers for each operator, by its name


# What the right operand of a product (B of A·B) is: weights of the projections around attention, of other
# linear layers, of routed experts, of the vocabulary projection, the KV cache, or activations. In training, a
# vocabulary projection whose rows of logits are not aligned has a role of its own.
ROLES = ("attention", "linear", "expert", "head", "cache", "activations", "unaligned head")


def _stacked(rows: Columns) -> list[Array]:
    """The columns of a table from its rows, each with a last axis of operators."""
    columns = zip(*rows.values(), strict=True)
    return [jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, column)), axis=-1) for column in columns]


class Gemms(eqx.Module):
    """Matrix products C[m, n] = A[m, k] · B[k, n], `batch` independent problems for each operator.

    A batch below one counts as that part of a kernel, a batch of 0 as no kernel. `roles` says what B
    is, a name from `ROLES` for each operator: in inference number formats may differ between them.
    `accumulator` is the bytes of an element of C where products are added to it, so that kernels read and
    write it; 0 where they only write C, in the format of products. `kernels` is the number of kernels that
    share the batch. `on_vector_units` is 1 where the matrix units cannot take the operands, else 0.
    `untuned` is the share of the products of each operator that kernels multiply in tiles whose shapes are
    not tuned. `random_rows` is 1 where m is the mean of random numbers of rows, one for each problem of the
    batch, else 0.
    """

    m: Float[Array, "*kinds operators"]
    n: Float[Array, "*kinds operators"]
    k: Float[Array, "*kinds operators"]
    batch: Float[Array, "*kinds operators"]
    accumulator: Float[Array, "*kinds operators"]
    kernels: Float[Array, "*kinds operators"]
    on_vector_units: Float[Array, "*kinds operators"]
    untuned: Float[Array, "*kinds operators"]
    random_rows: Float[Array, "*kinds operators"]
    names: tuple[str, ...] = eqx.field(static=True, default=())
    roles: tuple[str, ...] = eqx.field(static=True, default=())

    @classmethod
    def table(cls, rows: Columns, roles: Mapping[str, str] | None = None) -> "Gemms":
        """A table from (m, n, k, batch) of each operator by its name, and the roles but "linear"."""
        m, n, k, batch = _stacked(rows)
        of_rows = tuple((roles or {}).get(name, "linear") for name in rows)
        sizes = {"m": m, "n": n, "k": k, "batch": batch}
        alone = {"accumulator": jnp.zeros_like(m), "kernels": jnp.ones_like(m)}
        none = dict.fromkeys(("on_vector_units", "untuned", "random_rows"), jnp.zeros_like(m))
        return cls(**sizes, **alone, **none, names=tuple(rows), roles=of_rows)

    @property
    def flops(self) -> Float[Array, "*kinds operators"]:
        """FLOP of one run of every operator: a multiplication and an addition for each term of a product."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def _of_experts(self) -> Float[Array, " operators"]:
        """1 for the products of experts, 0 for others."""
        return jnp.asarray([float(role == "expert") for role in self.roles], self.m.dtype)

    @property
    def input_gradient(self) -> "Gemms":
        """dA[m, k] = dC[m, n] · Bᵀ[n, k] of every operator."""
        names = tuple(f"{name}, gradient of inputs" for name in self.names)
        return dataclasses.replace(self, n=self.k, k=self.n, names=names)

    @property
    def weight_gradient(self) -> "Gemms":
        """dB[k, n] = Aᵀ[k, m] · dC[m, n] of every operator."""
        names = tuple(f"{name}, gradient of weights" for name in self.names)
        return dataclasses.replace(self, m=self.k, k=self.m, names=names)

    def added_to(self, accumulator: Array | float) -> "Gemms":
        """The same products, added to sums of `accumulator` bytes an element."""
        return dataclasses.replace(self, accumulator=jnp.broadcast_to(accumulator, self.m.shape))

    def with_separate_experts(self, weight: Array | float) -> "Gemms":
        """The same products, with the weight of a kernel for each expert in place of one for all."""
        return self.in_kernels(1 + weight * self._of_experts * larger(self.batch - 1, 0.0))

    def with_untuned_experts(self, share: Array | float) -> "Gemms":
        """The same products, with those of experts in tiles that are not tuned by a share."""
        return dataclasses.replace(self, untuned=self._of_experts * share)

    def with_random_experts(self) -> "Gemms":
        """The same products, each of whose experts has a random number of rows."""
        return dataclasses.replace(self, random_rows=jnp.broadcast_to(self._of_experts, self.m.shape))

    def with_matrix_units(self, weight: Array | float) -> "Gemms":
        """The same products, on the matrix units by a weight and on the vector units by the rest."""
        return dataclasses.replace(self, on_vector_units=jnp.broadcast_to(1.0 - weight, self.m.shape))

    def of_role(self, role: str) -> "Gemms":
        """The same products, all of one role."""
        return dataclasses.replace(self, roles=(role,) * len(self.names))

    def in_kernels(self, kernels: Array | float) -> "Gemms":
        """The same products, with the batch of each operator shared by some kernels."""
        return dataclasses.replace(self, kernels=jnp.broadcast_to(kernels, self.m.shape))


class Streams(eqx.Module):
    """Kernels that stream through device memory and compute little: element-wise kernels, norms, losses,
    optimizer updates.
    """

    bytes: Float[Array, "*kinds operators"]
    names: tuple[str, ...] = eqx.field(static=True, default=())

    @classmethod
    def table(cls, rows: Mapping[str, Array | float]) -> "Streams":
        """A table from the bytes that each operator reads and writes, by its name."""
        (moved,) = _stacked({name: (size,) for name, size in rows.items()})
        return cls(bytes=moved, names=tuple(rows))

    def __mul__(self, factor: Array | float) -> "Streams":
        return Streams(bytes=self.bytes * factor, names=self.names)


class AttentionCore(eqx.Module):
    """softmax(Q·Kᵀ)·V for `sequences` sequences: `queries` new tokens attend to a context that ends with
    them.

    - `causal`: weight of the causal mask; without the mask every query sees the whole context.
    - `window`: the latest tokens that a query sees at most (sliding window); `NO_WINDOW` for all of them.
    - `head_dim`: dimensions of a query and a key; `value_dim`: of a value and an output, as many unless
      given.
    - `latent`: weight of values that are part of the keys, read once. Multi-head latent attention
      (DeepSeek-V2, arXiv 2405.04434 §2.1) decodes so: one KV head whose keys are the latent and the rotary
      part (512 + 64 dimensions), whose values are the latent (512).
    - `backward`: 1 for the backward pass, 0 for the forward pass.
    - `launches`: kernels that a pass takes: a ring of context-parallel ranks launches one for every block
      of keys and values.
    """

    sequences: PerCore
    queries: PerCore
    context: PerCore
    heads: PerCore
    kv_heads: PerCore
    head_dim: PerCore
    causal: PerCore = eqx.field(default=1.0, converter=jnp.asarray)
    window: PerCore = eqx.field(default=NO_WINDOW, converter=jnp.asarray)
    value_dim: PerCore | None = None
    latent: PerCore = eqx.field(default=0.0, converter=jnp.asarray)
    backward: PerCore = eqx.field(default=0.0, converter=jnp.asarray)
    launches: PerCore = eqx.field(default=1.0, converter=jnp.asarray)

    @functools.cached_property
    def values_dim(self) -> PerCore:
        """Dimensions of a value, whether they are given or those of a key."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @functools.cached_property
    def group(self) -> PerCore:
        """Query heads that share a KV head."""
        return self.heads * inverse(self.kv_heads)

    @functools.cached_property
    def seen(self) -> PerCore:
        """Tokens that the last query sees."""
        return smaller(self.context, self.window)

    @functools.cached_property
    def span(self) -> PerCore:
        """Tokens that at least one query sees."""
        return smaller(self.context, self.window + self.queries - 1)

    @functools.cached_property
    def visible(self) -> PerCore:
        """Tokens that a query sees on average.

        With the causal mask, query i of q sees context − q + i tokens, or the window where that is shorter.
        """
        # Tokens that the last query sees and the first query does not.
        beyond = larger(self.seen - (self.context - self.queries + 1), 0.0)
        return self.seen - self.causal * beyond * (beyond + 1) * inverse(2 * self.queries)

    @functools.cached_property
    def windowed(self) -> PerCore:
        """Share of the queries from which the window hides tokens that the causal mask shows."""
        return smaller(larger(self.context - self.window, 0.0) * inverse(self.queries), 1.0)

    @functools.cached_property
    def scores(self) -> PerCore:
        """Elements of the full score matrices."""
        return self.sequences * self.heads * self.queries * self.context

    @functools.cached_property
    def visible_scores(self) -> PerCore:
        """Elements of the score matrices that the masks leave."""
        return self.sequences * self.heads * self.queries * self.visible

    @functools.cached_property
    def score_flops(self) -> PerCore:
        """FLOP of the forward pass for one score: its parts of Q·Kᵀ and of P·V."""
        return 2 * (self.head_dim + self.values_dim)

    @functools.cached_property
    def query_elements(self) -> PerCore:
        """Elements of Q."""
        return self.sequences * self.heads * self.queries * self.head_dim

    @functools.cached_property
    def output_elements(self) -> PerCore:
        """Elements of the output."""
        return self.sequences * self.heads * self.queries * self.values_dim

    @functools.cached_property
    def kv_elements(self) -> PerCore:
        """Elements of those keys and values that at least one query sees."""
        return (
            self.sequences * self.kv_heads * self.span * (self.head_dim + (1 - self.latent) * self.values_dim)
        )

    @property
    def products(self) -> Gemms:
        """The two batched products of standard attention's forward pass, one problem for each sequence and
        head.
        """
        batch = self.sequences * self.heads
        rows = {
            "attention scores": (self.queries, self.context, self.head_dim, batch),
            "attention values": (self.queries, self.values_dim, self.context, batch),
        }
        return Gemms.table(rows, dict.fromkeys(rows, "cache"))

    def softmax(
        self, element: Scalar, dropout: Scalar, *, backward: bool, fused: Scalar | None = None
    ) -> Streams:
        """The kernels between the products of standard attention, which stream the scores, in one of its
        passes.

        The fused scale-mask-softmax kernel reads and writes the scores (backward it reads gradients as
        well); dropout on its output, by weight, reads and writes them with a one-byte mask. `element` is
        the width of an activation in bytes.

        `fused` is the weight of that kernel, None for 1. The others convert scores to fp32, scale them, set
        masked ones to −10,000 in place, take their softmax and convert it back, each in a kernel of its own:
        `forward_torch_softmax` in fused_softmax.py of Megatron-LM. Each reads and writes the scores, and the
        gradient of the softmax reads its output as well; the mask, which heads share, is not counted.
        """
        suffix = ", backward" if backward else ""
        passes = 3.0 if backward else 2.0
        softmax = element * passes
        separate: dict[str, Scalar] = {}
        if fused is not None:
            single = PRECISION_BYTES["fp32"]
            softmax = fused * softmax + (1 - fused) * single * passes
            of_each = (1 - fused) * self.scores
            conversion, in_place = (element + single) * of_each, 2 * single * of_each
            separate = {
                f"scores to fp32{suffix}": conversion,
                f"scale of scores{suffix}": in_place,
                f"mask of scores{suffix}": in_place,
                f"scores from fp32{suffix}": conversion,
            }
        return Streams.table(
            {
                f"softmax{suffix}": softmax * self.scores,
                **separate,
                f"dropout of scores{suffix}": element * (2 + DROPOUT_MASK) * dropout * self.scores,
            }
        )


class Operators(eqx.Module):
    """Operators of one table that belong to the same part of the time: what they do, how often, for whom.

    - `table`: what they have to do.
    - `runs`: how often each runs for one of what `per` says: "layer" for one pass through a layer of its
      kind (in inference through an average layer of the model), "micro-batch" for one micro-batch (in
      inference one pass), "step" for one training step. Less than one for a kind of layer that is a share
      of all layers, or for a choice that has a weight.
    - `recomputed`: how often the backward pass repeats each, for each run.
    - `busiest`: the time of each on the busiest device, for which all others wait, over that on a mean
      device, whose work the table has; None where all devices have the same work.
    - `kernel`: the kind of kernel that does the work, a name from
      `diffperf.estimate.kernels.evaluation.KERNELS`.
    - `part`: the part of the time that it counts as: a field of the phase's breakdown.
    - `direction`: "forward", "backward", or "weights" for gradients of weights, which no other pipeline
      stage waits for.
    - `layers`: the kinds of layers that the leading axis runs over; empty outside layers.
    - `structure`: which member of `Model.kinds` the layers are.
    - `of_pass`: the name of the inference pass that they belong to; empty in a training step.
    """

    table: Gemms | Streams | AttentionCore
    runs: Float[Array, "*kinds operators"]
    recomputed: Float[Array, " operators"] | float
    busiest: Float[Array, "*kinds operators"] | None = eqx.field(default=None, kw_only=True)
    names: tuple[str, ...] = eqx.field(static=True)
    kernel: str = eqx.field(static=True)
    part: str = eqx.field(static=True)
    direction: str = eqx.field(static=True, default="forward")
    per: str = eqx.field(static=True, default="layer")
    layers: tuple[str, ...] = eqx.field(static=True, default=())
    structure: int = eqx.field(static=True, default=0)
    of_pass: str = eqx.field(static=True, default="")


def operators_of(
    table: Gemms | Streams | AttentionCore,
    *,
    part: str,
    runs: Array | float = 1.0,
    direction: str = "forward",
    per: str = "layer",
    kernel: str = "",
    names: tuple[str, ...] = (),
) -> Operators:
    """The operators of a table, each running `runs` times. The kind of kernel follows from the kind of
    table.
    """
    names = names or getattr(table, "names", ())
    precision = jax.tree.leaves(table)[0].dtype  # a plain number would turn everything after it into float64
    return Operators(
        table=table,
        runs=jnp.broadcast_to(jnp.asarray(runs, precision), (len(names),)),
        recomputed=0.0,
        names=names,
        kernel=kernel or ("gemm" if isinstance(table, Gemms) else "stream"),
        part=part,
        direction=direction,
        per=per,
    )

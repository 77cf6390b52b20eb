"""Kernels that only some stacks run in training, kernel by kernel as their sources write them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.quantity import real
from diffperf.workload.assembly import training_operators
from diffperf.workload.configuration import Configuration
from diffperf.workload.elementwise_operators import elementwise_kernels, scaled_rotary_kernels
from diffperf.workload.expert_kernels import clamp_kernels, expert_bias_kernels, local_expert_sorts


@pytest.mark.parametrize(("ep", "expert_tp"), [(1, 0), (8, 1), (4, 2)])
def test_biases_of_experts_kernel_by_kernel(ep, expert_tp):
    """What PyTorch's kernels for `torch.cat([t + b * p for t, b, p in …]).to(bf16)` and for its gradients
    read and write, with outputs t in bf16 and probabilities p in fp32, for every expert of a device.
    """
    model, tokens, tp = dp.load_model("gpt-oss-120b"), 4096, 2
    fields = {"tp": tp, "dp": 8, "ep": ep, "expert_tp": expert_tp, "global_batch": 8}
    strategy = dp.load_strategy(fields)
    experts = 128 // ep
    elements = tokens / tp * 4 * (expert_tp or tp) * 2880  # of the outputs of all experts of a device
    half, single = 2 * elements, 4 * elements
    forward = {  # read, written; vectors of one number for each token or channel are left out
        "b * p": (0, single),
        "t + (b * p)": (half + single, single),
        "cat": (single, single),
        "to bf16": (single, half),
    }
    backward = {
        "gradient to fp32": (half, single),
        "gradient of t": (single, half),
        "gradient of the split, put together": (half, half),
        "gradient times b": (single, single),
        "… summed over channels": (single, 0),
        "gradient times p": (single, single),
        "… summed over tokens": (single, 0),
    }
    for kernels, kinds, of_all in ((forward, 2, 2), (backward, 5, 2)):
        size, number = expert_bias_kernels(
            model.layers[0], model, strategy, real(tokens), backward=kernels is backward
        )
        assert float(number) == kinds * experts + of_all
        assert float(size.bytes[0] * number) == pytest.approx(sum(map(sum, kernels.values())), rel=1e-6)


@pytest.mark.parametrize(("ep", "expert_tp"), [(1, 0), (8, 1), (4, 2)])
def test_clamps_of_experts_kernel_by_kernel(ep, expert_tp):
    """What PyTorch's kernels for `torch.cat((g.clamp(max=7), u.clamp(-7, 7)), -1)` of the halves g and u of a
    tensor in bf16, and for its gradients, read and write.
    """
    model, tokens, tp = dp.load_model("gpt-oss-120b"), 4096, 2
    strategy = dp.load_strategy({"tp": tp, "dp": 8, "ep": ep, "expert_tp": expert_tp, "global_batch": 8})
    elements = tokens / tp * 4 * 2880  # of a half
    half, mask = 2 * elements, elements
    forward = {  # read, written
        "g.clamp": (half, half),
        "u.clamp": (half, half),
        "cat": (2 * half, 2 * half),
    }
    backward = {
        "g <= 7": (half, mask),
        "where(…, gradient of g, 0)": (mask + half, half),
        "u >= -7": (half, mask),
        "u <= 7": (half, mask),
        "and": (2 * mask, mask),
        "where(…, gradient of u, 0)": (mask + half, half),
        "gradient of the halves, put together": (2 * half, 2 * half),
    }
    for kernels in (forward, backward):
        size, number = clamp_kernels(model.layers[0], strategy, real(tokens), backward=kernels is backward)
        assert float(number) == len(kernels)
        assert float(size.bytes[0] * number) == pytest.approx(sum(map(sum, kernels.values())), rel=1e-6)


def test_scaled_rotary_embeddings_kernel_by_kernel():
    """What PyTorch's kernels for `torch.cat((t * cos + torch.cat((-b, a), -1) * sin, rest), -1)` and for its
    gradients read and write, with t = (a, b) in bf16 and `rest` empty: for queries and for keys.
    """
    model, tokens, tp = dp.load_model("gpt-oss-20b"), 4096, 2
    strategy = dp.load_strategy({"tp": tp, "dp": 8, "global_batch": 8})
    whole = 2 * tokens * (64 + 8) / tp * 64
    forward = {  # read, written; cosines and sines, which all heads and sequences share, are left out
        "t * cos": (whole, whole),
        "-b": (whole / 2, whole / 2),
        "cat of halves": (whole, whole),
        "… * sin": (whole, whole),
        "+": (2 * whole, whole),
        "cat with the rest": (whole, whole),
    }
    backward = {
        "gradient * sin": (whole, whole),
        "gradient * cos": (whole, whole),
        "- gradient of b": (whole / 2, whole / 2),
        "gradients of a and b, put together": (whole, whole),
        "sum of both gradients of t": (2 * whole, whole),
        "zeros for the rest": (0, whole),
        "sum with those": (2 * whole, whole),
    }
    for kernels in (forward, backward):
        is_backward = kernels is backward
        arguments = (model.layers[0], model, strategy, real(tokens))
        size, number = scaled_rotary_kernels(*arguments, backward=is_backward)
        fused = elementwise_kernels(*arguments, backward=is_backward)
        name = "rotary embedding" + ", backward" * is_backward
        moved = size.bytes[0] * number + fused.bytes[fused.names.index(name)]
        assert float(number) + 1 == 2 * len(kernels)
        assert float(moved) == pytest.approx(sum(map(sum, kernels.values())), rel=1e-6)


def test_only_stacks_and_models_that_have_them_run_unfused_kernels():
    """Clamps and scaled rotary embeddings take time with Megatron-Bridge and gpt-oss, and none in Qwen3 or
    under another stack.
    """

    def names(model, stack):
        strategy = dp.load_strategy({"dp": 8, "ep": 8, "expert_tp": 1, "global_batch": 8})
        system = dp.load_system("dgx-h100", stack=stack)
        operators = training_operators(Configuration(dp.load_model(model), system, strategy), real(1e9))
        return {name for group in operators for name in group.names if float(jnp.max(group.runs)) > 0}

    forward = {"clamps of experts", "scaled rotary embedding"}
    unfused = forward | {f"{name}, backward" for name in forward}
    assert unfused < names("gpt-oss-20b", "megatron-bridge")
    assert not unfused & names("gpt-oss-20b", "megatron-core")
    assert not unfused & names("qwen3-30b-a3b", "megatron-bridge")


@pytest.mark.parametrize(
    ("ep", "expert_tp", "sorts"), [(1, 0, 2), (8, 1, 2), (8, 2, 2), (64, 1, 2), (128, 1, 0)]
)
def test_tokens_are_sorted_where_a_device_has_several_experts(ep, expert_tp, sorts):
    """Every token that a device computes on is read and written twice, before the experts and after them. A
    device with one expert of 128 gets its tokens in order.
    """
    model, tokens, tp = dp.load_model("gpt-oss-120b"), 4096, 2
    fields = {"tp": tp, "dp": 128, "ep": ep, "expert_tp": expert_tp, "global_batch": 128}
    strategy = dp.load_strategy(fields)
    elements = tokens / tp * 4 * (expert_tp or tp) * 2880
    for backward in (False, True):
        kernels, runs = local_expert_sorts(model.layers[0], model, strategy, real(tokens), backward=backward)
        assert float(runs) * len(kernels.names) == sorts
        assert [float(size) for size in kernels.bytes] == pytest.approx([2 * 2 * elements] * 2, rel=1e-6)


def test_sorts_end_between_two_experts_on_a_device_and_one():
    """The runs of the sorts are 1 from two experts on, 0 at one, and a straight line between."""
    model = dp.load_model("gpt-oss-120b")
    strategy = dp.load_strategy({"dp": 128, "ep": 64, "expert_tp": 1, "global_batch": 128})

    def runs(experts_on_device):
        sharded = eqx.tree_at(lambda s: s.ep, strategy, 128 / experts_on_device)
        return local_expert_sorts(model.layers[0], model, sharded, real(4096))[1]

    assert [float(runs(real(n))) for n in (0.5, 1.0, 1.25, 1.5, 2.0, 16.0)] == [0, 0, 0.25, 0.5, 1, 1]
    assert [float(jax.grad(runs)(real(n))) for n in (0.5, 1.5, 16.0)] == [0, 1, 0]


def test_dispatchers_of_stacks_sort_or_do_not():
    """Megatron-Core sorts tokens after its all-to-all, Megatron-Bridge's DeepEP and HybridEP on the way; its
    recipes of gpt-oss took the all-to-all.
    """

    def bytes_sorted(stack):
        strategy = dp.load_strategy({"dp": 8, "ep": 8, "expert_tp": 1, "global_batch": 8})
        system = dp.load_system("dgx-h100", stack=stack)
        model = dp.load_model("gpt-oss-20b")
        operators = training_operators(Configuration(model, system, strategy), real(1e9))
        return sum(
            float(jnp.sum(group.runs)) for group in operators if group.names[0].startswith("sort by local")
        )

    sorting = {"megatron-core", "megatron-bridge-26.04-alltoall", "torchtitan"}
    others = {"megatron-bridge", "megatron-bridge-26.04", "hai-llm", "maxtext"}
    assert {stack for stack in sorting | others if bytes_sorted(stack) > 0} == sorting

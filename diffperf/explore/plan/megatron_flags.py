"""A strategy as the command line of Megatron-LM's `pretrain_gpt.py`.

Names, and what excludes what, are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py of
NVIDIA/Megatron-LM at commit 000c4ac2 (2025). What it has no flag for is told in comments.
"""

from collections.abc import Iterator

import numpy as np

from diffperf.quantity import Choice, walk
from diffperf.report.tables import show
from diffperf.workload.model import NO_WINDOW, Layers, Model
from diffperf.workload.strategy import Strategy

# Formats of matrix operands.
_PRECISION = {
    "fp32": [],
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp8": ["--bf16", "--fp8-format hybrid"],
    "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--bf16", "--fp4-format e2m1"],
}
_SHARDING = {"2": "optim_grads", "3": "optim_grads_params"}
# Fields of a strategy without a flag: worth a comment where they are not the default.
_UNTOLD = ("activation_precision", "optimizer_bytes", "balanced_head")


def megatron_flags(model: Model, strategy: Strategy) -> list[str]:
    """The flags, one a line with its value, and comments (lines that begin with #) for what has none."""
    chosen = {
        path: show(value, declared)
        for path, declared, value in walk(strategy)
        if isinstance(declared, Choice)
    }
    sections = (_parallelism, _sharding, _overlap, _batch, _recomputation, _numerics)
    lines = [line for section in sections for line in section(model, strategy, chosen)]
    return [*lines, *_architecture(model), *_experts(model, strategy, chosen), *_untold(strategy)]


def _n(x) -> int:
    return round(float(x))


def _parallelism(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    if s.tp * s.cp > 1 and chosen["zero"] not in _SHARDING:
        yield "# before Blackwell, Megatron-LM wants the environment variable CUDA_DEVICE_MAX_CONNECTIONS to be 1"
    yield f"--tensor-model-parallel-size {_n(s.tp)}"
    if chosen["sequence_parallel"] == "on" and s.tp > 1:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {_n(s.pp)}"
    yield from _stages(model, s)
    if s.pp > 1 and chosen["schedule"] != "1f1b":
        yield f"# Megatron-LM has no {chosen['schedule']} schedule: it runs 1f1b"
    yield f"--context-parallel-size {_n(s.cp)}"
    if s.cp > 1:
        yield f"--cp-comm-type {'p2p' if chosen['context_parallel'] == 'ring' else 'a2a'}"
    if chosen["order"] == "tp-cp-pp-dp":
        yield "--use-tp-pp-dp-mapping"
    elif chosen["order"] != "tp-cp-dp-pp":
        yield f"# Megatron-LM cannot place groups as {chosen['order']}: it places them as tp-cp-dp-pp"
    if any(_n(layers.kv_heads) % _n(s.tp) and layers.latent is None for layers in model.layers):
        yield "# Megatron-LM wants --num-query-groups to be a multiple of the tensor-parallel size (transformer_config.py)"


def _stages(model: Model, s: Strategy) -> Iterator[str]:
    """How layers are dealt to stages: evenly, or by a layout that says so."""
    layers, chunks = _n(model.depth), _n(s.pp) * _n(s.virtual_stages)
    if layers % chunks == 0:
        if chunks > s.pp:
            yield f"--num-layers-per-virtual-pipeline-stage {layers // chunks}"
        return
    each, more = divmod(
        layers, chunks
    )  # the first chunks hold a layer more: the last has the vocabulary projection
    parts = ["t" * (each + (index < more)) for index in range(chunks)]
    ahead = "m" * _n(model.mtp_layers)
    yield f'--pipeline-model-parallel-layout "E{"|".join(parts)}{ahead}L"'


def _sharding(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    stage, shared = chosen["zero"], 0 < s.zero_ranks < s.replicas
    if stage in _SHARDING:
        yield "# Megatron-LM's FSDP wants the environment variable CUDA_DEVICE_MAX_CONNECTIONS not to be 1"
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_SHARDING[stage]}"
        yield "--ckpt-format fsdp_dtensor"
    if stage != "0":
        yield "--use-distributed-optimizer"
        if shared:
            yield f"--num-distributed-optimizer-instances {_n(s.replicas / s.zero_ranks)}"
    if s.offload_optimizer > 0:
        yield "--optimizer-cpu-offload"
        yield f"--optimizer-offload-fraction {float(s.offload_optimizer):g}"
        yield "--use-precision-aware-optimizer"
    if s.offload_activations > 0:
        if s.pp > 1:
            yield "# Megatron-LM does not offload activations in a pipeline (--cpu-offloading-num-layers)"
        else:
            yield f"--cpu-offloading-num-layers {_n(s.offload_activations * model.depth)}"


def _overlap(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    gradients = chosen["overlap_gradients"] == "on" and s.replicas > 1
    if gradients:
        yield "--overlap-grad-reduce"
    if gradients and chosen["overlap_weights"] == "on" and chosen["zero"] != "0":
        yield "--overlap-param-gather"
    if chosen["overlap_tensor"] == "on" and chosen["sequence_parallel"] == "on" and s.tp > 1:
        yield "--tp-comm-overlap"
    if chosen["overlap_experts"] == "on" and s.ep > 1:
        yield "--overlap-moe-expert-parallel-comm"
    if chosen["overlap_transfers"] == "on" and s.pp > 1 and s.virtual_stages <= 1:
        yield "# Megatron-LM overlaps transfers between stages only where they are virtual"


def _batch(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    yield f"--micro-batch-size {_n(s.micro_batch)}"
    yield f"--global-batch-size {_n(s.global_batch)}"
    yield f"--seq-length {_n(s.sequence_length)}"
    yield f"--max-position-embeddings {max(_n(s.sequence_length), _n(model.learned_positions))}"


def _recomputation(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    share = float(s.recompute_share)
    if chosen["recompute"] == "full":
        yield "--recompute-granularity full"
        layers = float(model.depth) / (_n(s.pp) * _n(s.virtual_stages))
        yield "--recompute-method uniform" if share == 1 else "--recompute-method block"
        yield f"--recompute-num-layers {1 if share == 1 else round(share * layers)}"
    elif chosen["recompute"] == "selective":
        yield "--recompute-granularity selective"
        if share < 1:
            yield "# Megatron-LM recomputes attention of all layers or none"


def _numerics(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    precision = chosen["precision"]
    yield from _PRECISION.get(precision, [f"# Megatron-LM does not train in {precision}"])
    if chosen["gradient_precision"] == "fp32" and precision != "fp32":
        yield "--accumulate-allreduce-grads-in-fp32"
    elif chosen["gradient_precision"] == "bf16":
        yield "--grad-reduce-in-bf16"
    if chosen["weight_precision"] in ("fp8", "mxfp8"):
        yield "--fp8-param-gather"
    yield f"--attention-backend {'flash' if chosen['attention'] == 'flash' else 'unfused'}"


# --- the model


def _architecture(model: Model) -> Iterator[str]:
    first = model.layers[0]
    dense = next((layers for layers in model.layers if layers.mixture is None), first)
    yield f"--num-layers {_n(model.depth)}"
    yield f"--hidden-size {_n(model.hidden)}"
    yield f"--ffn-hidden-size {_n(dense.ffn)}"
    yield f"--num-attention-heads {_n(first.heads)}"
    yield from _attention(model, first)
    yield f"--position-embedding-type {'learned_absolute' if model.learned_positions > 0 else 'rope'}"
    yield f"--vocab-size {_n(model.vocabulary)}"
    if _off(model.tied_embeddings):
        yield "--untie-embeddings-and-output-weights"
    if not _off(first.gated):
        yield "--swiglu"
    if _off(first.biases):
        yield "--normalization RMSNorm"
        yield "--disable-bias-linear"
    if not _off(first.qkv_biases):
        yield "--add-qkv-bias"
    if _off(first.dropout):
        yield "--attention-dropout 0"
        yield "--hidden-dropout 0"
    if not _off(first.parallel):
        yield "# Megatron-LM has attention before the MLP, not beside it"
    if model.mtp_layers > 0:
        yield f"--mtp-num-layers {_n(model.mtp_layers)}"


def _off(switch) -> bool:
    return float(switch[1]) == 0


def _attention(model: Model, layers: Layers) -> Iterator[str]:
    if (latent := layers.latent) is not None:
        yield "--multi-latent-attention"
        if latent.query_rank > 0:
            yield f"--q-lora-rank {_n(latent.query_rank)}"
        yield f"--kv-lora-rank {_n(latent.kv_rank)}"
        yield f"--qk-head-dim {_n(layers.head_dim - latent.rotary_dim)}"
        yield f"--qk-pos-emb-head-dim {_n(latent.rotary_dim)}"
        yield f"--v-head-dim {_n(latent.value_dim)}"
    else:
        if _n(layers.heads * layers.head_dim) != _n(model.hidden):
            yield f"--kv-channels {_n(layers.head_dim)}"
        if layers.kv_heads < layers.heads:
            yield "--group-query-attention"
            yield f"--num-query-groups {_n(layers.kv_heads)}"
    windows = sorted({_n(kind.window) for kind in model.layers})
    if windows[0] < NO_WINDOW:
        yield f"--window-size {windows[0] - 1},0"  # a token's own position is not counted
        if len(windows) > 1:
            yield "# some layers see more than the window: name them with --window-attn-skip-freq"


def _experts(model: Model, s: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    kinds = [layers for layers in model.layers if layers.mixture is not None]
    if not kinds:
        return
    layers, mixture = kinds[0], kinds[0].mixture
    yield f"--num-experts {_n(mixture.experts)}"
    yield f"--moe-router-topk {_n(mixture.experts_per_token)}"
    yield f"--moe-ffn-hidden-size {_n(layers.ffn)}"
    if mixture.shared_ffn > 0:
        yield f"--moe-shared-expert-intermediate-size {_n(mixture.shared_ffn)}"
    if len(kinds) < len(model.layers):
        pattern = "+".join(f"[{int(kind.mixture is not None)}]*{_n(kind.count)}" for kind in model.layers)
        yield f'--moe-layer-freq "({pattern})"'
        yield "# the layers' order is that in which the model lists its kinds: change --moe-layer-freq where they alternate"
    yield f"--expert-model-parallel-size {_n(s.ep)}"
    yield f"--expert-tensor-parallel-size {_n(s.experts_tp)}"
    yield "--moe-token-dispatcher-type alltoall"
    if "--bf16" in _PRECISION.get(chosen["precision"], []):
        yield "--moe-grouped-gemm"
    elif s.ep > 1 and chosen["precision"] == "fp16":
        yield "# Megatron-LM has no expert parallelism in fp16"
    if s.capacity_factor > 0:
        yield f"--moe-expert-capacity-factor {float(s.capacity_factor):g}"
        yield "--moe-pad-expert-input-to-capacity"


def _untold(strategy: Strategy) -> Iterator[str]:
    """Comments for what is not the default, and has no flag."""
    default = {path: np.asarray(value) for path, _, value in walk(Strategy())}
    for path, declared, value in walk(strategy):
        if path in _UNTOLD and not np.array_equal(np.asarray(value), default[path]):
            yield f"# Megatron-LM has no flag for {path} {show(value, declared)}: {declared.doc}"

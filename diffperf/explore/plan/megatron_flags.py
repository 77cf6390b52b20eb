"""A strategy as the command line of Megatron-LM's `pretrain_gpt.py`.

The names of flags, and which flags exclude each other, are those of megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py of NVIDIA/Megatron-LM at commit 000c4ac2 (2025). What has no
flag there becomes a comment, a line that begins with #.
"""

from collections.abc import Iterator

import numpy as np

from diffperf.quantity import Choice, Weights, walk
from diffperf.report.tables import show
from diffperf.workload.model import NO_WINDOW, Layers, Model
from diffperf.workload.strategy import Strategy
from diffperf.workload.whole_numbers import whole

# The flags of each format of matrix operands.
_PRECISION = {
    "fp32": [],
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp8": ["--bf16", "--fp8-format hybrid"],
    "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--bf16", "--fp4-format e2m1"],
}
# Values of --data-parallel-sharding-strategy, by ZeRO stage.
_SHARDING = {"2": "optim_grads", "3": "optim_grads_params"}
# Values of --recompute-modules, by the fields that recompute classes of operators.
_MODULES = {
    "recompute_attention": "core_attn",
    "recompute_norms": "layernorm",
    "recompute_activation_functions": "moe_act",
    "recompute_up_projections": "mla_up_proj",
    "recompute_mlp": "mlp",
    "recompute_experts": "moe",
}
# Fields of a strategy without a flag: a comment names them where they do not have their default.
_WITHOUT_FLAG = (
    "activation_precision",
    "kept_activation_precision",
    "dispatch_precision",
    "combine_precision",
    "reduced_gradient_precision",
    "gathered_weight_precision",
    "optimizer_bytes",
    "balanced_head",
)


def megatron_flags(model: Model, strategy: Strategy) -> list[str]:
    """The flags of a model and a strategy, one a line with its value, and comments for what has no flag."""
    chosen = {
        path: show(value, declared)
        for path, declared, value in walk(strategy)
        if isinstance(declared, Choice)
    }
    sections = (_parallelism, _sharding, _overlap, _batch, _recomputation, _numerics)
    lines = [line for section in sections for line in section(model, strategy, chosen)]
    return [
        *lines,
        *_architecture(model),
        *_experts(model, strategy, chosen),
        *_fields_without_flag(strategy),
    ]


def _parallelism(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """The degrees of parallelism, the split of layers into stages, and the order of the groups."""
    if strategy.tp * strategy.cp > 1 and chosen["zero"] not in _SHARDING:
        yield "# before Blackwell, Megatron-LM needs the environment variable CUDA_DEVICE_MAX_CONNECTIONS=1"
    yield f"--tensor-model-parallel-size {whole(strategy.tp)}"
    if chosen["sequence_parallel"] == "on" and strategy.tp > 1:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {whole(strategy.pp)}"
    yield from _stages(model, strategy)
    if strategy.pp > 1 and chosen["schedule"] != "1f1b":
        yield f"# Megatron-LM has no {chosen['schedule']} schedule: it runs 1f1b"
    yield f"--context-parallel-size {whole(strategy.cp)}"
    if strategy.cp > 1:
        yield f"--cp-comm-type {'p2p' if chosen['context_parallel'] == 'ring' else 'a2a'}"
    if chosen["order"] == "tp-cp-pp-dp":
        yield "--use-tp-pp-dp-mapping"
    elif chosen["order"] != "tp-cp-dp-pp":
        yield f"# Megatron-LM cannot place groups as {chosen['order']}: it places them as tp-cp-dp-pp"
    shared = [whole(layers.kv_heads) for layers in model.layers if layers.latent is None]
    if any(kv_heads % whole(strategy.tp) for kv_heads in shared):
        yield "# Megatron-LM needs --num-query-groups to be a multiple of --tensor-model-parallel-size"


def _stages(model: Model, strategy: Strategy) -> Iterator[str]:
    """Flags for the split of layers into pipeline stages: even, or by a layout that lists the layers of
    each.
    """
    layers, chunks = whole(model.depth), whole(strategy.pp) * whole(strategy.virtual_stages)
    given = _given_stages(strategy) if strategy.pp > 1 else []
    ends = whole(strategy.first_stage_layers), whole(strategy.last_stage_layers)
    if given:
        yield from given
        if any(layers % whole(strategy.virtual_stages) for layers in ends):
            yield "# Megatron-LM needs layers of the first and the last stage that its chunks share evenly"
        if strategy.virtual_stages > 1:
            yield f"--num-virtual-stages-per-pipeline-rank {whole(strategy.virtual_stages)}"
        return
    if layers % chunks == 0:
        if chunks > strategy.pp:
            yield f"--num-layers-per-virtual-pipeline-stage {layers // chunks}"
        return
    # The first chunks have one layer more than the others, as the last chunk has the vocabulary projection.
    each, longer = divmod(layers, chunks)
    parts = ["t" * (each + (index < longer)) for index in range(chunks)]
    multi_token = "m" * whole(model.mtp_layers)
    yield f'--pipeline-model-parallel-layout "E{"|".join(parts)}{multi_token}L"'


def _given_stages(strategy: Strategy) -> list[str]:
    """Flags for the number of layers that the strategy gives the first and the last stage."""
    first, last = whole(strategy.first_stage_layers), whole(strategy.last_stage_layers)
    flags = []
    if first > 0:
        flags.append(f"--decoder-first-pipeline-num-layers {first}")
    elif not _off(strategy.embedding_in_split):
        flags.append("--account-for-embedding-in-pipeline-split")
    if last > 0:
        flags.append(f"--decoder-last-pipeline-num-layers {last}")
    elif not _off(strategy.loss_in_split):
        flags.append("--account-for-loss-in-pipeline-split")
    return flags


def _sharding(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """The sharding of weights, gradients and optimizer state over data-parallel ranks, and offloading."""
    stage, shared = chosen["zero"], 0 < strategy.zero_ranks < strategy.replicas
    if stage in _SHARDING:
        yield "# Megatron-LM's FSDP needs the environment variable CUDA_DEVICE_MAX_CONNECTIONS not to be 1"
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_SHARDING[stage]}"
        yield "--ckpt-format fsdp_dtensor"
    if stage != "0":
        yield "--use-distributed-optimizer"
        if shared:
            yield f"--num-distributed-optimizer-instances {whole(strategy.replicas / strategy.zero_ranks)}"
    if strategy.offload_optimizer > 0:
        yield "--optimizer-cpu-offload"
        yield f"--optimizer-offload-fraction {float(strategy.offload_optimizer):g}"
        yield "--use-precision-aware-optimizer"
    if strategy.offload_activations > 0:
        if strategy.pp > 1:
            yield "# Megatron-LM does not offload activations in a pipeline (--cpu-offloading-num-layers)"
        else:
            yield f"--cpu-offloading-num-layers {whole(strategy.offload_activations * model.depth)}"


def _overlap(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """Flags for the communication that runs under computation."""
    gradients = chosen["overlap_gradients"] == "on" and strategy.replicas > 1
    if gradients:
        yield "--overlap-grad-reduce"
    if gradients and chosen["overlap_weights"] == "on" and chosen["zero"] != "0":
        yield "--overlap-param-gather"
    if chosen["overlap_tensor"] == "on" and chosen["sequence_parallel"] == "on" and strategy.tp > 1:
        yield "--tp-comm-overlap"
    if chosen["overlap_experts"] == "on" and strategy.ep > 1:
        yield "--overlap-moe-expert-parallel-comm"
    if chosen["overlap_transfers"] == "on" and strategy.pp > 1 and strategy.virtual_stages <= 1:
        yield "# Megatron-LM overlaps transfers between stages only where they are virtual"


def _batch(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """Batch sizes and the sequence length."""
    yield f"--micro-batch-size {whole(strategy.micro_batch)}"
    yield f"--global-batch-size {whole(strategy.global_batch)}"
    yield f"--seq-length {whole(strategy.sequence_length)}"
    positions = max(whole(strategy.sequence_length), whole(model.learned_positions))
    yield f"--max-position-embeddings {positions}"


def _recomputation(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """Flags for the activations that the backward pass computes again."""
    share = float(strategy.recompute_share)
    if chosen["recompute"] == "full":
        yield "--recompute-granularity full"
        layers = float(model.depth) / (whole(strategy.pp) * whole(strategy.virtual_stages))
        yield "--recompute-method uniform" if share == 1 else "--recompute-method block"
        yield f"--recompute-num-layers {1 if share == 1 else round(share * layers)}"
    elif chosen["recompute"] == "selective":
        yield "--recompute-granularity selective"
        if share < 1:
            yield "# Megatron-LM recomputes attention of all layers or none"
    yield from _recomputed_modules(strategy, chosen)


def _recomputed_modules(strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """The classes of operators that the backward pass recomputes beside whole layers."""
    shares = {module: float(getattr(strategy, field)) for field, module in _MODULES.items()}
    modules = [module for module, share in shares.items() if share > 0]
    if not modules:
        return
    if chosen["recompute"] == "full":
        yield f"# Megatron-LM recomputes whole layers or modules ({' '.join(modules)}), not both"
        return
    if chosen["recompute"] == "none":
        yield "--recompute-granularity selective"
    elif "core_attn" not in modules:
        modules = ["core_attn", *modules]
    yield f"--recompute-modules {' '.join(modules)}"
    if any(0 < share < 1 for share in shares.values()):
        yield "# Megatron-LM recomputes a module of all layers or none"


def _numerics(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """Formats of operands, weights and gradients, and the attention kernel."""
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
    """The layers of the model."""
    first = model.layers[0]
    dense = next((layers for layers in model.layers if layers.mixture is None), first)
    yield f"--num-layers {whole(model.depth)}"
    yield f"--hidden-size {whole(model.hidden)}"
    yield f"--ffn-hidden-size {whole(dense.ffn)}"
    yield f"--num-attention-heads {whole(first.heads)}"
    yield from _attention(model, first)
    yield f"--position-embedding-type {'learned_absolute' if model.learned_positions > 0 else 'rope'}"
    yield f"--vocab-size {whole(model.vocabulary)}"
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
        yield f"--mtp-num-layers {whole(model.mtp_layers)}"


def _off(switch: Weights) -> bool:
    """Whether a switch is off."""
    return float(switch.on) == 0


def _attention(model: Model, layers: Layers) -> Iterator[str]:
    """The attention of the first kind of layers: its heads, latent vectors and windows."""
    if (latent := layers.latent) is not None:
        yield "--multi-latent-attention"
        if latent.query_rank > 0:
            yield f"--q-lora-rank {whole(latent.query_rank)}"
        yield f"--kv-lora-rank {whole(latent.kv_rank)}"
        yield f"--qk-head-dim {whole(layers.head_dim - latent.rotary_dim)}"
        yield f"--qk-pos-emb-head-dim {whole(latent.rotary_dim)}"
        yield f"--v-head-dim {whole(latent.value_dim)}"
    else:
        if whole(layers.heads * layers.head_dim) != whole(model.hidden):
            yield f"--kv-channels {whole(layers.head_dim)}"
        if layers.kv_heads < layers.heads:
            yield "--group-query-attention"
            yield f"--num-query-groups {whole(layers.kv_heads)}"
    windows = sorted({whole(kind.window) for kind in model.layers})
    if windows[0] < NO_WINDOW:
        yield f"--window-size {windows[0] - 1},0"  # a token's own position is not counted
        if len(windows) > 1:
            yield "# some layers see more than the window: name them with --window-attn-skip-freq"


def _experts(model: Model, strategy: Strategy, chosen: dict[str, str]) -> Iterator[str]:
    """The experts of a mixture and how they are laid out; nothing for a dense model."""
    kinds = [(layers, layers.mixture) for layers in model.layers if layers.mixture is not None]
    if not kinds:
        return
    layers, mixture = kinds[0]
    yield f"--num-experts {whole(mixture.experts)}"
    yield f"--moe-router-topk {whole(mixture.experts_per_token)}"
    yield f"--moe-ffn-hidden-size {whole(layers.ffn)}"
    if mixture.groups > 1:
        yield f"--moe-router-num-groups {whole(mixture.groups)}"
        yield f"--moe-router-group-topk {whole(mixture.groups_visited)}"
    if mixture.shared_ffn > 0:
        yield f"--moe-shared-expert-intermediate-size {whole(mixture.shared_ffn)}"
    if len(kinds) < len(model.layers):
        pattern = "+".join(f"[{int(kind.mixture is not None)}]*{whole(kind.count)}" for kind in model.layers)
        yield f'--moe-layer-freq "({pattern})"'
        yield "# --moe-layer-freq has the kinds of layers in the model's order: change it if they alternate"
    yield f"--expert-model-parallel-size {whole(strategy.ep)}"
    yield f"--expert-tensor-parallel-size {whole(strategy.experts_tp)}"
    yield "--moe-token-dispatcher-type alltoall"
    if "--bf16" in _PRECISION.get(chosen["precision"], []):
        yield "--moe-grouped-gemm"
    elif strategy.ep > 1 and chosen["precision"] == "fp16":
        yield "# Megatron-LM has no expert parallelism in fp16"
    if strategy.capacity_factor > 0:
        yield f"--moe-expert-capacity-factor {float(strategy.capacity_factor):g}"
        yield "--moe-pad-expert-input-to-capacity"


def _fields_without_flag(strategy: Strategy) -> Iterator[str]:
    """Comments for the fields that do not have their default, and have no flag."""
    default = {path: np.asarray(value) for path, _, value in walk(Strategy())}
    for path, declared, value in walk(strategy):
        if path in _WITHOUT_FLAG and not np.array_equal(np.asarray(value), default[path]):
            yield f"# Megatron-LM has no flag for {path} {show(value, declared)}: {declared.doc}"

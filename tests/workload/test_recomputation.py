"""Recomputation by class of operators: bytes kept, operators repeated, and FLOPs, counted by hand."""

import jax
import pytest

import diffperf as dp
from diffperf.quantity import real, replace
from diffperf.workload.activations import layer_activations
from diffperf.workload.assembly import layer_operators
from diffperf.workload.collectives import training_collectives
from diffperf.workload.configuration import Configuration
from diffperf.workload.model_flops import hardware_flops, model_flops
from diffperf.workload.passes import training_pass
from diffperf.workload.recomputation import Recomputation
from diffperf.workload.stage_parameters import stage_parameters

DEEPSEEK, LLAMA, GPT = "deepseek-v3", "llama-2-7b", "gpt3-175b"
TOKENS, H, HEADS = 4096, 7168, 128  # of DeepSeek-V3
QUERY, KV, ROTARY, KEY, VALUE = 1536, 512, 64, 192, 128
CLASSES = ("norms", "activation_functions", "up_projections", "attention", "mlp", "experts")


def _activations(model: str, kind: int = 0, **table):
    architecture = dp.load_model(model)
    strategy = dp.load_strategy({"sequence_length": TOKENS} | table)
    return layer_activations(architecture.layers[kind], architecture, strategy)


def _spared(model: str, kind: int = 0, table: dict | None = None, **recomputed) -> float:
    """Bytes that a layer no longer keeps."""
    table = table or {}
    kept = _activations(model, kind, **table).kept
    return float(kept - _activations(model, kind, **table, **recomputed).kept)


@pytest.mark.parametrize(
    ("field", "kind", "expected"),
    [
        ("recompute_norms", 1, 2 * TOKENS * (2 * H + QUERY + KV)),
        ("recompute_up_projections", 1, 2 * TOKENS * HEADS * (2 * KEY + VALUE)),
        ("recompute_activation_functions", 0, 2 * TOKENS * 18432),
        ("recompute_activation_functions", 1, 2 * TOKENS * 9 * 2048),
        ("recompute_mlp", 0, 2 * TOKENS * 3 * 18432),
        ("recompute_mlp", 1, 0),
        ("recompute_experts", 0, 0),
        ("recompute_experts", 1, 2 * TOKENS * (3 * 9 * 2048 + 2 * 8 * H)),
        ("recompute_attention", 1, 0),  # FlashAttention stores no scores
    ],
)
def test_bytes_that_a_class_spares(field, kind, expected):
    """DeepSeek-V3's dense and expert layers; half of the layers spare half."""
    assert _spared(DEEPSEEK, kind, **{field: 1.0}) == pytest.approx(expected, rel=1e-9, abs=1e-3)
    assert _spared(DEEPSEEK, kind, **{field: 0.5}) == pytest.approx(expected / 2, rel=1e-9, abs=1e-3)
    recomputed = _activations(DEEPSEEK, kind, **{field: 1.0}).recomputed
    assert float(recomputed) == pytest.approx(expected, rel=1e-9)


def test_clamps_keep_gates_and_factors_until_they_are_recomputed():
    """Experts of gpt-oss keep gates and their factors before the clamps and after, where these are kernels of
    their own: four visited experts of 2,880, two tensors in bf16. With the activation function recomputed,
    the output of the clamps goes as well.
    """
    model, stack = dp.load_model("gpt-oss-120b"), dp.load_system("dgx-h100", stack="megatron-bridge").stack
    inner, layers = 2 * TOKENS * 4 * 2880, model.layers[0]

    def kept(stack, **recomputed):
        strategy = dp.load_strategy({"sequence_length": TOKENS} | recomputed)
        return float(layer_activations(layers, model, strategy, stack).kept)

    fused = replace(stack, {"separate_clamps": False})
    assert kept(stack) - kept(fused) == pytest.approx(2 * inner, rel=1e-9)
    spared = kept(stack) - kept(stack, recompute_activation_functions=1.0)
    assert spared == pytest.approx(3 * inner, rel=1e-9)


def test_classes_that_contain_each_other_spare_once():
    both = _spared(DEEPSEEK, 1, recompute_experts=1.0, recompute_activation_functions=1.0)
    assert both == pytest.approx(_spared(DEEPSEEK, 1, recompute_experts=1.0), rel=1e-12)
    whole = _activations(DEEPSEEK, 1, recompute="full", **{f"recompute_{name}": 1.0 for name in CLASSES})
    assert float(whole.kept) == pytest.approx(2 * TOKENS * H, rel=1e-12)


def test_attention_is_what_selective_recomputation_names():
    table = {"attention": "standard"}
    by_class = _spared(GPT, table=table, recompute_attention=1.0)
    assert by_class == pytest.approx(_spared(GPT, table=table, recompute="selective"), rel=1e-12)
    assert by_class > 0


def test_early_weights_and_narrow_formats_keep_less():
    """Experts' results need not be kept; inputs of linear layers are kept in fp8."""
    assert _spared(DEEPSEEK, 1, early_routing_weights=True) == pytest.approx(2 * TOKENS * 8 * H, rel=1e-12)
    inputs = 2 * H + QUERY + KV + HEADS * VALUE + 3 * 9 * 2048 + 8 * H
    narrow = _spared(DEEPSEEK, 1, kept_activation_precision="fp8")
    assert narrow == pytest.approx(TOKENS * inputs, rel=1e-12)


def _repeats(model: str, **table) -> dict[str, float]:
    """How often the backward pass repeats each operator of the last kind of layers, by its name."""
    strategy = dp.load_strategy(table)
    architecture = dp.load_model(model)
    c = Configuration(architecture, dp.load_system("dgx-h100"), strategy)
    operators = layer_operators(c, training_pass(strategy), trained=True)
    return {
        name: float(share)
        for group in operators
        if group.direction == "forward" and group.structure == len(architecture.kinds) - 1
        for name, share in zip(group.names, group.recomputed, strict=True)
    }


MLA = {"queries", "keys and values", "rotary embedding"}
EXPERTS = {"experts up", "experts down", "shared experts up", "shared experts down", "router"}
SORTS = {"copy to experts", "copy from experts", "sort by local experts", "sort back by ranks"}


@pytest.mark.parametrize(
    ("model", "field", "names"),
    [
        (DEEPSEEK, "norms", {"norm 1", "norm 2"}),
        (DEEPSEEK, "activation_functions", {"activation"}),
        (DEEPSEEK, "up_projections", MLA),
        (DEEPSEEK, "experts", EXPERTS | SORTS | {"activation"}),
        (LLAMA, "mlp", {"mlp up", "mlp down", "activation"}),
        (LLAMA, "up_projections", set()),
        (LLAMA, "attention", set()),
    ],
)
def test_operators_that_are_repeated(model, field, names):
    repeats = _repeats(model, **{f"recompute_{field}": 0.75})
    assert {name for name, share in repeats.items() if share > 0} == names
    assert {share for share in repeats.values() if share > 0} <= {0.75}


def test_layers_choose_independently():
    """An activation function is repeated by its own class, with its MLP, or with the whole layer."""
    table = {"recompute_activation_functions": 0.5, "recompute_mlp": 0.5}
    assert _repeats(LLAMA, **table)["activation"] == pytest.approx(0.75)
    whole = _repeats(LLAMA, **table, recompute="full", recompute_share=0.5)
    assert whole["norm 1"] == pytest.approx(0.5)
    assert whole["activation"] == pytest.approx(0.5 + 1 - 0.75**2)
    assert whole["mlp up"] == pytest.approx(0.75)


def test_names_stand_for_sets_of_classes():
    for name, layer, attention in (("none", 0, 0), ("selective", 0, 0.4), ("full", 0.4, 0)):
        shares = Recomputation.of(dp.load_strategy({"recompute": name, "recompute_share": 0.4}))
        assert (float(shares.layer), float(shares.attention)) == pytest.approx((layer, attention))


def test_repeated_modules_repeat_their_communication():
    """Experts dispatch again; an MLP's all-reduce, one of two in a layer, runs again."""
    for model, table, purpose, expected in (
        (DEEPSEEK, {"ep": 8, "recompute_experts": 1}, "expert parallelism", 1.0),
        (LLAMA, {"tp": 8, "recompute_mlp": 1}, "tensor parallelism", 0.5),
        (LLAMA, {"tp": 8, "recompute_norms": 1}, "tensor parallelism", 0.0),
        (LLAMA, {"tp": 8, "recompute": "full"}, "tensor parallelism", 1.0),
    ):
        strategy = dp.load_strategy(table | {"dp": 8 if "ep" in table else 1, "global_batch": 8})
        c = Configuration(dp.load_model(model), dp.load_system("dgx-h100"), strategy)
        parameters = stage_parameters(c.model, strategy, c.relax)
        collectives = training_collectives(c, training_pass(strategy), parameters)
        repeated = {float(one.recomputed) for one in collectives if one.purpose == purpose}
        assert repeated == {expected}


@pytest.mark.parametrize(
    ("model", "field", "per_layer", "layers"),
    [
        (LLAMA, "mlp", 3 * 4096 * 11008, 32),
        # One layer more is that of multi-token prediction.
        (DEEPSEEK, "up_projections", HEADS * (QUERY * KEY + KV * (128 + VALUE)), 61 + 1),
        (DEEPSEEK, "experts", 3 * 9 * 2048 * H + 256 * H, 58 + 1),
    ],
)
def test_hardware_flops_of_repeated_products(model, field, per_layer, layers):
    architecture = dp.load_model(model)
    strategy = dp.load_strategy({f"recompute_{field}": 1.0, "sequence_length": TOKENS})
    step = model_flops(architecture, real(TOKENS), real(TOKENS))
    repeated = float(hardware_flops(architecture, strategy) - step)
    assert repeated == pytest.approx(2 * TOKENS * per_layer * layers, rel=1e-6)


def _hardware_flops_beyond(model: str, length: int, **table) -> float:
    """FLOPs of one token that recomputation adds, by `hardware_flops`."""
    architecture = dp.load_model(model)
    strategy = dp.load_strategy({"sequence_length": length} | table)
    step = model_flops(architecture, real(length), real(length))
    return float(hardware_flops(architecture, strategy) - step) / length


def test_hardware_flops_of_attention_that_is_repeated():
    """Two products of the scores that a token sees, where scores are stored; FlashAttention's backward
    kernel repeats its own. gpt-oss-120b has 64 heads of 64 dimensions; 18 of its 36 layers see 128 tokens.
    """
    length = 131072
    selective = {"recompute": "selective"}
    for model in (LLAMA, "gpt-oss-120b", DEEPSEEK):
        assert _hardware_flops_beyond(model, length, **selective) == 0
    found = _hardware_flops_beyond("gpt-oss-120b", length, attention="standard", **selective)
    assert found == pytest.approx(18 * (length + 128) * 4 * 64 * 64, rel=1e-5)
    for model in ("gpt-oss-120b", GPT):
        parts, whole = (
            _hardware_flops_beyond(model, length, attention="standard", recompute=name)
            for name in ("selective", "full")
        )
        assert parts < whole


def test_hardware_flops_of_layers_repeated_whole():
    """Neither the vocabulary projections, one for the model and one for the module of multi-token prediction,
    nor the module's projection of two vectors to one are repeated.
    """
    forward = float(model_flops(dp.load_model(DEEPSEEK), real(1.0), real(TOKENS))) / 3
    repeated = forward - 2 * 2 * 129280 * H - 2 * 2 * H * H
    assert _hardware_flops_beyond(DEEPSEEK, TOKENS, recompute="full") == pytest.approx(repeated, rel=1e-6)


@pytest.mark.slow
def test_a_step_with_recomputation_is_slower_and_smaller():
    """And its slopes are those of central differences."""
    model, system = dp.load_model(DEEPSEEK), dp.load_system("dgx-h100", n_devices=64)
    strategy = dp.load_strategy({"dp": 64, "ep": 64, "global_batch": 64, "sequence_length": TOKENS})

    @jax.jit
    def step(share):
        chosen = replace(strategy, {f"recompute_{name}": share for name in CLASSES})
        report = dp.training_step(model, system, chosen)
        return report.time, report.memory.peak

    (slow, small), (fast, large) = step(real(1.0)), step(real(0.0))
    assert slow > fast
    assert small < large
    for output in (0, 1):
        slope = float(jax.grad(lambda share, output=output: step(share)[output])(real(0.4)))
        low, high = (float(step(real(0.4 + change))[output]) for change in (-1e-5, 1e-5))
        assert slope == pytest.approx((high - low) / 2e-5, rel=1e-4)

"""The memory of Megatron GPT runs against Calculon (Isaev et al., SC 2023), under its conventions.

Its cases are Korthikanti et al.'s (arXiv 2205.05198): Figure 1, Figure 7 and Table 5. What it counts
otherwise is an input here where a field of the strategy or the stack says it, or else is written out from
its tensors (`of_the_layer_at_work`, `left_out`).
"""

import jax
import pytest
from published_runs import cells

import diffperf as dp
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import training_memory
from diffperf.workload.model import Layers, Model

CASES = cells("calculon_memory.csv")
MEMORY = jax.jit(training_memory)

# Activations agree to rounding; parameters to 0.03 %: Calculon has no biases of linear layers, and does not
# split norms over the tensor-parallel group.
TOLERANCE = 1e-3

# Its options in the strategy's terms; one that is not here is in none of its cases.
PRECISION = {"float16": "fp16"}
RECOMPUTE = {"none": "none", "attn_only": "selective", "full": "full"}
SEQUENCE_PARALLEL = {
    ("ar", "false"): False,
    ("rs_ag", "true"): True,
}  # all-gathers again for the backward pass: inputs kept split
ATTENTION = {"multihead": "standard"}  # scores, their softmax and their dropout mask in memory
ZERO = {"false": "0", "true": "1"}  # optimizer_sharding
ELEMENT = 2  # bytes of fp16


def number(case, column: str) -> float:
    return float(case[column])


def layers_on_stage(case) -> float:
    return number(case, "num_blocks") / number(case, "pipeline_par")


def model_of(case) -> Model:
    """Transformer layers only: Calculon has neither embeddings nor the vocabulary projection."""
    assert case["fused_activation"] == "false"  # GELU keeps its input and its output, as Megatron-LM
    heads = number(case, "attn_heads")
    layers = Layers(
        count=number(case, "num_blocks"),
        heads=heads,
        kv_heads=heads,
        head_dim=number(case, "attn_size"),
        ffn=number(case, "feedforward"),
        gated=False,
        biases=True,
        dropout=True,
    )
    return Model(
        name="gpt", hidden=number(case, "hidden"), vocabulary=0, tied_embeddings=True, layers=(layers,)
    )


def system_of(case):
    """A stack that keeps what Megatron-LM's formulas say, and what Calculon adds to gradients.

    It keeps them in fp16; those of one of a stage's layers are in fp32: 2 bytes more, for one parameter in
    as many as layers.
    """
    system = dp.load_system("dgx-a100", calibration="none")
    plain = {"kept_activations": 1, "gathered_inputs": 0, "optimizer_buffers": 0, "training_buffers": 0}
    gradients = {"gradient_buffers": (4 - ELEMENT) / layers_on_stage(case)}
    return replace(system, {f"stack.{field}": value for field, value in (plain | gradients).items()})


def strategy_of(case):
    return dp.load_strategy(
        {
            "tp": number(case, "tensor_par"),
            "pp": number(case, "pipeline_par"),
            "dp": number(case, "data_par"),
            "virtual_stages": number(case, "pipeline_interleaving"),
            "schedule": "1f1b",
            "global_batch": number(case, "batch_size"),
            "micro_batch": number(case, "microbatch_size"),
            "sequence_length": number(case, "seq_size"),
            "sequence_parallel": SEQUENCE_PARALLEL[case["tensor_par_comm_type"], case["seq_par_ag_redo"]],
            "recompute": RECOMPUTE[case["activation_recompute"]],
            "attention": ATTENTION[case["attention_type"]],
            "zero": ZERO[case["optimizer_sharding"]],
            "precision": PRECISION[case["datatype"]],
            "gradient_precision": PRECISION[case["datatype"]],
            "optimizer_bytes": "12 B",  # master weights and both moments in fp32
        }
    )


def residual(case) -> float:
    """Bytes of a micro-batch's residual stream, whole: 2·s·b·h."""
    return ELEMENT * number(case, "seq_size") * number(case, "microbatch_size") * number(case, "hidden")


def of_the_layer_at_work(case) -> float:
    """Bytes that Calculon counts once, of the layer at work, beside what layers keep.

    The outputs of both row-parallel products, before the all-reduce or after the reduce-scatter; and with
    sequence parallelism the gathered inputs of both column-parallel ones. `training_memory` has the latter,
    one at a time, in its buffers.
    """
    if case["tensor_par_comm_type"] == "ar":
        return 2 * residual(case)
    return 2 * residual(case) / number(case, "tensor_par") + 2 * residual(case)


def left_out(case) -> float:
    """Bytes of the input of QKV that Calculon omits in selective recomputation without sequence parallelism.

    It drops the input that it takes to be gathered again, where none is: all layers but the one at work
    lack the 2·s·b·h that Korthikanti et al. count (Table 2), and Calculon itself without recomputation.
    """
    if (case["activation_recompute"], case["tensor_par_comm_type"]) != ("attn_only", "ar"):
        return 0.0
    stages, chunks = number(case, "pipeline_par"), number(case, "pipeline_interleaving")
    waiting = (stages - 1) / chunks if chunks > 1 else 0  # arXiv 2205.05198 §4.2.3
    return (layers_on_stage(case) * (stages + waiting) - 1) * residual(case)


@pytest.fixture(scope="module", params=CASES, ids=[f"{case['set']}-{case['case']}" for case in CASES])
def case_and_memory(request):
    case = request.param
    inputs = model_of(case), system_of(case), strategy_of(case)
    return case, MEMORY(Configuration(*inputs))


def test_parameters_and_optimizer(case_and_memory):
    case, memory = case_and_memory
    parts = {
        "weight_space": memory.weights,
        "weight_grad_space": memory.gradients,
        "optimizer_space": memory.optimizer,
    }
    for column, estimate in parts.items():
        assert float(estimate) == pytest.approx(number(case, column), rel=TOLERANCE), column
    assert float(sum(parts.values())) == pytest.approx(
        sum(number(case, column) for column in parts), rel=TOLERANCE
    )


def test_activations(case_and_memory):
    """What layers keep of the micro-batches in flight, checkpoints included, and what a layer recomputes."""
    case, memory = case_and_memory
    published = number(case, "act_space") + number(case, "act_checkpoint_size")
    estimate = float(memory.activations) + of_the_layer_at_work(case) - left_out(case)
    assert estimate == pytest.approx(published, rel=TOLERANCE)


def test_all_cases_are_there():
    """Four models: two cases each of Figure 1, five of Figure 7, two of Table 5."""
    counts = {name: sum(case["set"] == name for case in CASES) for name in ("fig1", "fig7", "tab5")}
    assert counts == {"fig1": 8, "fig7": 20, "tab5": 8}

"""DeepSeek-V3 as it was trained, against its published hours and the memory of its devices.

Published (arXiv 2412.19437): 2,664,000 H800 hours for 14.8 T tokens (Table 1), 2,048 devices of 80 GB
(§3.1); 16 stages, 64-way expert parallelism, ZeRO-1, no tensor parallelism (§3.2); DualPipe (§3.2.1);
norms, SwiGLU and up-projections recomputed, embedding and head on one device (§3.2.3); dispatch in fp8,
combination in bf16, Adam's moments in bf16, inputs of linear layers and of SwiGLU kept in fp8, head and
attention in 16 bits (§3.3); sequences of 4,096 tokens, in batches that grow from 3,072 sequences to 15,360
while the first 469 billion tokens are trained (§4.2). Not published, and
assumed here: micro-batches of one sequence; four layers on every stage but the first and the last, which
share a device, and the five that are left there; router's weights before the down projection.
"""

import dataclasses

import jax
import pytest

import diffperf as dp
from diffperf.explore.plan.plan import Search, plan
from diffperf.quantity import replace

HOURS, TOKENS, DEVICES, DEVICE_BYTES = 2.664e6, 14.8e12, 2048, 80e9
BATCH, LENGTH = 15360, 4096
FIRST_BATCH, GROWING_TOKENS = 3072, 469e9
LAYOUT = {
    "pp": 16, "dp": 128, "ep": 64, "zero": "1", "global_batch": BATCH, "sequence_length": LENGTH,
    "schedule": "dualpipe", "first_stage_layers": 3, "last_stage_layers": 2,
    "overlap_experts": True, "overlap_transfers": True,
}  # fmt: skip
FORMATS = {
    "precision": "fp8", "unquantized_head": True, "dispatch_precision": "fp8", "combine_precision": "bf16",
    "kept_activation_precision": "fp8", "optimizer_bytes": "8 byte",  # fp32 weights, two moments in bf16
}  # fmt: skip
RECOMPUTED = {
    "recompute_norms": 1, "recompute_activation_functions": 1, "recompute_up_projections": 1,
    "early_routing_weights": True,
}  # fmt: skip


def _step(**changes):
    table = LAYOUT | FORMATS | RECOMPUTED | changes
    strategy = dp.load_strategy(table)
    system = dp.load_system("hgx-h800", n_devices=DEVICES, stack="hai-llm")
    return dp.training_step(dp.load_model("deepseek-v3"), system, strategy)


@pytest.fixture(scope="module")
def as_trained():
    return _step()


@pytest.mark.slow
def test_time_within_a_tenth(as_trained):
    """The whole run, in which batches of all sizes from the first to the last train equally many tokens while
    they grow. The first ones, too small for DualPipe on 16 stages, count as the smallest that it takes.
    """
    smallest = 2 * LAYOUT["pp"] * LAYOUT["dp"]
    sizes = [max(size, smallest) for size in range(FIRST_BATCH, BATCH, 8 * LAYOUT["dp"])]
    growing = sum(float(_step(global_batch=size).time) / size for size in sizes) / len(sizes)
    steady = float(as_trained.time) / BATCH  # s of a sequence
    seconds = (GROWING_TOKENS * growing + (TOKENS - GROWING_TOKENS) * steady) / LENGTH
    hours = seconds * DEVICES / 3600
    print(f"{hours:,.0f} device hours, published {HOURS:,.0f}, {hours / HOURS - 1:+.1%}")
    print(f"while the batch grows {growing / steady - 1:+.1%} longer")
    assert hours == pytest.approx(HOURS, rel=0.1)


def test_the_run_fits_its_devices(as_trained):
    """It fits 80 GB, by no more than a quarter; and would not without what is recomputed and kept in fp8."""
    assert 0.75 * DEVICE_BYTES < float(as_trained.memory.peak) < DEVICE_BYTES
    for changes in (
        dict.fromkeys(RECOMPUTED, 0) | {"early_routing_weights": False},
        {"kept_activation_precision": "activations"},
    ):
        assert float(_step(**changes).memory.peak) > DEVICE_BYTES, changes


def test_what_the_paper_says_hides_does(as_trained):
    """DualPipe hides the all-to-all but while the pipeline fills; in the open it takes about as long as half
    of the computation or more ("approximately 1:1", §3.2.1).
    """
    assert float(as_trained.breakdown.expert_parallel) < 0.03 * float(as_trained.time)
    exposed = float(_step(overlap_experts=False).breakdown.expert_parallel)
    compute = float(as_trained.breakdown.matmul + as_trained.breakdown.attention)
    assert 0.5 * compute < exposed < 1.1 * compute


def test_each_published_choice_matters():
    """Dispatch in fp8, and routing to four of eight nodes, send fewer bytes."""
    in_the_open = {"overlap_experts": False}
    published = float(_step(**in_the_open).breakdown.expert_parallel)
    assert float(_step(**in_the_open, dispatch_precision="bf16").breakdown.expert_parallel) > 1.25 * published
    model = dp.load_model("deepseek-v3")
    mixture = dataclasses.replace(model.layers[1].mixture, groups=jax.numpy.asarray(1.0))
    anywhere = dataclasses.replace(
        model, layers=(model.layers[0], dataclasses.replace(model.layers[1], mixture=mixture))
    )
    anywhere = replace(anywhere, {"layers.1.mixture.groups_visited": 1.0})
    system = dp.load_system("hgx-h800", n_devices=DEVICES, stack="hai-llm")
    strategy = dp.load_strategy(LAYOUT | FORMATS | RECOMPUTED | in_the_open)
    unlimited = float(dp.training_step(anywhere, system, strategy).breakdown.expert_parallel)
    assert unlimited == pytest.approx(8 * (1 - (7 / 8) ** 8) / 4 * published, rel=0.05)


@pytest.mark.slow
def test_a_plan_is_no_worse_than_the_published_strategy(as_trained):
    """It gets model, devices, batch, format and schedule, and ranks the published strategy high."""
    model = dp.load_model("deepseek-v3")
    system = dp.load_system("hgx-h800", n_devices=DEVICES, stack="hai-llm")
    given = {"global_batch": BATCH, "sequence_length": LENGTH, "precision": "fp8", "schedule": "dualpipe"}
    found = plan(Search.of(model, system, given), top=10)
    best = found.best[0]
    assert float(best.report.time) <= float(as_trained.time)
    assert float(best.report.memory.excess) <= 0
    as_published = LAYOUT | RECOMPUTED
    fields = ("pp", "dp", "ep", "first_stage_layers", "last_stage_layers", "recompute_norms")
    assert any(
        all(float(getattr(one.strategy, name)) == as_published[name] for name in fields) for one in found.best
    )

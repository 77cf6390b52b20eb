"""Tables of served runs: what their columns mean, and which rows are skipped."""

import csv
import heapq
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measured_cases import INFERENCE, SPARSE, changed, write

import diffperf as dp
from diffperf.estimate.serving.disaggregated import serve_disaggregated
from diffperf.estimate.serving.known_batch import known_batch
from diffperf.explore.measured import predictions, served_demand
from diffperf.explore.measured.doubts import doubts_of
from diffperf.explore.measured.implied import DRAFT_ACCEPTANCE
from diffperf.explore.measured.platforms import Platforms
from diffperf.explore.measured.predictions import Prediction, inputs_of, predict
from diffperf.explore.measured.served_demand import Served, share_of_steady_rate
from diffperf.explore.measured.table import Row, messages, read_measurements
from diffperf.explore.measured.validate import validate
from diffperf.quantity import real
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy

ML_ENERGY = Path(__file__).parents[3] / "studies" / "power" / "data" / "ml-energy.csv"
LLAMA = {
    "model": "llama-3.1-8b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
    "ffn": 14336, "gated_mlp": "true", "vocab": 128256, "tied_embeddings": "false", "attention": "gqa",
}  # fmt: skip
DEEPSEEK = {
    "model": "deepseek-v3", "layers": 61, "hidden": 7168, "heads": 128, "kv_heads": 128, "head_dim": 128,
    "ffn": 18432, "gated_mlp": "true", "vocab": 129280, "tied_embeddings": "false", "attention": "mla",
    "experts": 256, "experts_per_token": 8, "shared_experts": 1, "expert_ffn": 2048, "dense_layers": 3,
}  # fmt: skip
PLAIN = {"spec_method": "none", "spec_tokens": "", "tokens_per_step": 1}
SPECULATIVE = {"spec_method": "mtp", "spec_tokens": 3, "tokens_per_step": 2.4}


def pool(name: str, devices: int, tp: int, ep: int = 1, parallel: bool = False) -> dict[str, object]:
    """The cells of a pool of workers."""
    cells = {"devices": devices, "tp": tp, "ep": ep, "dp_attention": str(parallel).lower()}
    return {f"{name}_{key}": value for key, value in (cells | {"workers": devices // tp}).items()}


def serving(**cells: object) -> dict[str, object]:
    """The cells of a served run of DeepSeek-V3 on one node, changed."""
    load = {"concurrency": 64, "input_len": 8192, "output_len": 1024}
    load |= {"input_len_mean": 7372.8, "output_len_mean": 921.6, "tpot_median_s": 0.02}
    formats = {"weight_dtype": "fp8", "kv_dtype": "", "framework": "sglang lmsysorg/sglang:v0.5.9-cu130"}
    row = {"id": "a", "hardware": "h200-sxm-141gb", "n_devices": 8, "disaggregated": "false"}
    return row | DEEPSEEK | formats | PLAIN | pool("prefill", 8, 8) | pool("decode", 8, 8) | load | cells


def energy(**cells: object) -> dict[str, object]:
    """The cells of a run of Llama-3.1-8B whose power was measured, changed."""
    layout = {"n_devices": 1, "devices_per_node": 8, "tp": 1, "pp": 1, "ep": 1, "dp": 1}
    load = {"task": "lm-arena-chat", "max_num_seqs": 64, "batch": 62.5, "input_len": "", "output_len": 400}
    load |= {"output_len_std": 300, "n_requests": 1024, "flags": ""}
    measured = {"tpot_s": 0.01, "power_per_device_w": 600, "energy_per_token_j": 0.1}
    formats = {"weight_dtype": "bf16", "kv_dtype": "bf16", "framework": "vllm 0.11.1"}
    row = {"id": "a", "hardware": "h100-sxm5-80gb"} | LLAMA
    return row | layout | load | formats | measured | cells


def only_row(path: Path, cells: dict[str, object]) -> Row:
    """The row of a table of one row."""
    table = read_measurements(write(path / "rows.csv", [cells]))
    assert messages(table.faults) == []
    (row,) = table.rows
    return row


def test_the_shipped_table_of_power_can_be_read():
    table = read_measurements(ML_ENERGY)
    assert (table.kind, len(table.rows), table.faults) == ("energy", 340, [])
    assert {row["framework"] for row in table.rows} == {"vllm 0.11.1"}


# --- what the columns mean


@pytest.mark.parametrize(("row", "kind"), [(serving(), "serving"), (energy(), "energy")])
def test_kinds_are_recognized(tmp_path, row, kind):
    assert only_row(tmp_path, row).kind == kind


@pytest.mark.parametrize(
    ("columns", "layout"),
    [
        (pool("decode", 8, 8), (8, 1, 1, 8, 1)),
        (pool("decode", 8, 8, ep=8), (8, 1, 8, 1, 1)),
        (pool("decode", 8, 8, ep=8, parallel=True), (1, 8, 8, 1, 1)),
        (pool("decode", 24, 8, ep=1, parallel=True), (1, 8, 1, 8, 3)),
        (pool("decode", 16, 16, ep=8, parallel=True), (1, 16, 8, 2, 1)),
    ],
)
def test_layouts_of_pools(tmp_path, columns, layout):
    """A worker's attention is split by heads or by requests; experts over all its devices."""
    row = only_row(tmp_path, serving(disaggregated="true", n_devices=40, **columns))
    _, system, prefill, decode_pool, _ = inputs_of("serving", row)
    strategy = decode_pool.strategy
    degrees = (strategy.tp, strategy.dp, strategy.ep, strategy.expert_tp, decode_pool.workers)
    assert tuple(map(float, degrees)) == layout
    assert float(prefill.strategy.tp) == 8
    assert float(system.n_devices) == 40
    # The row does not say how many devices a node has: it is the system's own.
    assert float(system.network[0].size) == 8


def test_one_pool_where_prompts_and_outputs_share_the_devices(tmp_path):
    assert inputs_of("serving", only_row(tmp_path, serving()))[2] is None


def test_demand_of_a_closed_loop(tmp_path):
    """Lengths uniform from 80 to 100 % of the longest have that spread; the modules that draft run."""
    model, _, _, decode_pool, demand = inputs_of("serving", only_row(tmp_path, serving(**SPECULATIVE)))
    drawn = np.linspace(0.8 * 8192, 8192, 100_001)
    assert float(demand.input_length) == pytest.approx(drawn.mean(), rel=1e-6)
    assert float(demand.input_spread) == pytest.approx(drawn.std() / drawn.mean(), rel=1e-4)
    assert float(demand.concurrency) == 64
    assert (float(demand.draft_tokens), float(demand.tokens_per_step)) == (3, 2.4)
    assert float(model.mtp_layers) == 1
    assert decode_pool.strategy.kv_precision.likeliest() == "bf16"
    assert decode_pool.strategy.precision.likeliest() == "fp8"


def test_steps_of_multi_token_prediction_that_say_no_tokens(tmp_path):
    """Drafts count up to the first that is not accepted: each with a chance of 70 % where those before are.
    InferenceX publishes 1.66 to 1.99, 1.75 to 2.34 and 2.30 to 2.88 tokens a step for one to three drafts.
    """
    within = {1: (1.66, 1.99), 2: (1.75, 2.34), 3: (2.30, 2.88)}
    accepted = np.random.default_rng(0).random((200_000, 3)) < DRAFT_ACCEPTANCE
    for drafts, (least, most) in within.items():
        cells = serving(spec_method="mtp", spec_tokens=drafts, tokens_per_step="")
        row = only_row(tmp_path, cells)
        tokens = float(inputs_of("serving", row)[-1].tokens_per_step)
        kept = np.cumprod(accepted[:, :drafts], axis=1).sum(axis=1)
        assert tokens == pytest.approx(1 + kept.mean(), rel=0.005)
        assert least < tokens < most
        unknown = "accepted drafts unknown: 70% of each after those before are assumed"
        assert doubts_of(row, Prediction(), Platforms()) == (unknown,)
    said = only_row(tmp_path, serving(**SPECULATIVE))
    assert not doubts_of(said, Prediction(), Platforms())


@pytest.mark.parametrize("row", [serving, energy])
def test_a_row_says_how_unequally_its_tokens_visit_experts(tmp_path, row):
    """A column for the spread of popularity; an empty cell and no column mean the default of a strategy."""

    def spread(**cells):
        read = only_row(tmp_path, row(**DEEPSEEK | cells))
        parts = jax.tree.leaves(inputs_of(read.kind, read), is_leaf=lambda part: isinstance(part, Strategy))
        (strategy,) = (part for part in parts if isinstance(part, Strategy))
        return float(strategy.expert_popularity_spread)

    assert spread(expert_popularity_spread=1.25) == 1.25
    default = float(Strategy().expert_popularity_spread)
    assert spread(expert_popularity_spread="") == spread() == default


def test_architectures_are_those_of_the_shipped_config(tmp_path):
    """Windows and biases, of which no column tells; a fine-tuned version is the model it is named after."""
    gpt_oss = dp.load_model("gpt-oss-120b")
    layers = gpt_oss.layers[0]
    cells = LLAMA | {"model": "my-gpt-oss-120b-finetuned", "layers": 36, "hidden": 2880, "heads": 64}
    cells |= {"head_dim": 64, "ffn": 2880, "vocab": 201088, "experts": 128, "experts_per_token": 4}
    cells |= {"expert_ffn": 2880}
    assert float(layers.window) == 128
    model = inputs_of("energy", only_row(tmp_path, energy(**cells)))[0]
    assert [float(kind.window) for kind in model.layers] == [float(kind.window) for kind in gpt_oss.layers]
    assert float(model.layers[0].biases.on) == 1
    # Other dimensions are another model: its columns say what it is.
    other = inputs_of("energy", only_row(tmp_path, energy(**cells | {"heads": 32})))[0]
    assert len(other.layers) == 1
    assert float(other.layers[0].heads) == 32


def test_latent_attention_has_the_head_of_the_config(tmp_path):
    """Tables count the dimensions of content alone: 128 of DeepSeek's 192."""
    model = inputs_of("serving", only_row(tmp_path, serving()))[0]
    assert [float(layers.head_dim) for layers in model.layers] == [192, 192]
    assert float(model.mtp_layers) == 0


@pytest.mark.slow
def test_inference_with_experts_over_several_ranks(tmp_path):
    cells = SPARSE | {"ep": 2, "tp": 4, "n_devices": 4}
    (row,) = read_measurements(changed(INFERENCE, tmp_path / "runs.csv", cells)).rows
    strategy = inputs_of("inference", row)[2]
    assert (float(strategy.tp), float(strategy.ep), float(strategy.expert_tp)) == (4, 2, 2)
    assert predict("inference", [row])[0].skipped is None


@pytest.mark.parametrize(
    ("cells", "operands", "stored"),
    [
        ({"weight_dtype": "fp16", "activation_dtype": "float16"}, "fp16", "operands"),
        ({"weight_dtype": "int4", "activation_dtype": "BF16"}, "bf16", "int4"),
        ({"weight_dtype": "fp8_e4m3", "activation_dtype": "fp8"}, "fp8", "operands"),
        ({"weight_dtype": "fp8", "activation_dtype": "fp16"}, "fp16", "fp8"),
    ],
)
def test_number_formats_of_weights_and_activations(tmp_path, cells, operands, stored):
    (row,) = read_measurements(changed(INFERENCE, tmp_path / "runs.csv", cells)).rows
    strategy = inputs_of("inference", row)[2]
    assert (strategy.precision.likeliest(), strategy.weight_precision.likeliest()) == (operands, stored)
    assert predict("inference", [row])[0].skipped is None


@pytest.mark.parametrize(
    ("cells", "formats", "head"),
    [
        ({"weight_dtype": "mxfp4"}, ("bf16", "operands", "mxfp4", "operands"), 16),
        ({"weight_dtype": "fp8"}, ("fp8", "operands", "linear", "operands"), 16),
        (
            {"weight_dtype": "int4", "activation_dtype": "bf16"},
            ("bf16", "operands", "linear", "int4"),
            16,
        ),
        (
            {"weight_dtype": "Q4_K_M", "activation_dtype": "fp16"},
            ("fp16", "q4_k_m", "linear", "operands"),
            4.8944,
        ),
    ],
)
def test_number_formats_of_experts_and_of_the_vocabulary_projection(tmp_path, cells, formats, head):
    """4-bit checkpoints of models of experts quantize the experts alone; llama.cpp the last product too,
    with as many bits as its average weight.
    """
    strategy = inputs_of("serving", only_row(tmp_path, serving(**cells)))[3].strategy
    fields = (strategy.precision, strategy.weight_precision, strategy.expert_precision)
    fields += (strategy.expert_weight_precision,)
    assert tuple(field.likeliest() for field in fields) == formats
    assert 8 * float(strategy.served_head_width) == pytest.approx(head)


def test_gpt_oss_multiplies_its_stored_experts_in_16_bits(tmp_path):
    cells = {"model": "gpt-oss-120b", "weight_dtype": "mxfp4"}
    strategy = inputs_of("serving", only_row(tmp_path, serving(**cells, attention="gqa")))[3].strategy
    chosen = (strategy.expert_precision.likeliest(), strategy.expert_weight_precision.likeliest())
    assert chosen == ("linear", "mxfp4")


# --- what is estimated


@pytest.mark.slow
def test_energy_rows_are_estimated_as_the_library_does(tmp_path):
    """Answers end by themselves: at any moment the longer ones run, (μ² + σ²)/2μ tokens generated."""
    (found,) = predict("energy", [only_row(tmp_path, energy(input_len=150, batch=62))])
    system = dp.load_system("dgx-h100", 1, stack="vllm-0.8")
    model, lengths = dp.load_model("llama-3.1-8b"), {"sequence_length": 150, "global_batch": 62}
    strategy = dp.load_strategy(lengths | {"output_length": (400**2 + 300**2) // 400})
    assert found.values["tpot_s"] == pytest.approx(float(dp.decode(model, system, strategy).time), rel=1e-9)
    steps = jax.jit(known_batch)(Configuration(model, system, strategy).for_inference(), real(400))
    joules, seconds = float(steps.mean_energy), float(steps.mean_time)
    assert found.values["power_per_device_w"] == pytest.approx(joules / seconds, rel=1e-9)
    assert found.values["energy_per_token_j"] == pytest.approx(joules / 62, rel=1e-9)
    assert found.values["throughput_tokens_per_s"] == pytest.approx(62 / seconds, rel=1e-9)


def made_up_state(model, system, prefill, pool, demand) -> Served:
    """A server whose times and rates are made up from its inputs, so that a test sees which it got."""
    one = jnp.ones_like(system.n_devices)
    return Served(
        time_to_first_token=one * (0.0 if prefill is None else 7.0),
        first_token_of_run=one * (0.0 if prefill is None else 8.0),
        time_per_output_token=0.001 * pool.strategy.tp,
        latency=2 * one,
        output_rate_of_run=demand.concurrency * one,
        power=500 * one,
    )


def test_seam_of_the_steady_state(tmp_path, monkeypatch):
    """Rates are per device in tables of servers, and of all devices in tables of inference."""
    monkeypatch.setattr(served_demand, "steady_state", made_up_state)
    # Programs of their own: those compiled here are not for other tests.
    programs = {kind: jax.jit(jax.vmap(found.estimate)) for kind, found in predictions.EVALUATORS.items()}
    monkeypatch.setattr(predictions, "_PROGRAMS", programs)
    rows = [serving()]
    (one,) = predict("serving", read_measurements(write(tmp_path / "rows.csv", rows)).rows)
    assert one.values["tpot_median_s"] == pytest.approx(0.008)
    assert one.values["output_throughput_tokens_per_s_per_device"] == pytest.approx(64 / 8)
    assert one.values["input_throughput_tokens_per_s_per_device"] == pytest.approx(64 / 8 * 8)
    assert one.values["throughput_tokens_per_s_per_device"] == pytest.approx(64 / 8 * 9)
    assert one.values["ttft_mean_s"] == 0
    cells = {"batch": "", "concurrency": 8, "ttft_s": 1, "latency_s": "", "throughput_kind": "total"}
    (row,) = read_measurements(changed(INFERENCE, tmp_path / "runs.csv", cells)).rows
    (found,) = predict("inference", [row])
    assert found.skipped is None
    assert (found.values["latency_s"], found.values["throughput_tokens_per_s"]) == (2, 16)


@pytest.mark.parametrize("clients", [1, 4, 16, 64, 400])
@pytest.mark.parametrize(("spread", "later"), [(0.0, 0.0), (0.064, 0.0), (0.064, 0.2), (0.3, 0.1)])
def test_rate_of_a_whole_run(spread, later, clients):
    """Against clients who take requests from a heap of ten for each: 80 % of their time are answers."""
    rounds, first_token, longest = 10, 0.2, np.sqrt(3) * spread
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        answers = 0.8 * rng.uniform(1 - longest, 1 + longest, clients * rounds)
        free = [0.0] * clients
        for index, answer in enumerate(answers):
            begun = heapq.heappop(free)
            heapq.heappush(free, begun + first_token + answer + (later if index < clients else 0.0))
        ratios.append(rounds * (first_token + answers.mean()) / max(free))
    numbers = (jnp.asarray(float(number)) for number in (1 / rounds, clients, later, 0.8, spread))
    at_start, number, late, answer, deviation = numbers
    share = share_of_steady_rate(at_start, clients=number, later=late, answer=answer, spread=deviation)
    assert float(share) == pytest.approx(np.mean(ratios), rel=0.02)


@pytest.mark.slow
def test_pools_of_their_own_are_estimated_as_the_library_does(tmp_path):
    """Prompts on a worker of 8 devices, answers on two; all of them count where rates are per device."""
    pools = pool("prefill", 8, 8) | pool("decode", 16, 8, ep=8, parallel=True)
    row = only_row(tmp_path, serving(disaggregated="true", n_devices=24, **pools))
    (found,) = predict("serving", [row])
    model, system, prefill, decoding, demand = inputs_of("serving", row)
    report = jax.jit(serve_disaggregated)(model, system, prefill, decoding, demand.requests)
    assert (float(report.prefill_devices), float(report.decode_devices)) == (8, 16)
    rate = float(report.serving.tokens_per_second) / 24
    # A run of ten requests per client has a start and an end.
    whole_run = found.values["output_throughput_tokens_per_s_per_device"]
    assert 0.9 * rate < whole_run < 0.995 * rate
    first_token = float(report.serving.time_to_first_token)
    assert found.values["ttft_median_s"] == pytest.approx(first_token, rel=1e-6)
    (together,) = predict("serving", [only_row(tmp_path, serving())])
    assert found.values["tpot_median_s"] < together.values["tpot_median_s"]


# --- what is skipped, and wrong cells


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (serving(disaggregated="true", n_devices=16), None),
        (
            serving(**SPECULATIVE | {"tokens_per_step": "", "spec_method": "ngram"}),
            "tokens per speculative step unknown",
        ),
        (serving(model="my-own"), "latent attention (MLA) of a model that is not shipped"),
        (energy(attention="hybrid-mamba2"), None),  # the shipped config says what the columns do not
        (
            energy(attention="hybrid-mamba2", model="my-own"),
            "Mamba-2 layers between attention of a model that is not shipped",
        ),
        (energy(task="my-own"), "length of the prompts unknown"),
        (energy(kv_dtype="int3"), "precision int3"),
        (energy(tp=2), "system.n_devices: not the product of the degrees"),
    ],
)
def test_what_cannot_be_represented_is_counted(tmp_path, cells, reason):
    found = validate(write(tmp_path / "rows.csv", [cells])).summary()
    assert found.skipped == ({} if reason is None else {reason: 1})


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            serving(tokens_per_step=0.5),
            'tokens_per_step: found "0.5"; expected a bare number in token',
        ),
        (serving(decode_tp=""), "decode_tp: found an empty cell"),
        (serving(decode_dp_attention="yes"), 'decode_dp_attention: found "yes"; expected true or false'),
        (serving(concurrency=1.5), 'concurrency: found "1.5"; expected a whole number'),
        (energy(batch="62 requests"), 'batch: found "62 requests"; expected a number'),
        (energy(attention="mamba"), 'attention: found "mamba"; expected one of mha'),
    ],
)
def test_wrong_cells_are_one_line(tmp_path, cells, words):
    path = write(tmp_path / "rows.csv", [cells])
    (fault,) = messages(read_measurements(path).faults)
    assert "rows.csv line 2 (a): " in fault
    assert words in fault
    assert "\n" not in fault


def test_a_table_without_a_needed_column(tmp_path):
    rows = [{name: cell for name, cell in serving().items() if name != "decode_tp"}]
    with pytest.raises(dp.ConfigError, match="no column decode_tp; expected the columns of a serving table"):
        read_measurements(write(tmp_path / "rows.csv", rows))


def test_all_columns_survive_a_round_trip(tmp_path):
    """The cells of a row are kept as written, beside their values."""
    cells = serving()
    row = only_row(tmp_path, cells)
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert row.cells == next(csv.DictReader(file))
    assert (row["decode_dp_attention"], row["prefill_workers"], row["kv_dtype"]) == (False, 1.0, "bf16")

"""A served model: the laws that its steady state keeps, whatever the engine's passes take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import outputs
from served_requests import LOADS, requests_of

import diffperf as dp
from diffperf.estimate.serving.serving_report import ServingReport, serve
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.requests import Requests

compiled = jax.jit(serve)


@pytest.fixture(scope="module")
def inputs():
    model, system = dp.load_model("llama-3-8b"), dp.load_system("dgx-h100", n_devices=4)
    strategy = dp.load_strategy({"tp": 2, "dp": 2}, n_devices=4)
    return model, system, strategy


def _report(inputs, requests: Requests, relax=None) -> ServingReport:
    return compiled(*inputs, requests, Exact() if relax is None else relax)


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_littles_law_holds(inputs, load):
    """Requests in the system are their rate times their latency, and running ones those that decode."""
    report = _report(inputs, requests_of(load))
    decode = report.latency - report.time_to_first_token
    assert float(report.running) * 2 == pytest.approx(float(report.requests_per_second * decode), rel=1e-3)
    if load == "concurrency":
        assert float(report.requests_per_second * report.latency) == pytest.approx(64, rel=1e-3)
    assert float(report.tokens_per_second) == pytest.approx(256 * float(report.requests_per_second))


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_more_load_is_slower_and_finite_beyond_saturation(inputs, load):
    loads = np.geomspace(1, 1e5, 21)
    reports = [_report(inputs, requests_of(load, **{load: value})) for value in loads]
    assert all(np.all(np.isfinite(value)) for report in reports for value in outputs(report).values())
    for name in ("time_per_output_token", "saturation", "requests_per_second", "time_to_first_token"):
        values = np.array([float(getattr(report, name)) for report in reports])
        assert np.all(np.diff(values) > -2e-3 * values[:-1]), name
    assert float(reports[0].saturation) < 1 < float(reports[-1].saturation)


@jax.jit
def _measured(factors, inputs, requests):
    """Logarithms of outputs, as functions of factors on the bandwidth, the length of answers and the load."""
    model, system, strategy = inputs
    bandwidth, output_length, offered = factors
    changed = replace(
        system, {"accelerator.memory.hbm.bandwidth": system.accelerator.memory[-1].bandwidth * bandwidth}
    )
    asked = replace(
        requests,
        {
            "output_length": requests.output_length * output_length,
            "rate": requests.rate * offered,
            "concurrency": requests.concurrency * offered,
        },
    )
    report = serve(model, changed, strategy, asked, Smooth(20.0))
    numbers = (
        report.time_to_first_token,
        report.time_per_output_token,
        report.cost_per_million_tokens,
        report.power,
    )
    return jnp.log(jnp.stack(numbers))


_slopes = jax.jit(jax.jacrev(_measured))


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("overloaded", [False, True])
def test_gradients_are_finite_differences(inputs, load, overloaded):
    requests = requests_of(load, **({load: 4e3} if overloaded else {}))
    # No corner of the interpolation of step times is near this point.
    point = jnp.array([1.0013, 1.0007, 1.0011])
    exact = np.asarray(_slopes(point, inputs, requests))
    assert np.all(np.isfinite(exact))
    step = 1e-6
    for index in range(3):
        change = step * jnp.eye(3)[index]
        above, below = (_measured(point + sign * change, inputs, requests) for sign in (1, -1))
        difference = np.asarray(above - below) / (2 * step)
        np.testing.assert_allclose(exact[:, index], difference, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_mapped_is_looped(inputs):
    values = jnp.array([2.0, 10.0, 300.0])
    together = jax.vmap(lambda rate: _report(inputs, replace(requests_of(), {"rate": rate})))(values)
    for index, value in enumerate(values):
        alone = _report(inputs, requests_of(rate=value))
        assert float(together.latency[index]) == pytest.approx(float(alone.latency), rel=1e-9)


@pytest.mark.slow
def test_single_precision_is_enough(inputs):
    wide = _report(inputs, requests_of())
    with jax.enable_x64(False):
        narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (*inputs, requests_of(), Exact()))
        rounded = compiled(*narrow)
    for name in ("time_to_first_token", "time_per_output_token_p90", "cost_per_million_tokens"):
        assert float(getattr(rounded, name)) == pytest.approx(float(getattr(wide, name)), rel=1e-3)


@pytest.mark.slow
def test_the_cache_bounds_the_batch(inputs):
    """Long contexts fill the memory before the batch cap is reached, and clients wait."""
    crowd = {"concurrency": 2000.0, "batch_cap": 1000.0, "input_length": 30000.0}
    report = _report(inputs, requests_of("concurrency", **crowd))
    assert float(report.slots) < 1000
    assert float(report.kv_pressure) == pytest.approx(1, abs=0.02)
    assert float(report.memory.excess) == pytest.approx(0, abs=0.02)
    assert float(report.saturation) > 1


@pytest.mark.slow
def test_a_prefix_cache_and_accepted_drafts_help(inputs):
    plain = _report(inputs, requests_of())
    cached = _report(inputs, requests_of(cached_share=0.5))
    assert float(cached.time_to_first_token) < float(plain.time_to_first_token)
    drafted = _report(inputs, requests_of(draft_tokens=2.0, tokens_per_step=2.2))
    useless = _report(inputs, requests_of(draft_tokens=2.0))
    assert float(drafted.time_per_output_token) < 0.6 * float(plain.time_per_output_token)
    assert float(useless.time_per_output_token) > float(plain.time_per_output_token)


@pytest.mark.parametrize("limit", [700.0, 500.0])
def test_prompts_keep_the_power_limit(limit):
    """Prompts of an engine take the time of a prefill, whose clock the power limit holds down."""
    system = dp.override(dp.load_system("dgx-h100", n_devices=1), {"accelerator.power_limit": limit})
    model, strategy = dp.load_model("llama-3-8b"), {"global_batch": 1, "sequence_length": 8000}
    prefill = dp.prefill(model, system, dp.load_strategy(strategy, n_devices=1))
    assert float(prefill.clock) < 0.95
    requests = replace(
        requests_of("concurrency"),
        {"input_length": 8000, "output_length": 1, "concurrency": 1, "chunk": 8192, "input_spread": 0},
    )
    report = _report((model, system, dp.load_strategy({}, n_devices=1)), requests)
    assert float(report.time_to_first_token) == pytest.approx(float(prefill.time), rel=0.03)
    assert float(report.power) <= 1.005 * limit


@pytest.mark.parametrize(
    ("name", "devices", "model", "limit", "lengths", "clients"),
    [
        ("dgx-h100", 1, "llama-3-8b", 490, (8000, 100), 2),  # prompts beside a sequence that decodes
        ("dgx-h100", 1, "llama-3-8b", 490, (8000, 100), 4),
        ("hgx-b200", 8, "llama-3.1-70b", 1000, (500, 20), 64),  # steps that are full of short prompts
        ("hgx-b200", 8, "llama-3.1-70b", 1000, (500, 20), 256),
    ],
)
def test_decoding_beside_prompts_keeps_the_power_limit(name, devices, model, limit, lengths, clients):
    system = dp.override(dp.load_system(name, n_devices=devices), {"accelerator.power_limit": limit})
    inputs = dp.load_model(model), system, dp.load_strategy({"tp": devices}, n_devices=devices)
    prompt, answer = lengths
    requests = {"input_length": prompt, "output_length": answer, "concurrency": clients}
    requests |= {"input_spread": 0, "chunk": 8192}
    report = _report(inputs, replace(requests_of("concurrency"), requests))
    assert 0.95 * limit < float(report.power) <= 1.003 * limit


def test_another_slot_is_no_loss():
    """Where so many sequences and the tokens of a full step fill whole tiles of rows: 2,048 + 128 or 256."""
    inputs = dp.load_model("llama-3-8b"), dp.load_system("dgx-h100", n_devices=1), dp.load_strategy({})
    load = {"input_length": 500, "output_length": 50, "input_spread": 0, "concurrency": 4000, "chunk": 2048}

    def throughput(slots):
        requests = replace(requests_of("concurrency"), load | {"batch_cap": slots})
        return serve(*inputs, requests).tokens_per_second

    slots = jnp.array([127.0, 128.0, 129.0, 130.0, 255.0, 256.0, 257.0, 258.0])
    rates = np.asarray(jax.jit(jax.vmap(throughput))(slots))
    assert np.all(np.diff(rates) > -1e-3 * rates[:-1])

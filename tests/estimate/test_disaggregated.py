"""A model served by two pools: the laws that its steady state keeps, whatever the passes take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import outputs
from served_requests import LOADS, requests_of

import diffperf as dp
from diffperf.estimate.inference import decode
from diffperf.estimate.serving.disaggregated import DisaggregatedReport, serve_disaggregated
from diffperf.estimate.serving.pools import Pool
from diffperf.quantity import replace
from diffperf.relax import Exact, Smooth
from diffperf.workload.requests import Requests

compiled = jax.jit(serve_disaggregated)


@pytest.fixture(scope="module")
def inputs():
    """Llama-3-8B on two workers of a device that prefill, and one of two replicas of two that decodes."""
    model, system = dp.load_model("llama-3-8b"), dp.load_system("dgx-h100", n_devices=8)
    prefill = Pool(dp.load_strategy({"tp": 1}), jnp.asarray(2.0))
    decoding = Pool(dp.load_strategy({"tp": 2, "dp": 2}, n_devices=4), jnp.asarray(1.0))
    return model, system, prefill, decoding


def _report(inputs, requests: Requests, relax=None) -> DisaggregatedReport:
    return compiled(*inputs, requests, Exact() if relax is None else relax)


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_littles_law_holds(inputs, load):
    report = _report(inputs, requests_of(load))
    serving = report.serving
    if load == "concurrency":
        assert float(serving.requests_per_second * serving.latency) == pytest.approx(64, rel=1e-3)
    # A sequence decodes in one step more than its answer takes after the first token.
    steps = serving.time_per_output_token * 256
    assert float(serving.running) * 2 == pytest.approx(float(serving.requests_per_second * steps), rel=1e-3)
    assert float(serving.tokens_per_second) == pytest.approx(256 * float(serving.requests_per_second))
    assert float(report.prefill_devices + report.decode_devices) == 6
    used = float(serving.requests_per_second / report.prefill_capacity)
    assert float(report.prefill_utilization) == pytest.approx(used)


@pytest.mark.slow
def test_handing_a_cache_over_keeps_an_engine_busy(inputs):
    """A prompt takes one of the two engines for as much longer; alone, its first token is as much later."""
    model, system, *pools = inputs
    for rate in (0.01, 10.0):
        requests = requests_of(rate=rate)
        before = _report(inputs, requests)
        busy = replace(system, {"inference_stack.handover": 0.05})
        after = _report((model, busy, *pools), requests)
        assert float(2 / after.prefill_capacity - 2 / before.prefill_capacity) == pytest.approx(0.05)
        later = float(after.serving.time_to_first_token - before.serving.time_to_first_token)
        assert later == pytest.approx(0.05, rel=0.01) if rate == 0.01 else later > 0.06
        answers = before.serving.time_per_output_token, after.serving.time_per_output_token
        assert float(answers[1]) == pytest.approx(float(answers[0]), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_more_load_is_slower_and_finite_beyond_saturation(inputs, load):
    loads = np.geomspace(1, 1e5, 21)
    reports = [_report(inputs, requests_of(load, **{load: value})) for value in loads]
    assert all(np.all(np.isfinite(value)) for report in reports for value in outputs(report).values())
    for name in ("time_per_output_token", "saturation", "requests_per_second", "time_to_first_token"):
        values = np.array([float(getattr(report.serving, name)) for report in reports])
        assert np.all(np.diff(values) > -2e-3 * values[:-1]), name
    assert float(reports[0].serving.saturation) < 1 < float(reports[-1].serving.saturation)
    most = min(float(reports[-1].prefill_capacity), float(reports[-1].decode_capacity))
    assert float(reports[-1].serving.requests_per_second) == pytest.approx(most, rel=0.02)


def _logarithms(factors, inputs, requests: Requests):
    """Logarithms of four results, as bandwidth, workers, lengths of answers and the load are multiplied."""
    model, system, prefill, decoding = inputs
    bandwidth, workers, output_length, offered = factors
    memory = system.accelerator.memory[-1].bandwidth * bandwidth
    loads = {name: getattr(requests, name) * offered for name in LOADS}
    report = serve_disaggregated(
        model,
        replace(system, {"accelerator.memory.hbm.bandwidth": memory}),
        prefill._replace(workers=prefill.workers * workers),
        decoding,
        replace(requests, {"output_length": requests.output_length * output_length, **loads}),
        Smooth(20.0),
    )
    serving = report.serving
    numbers = serving.time_to_first_token, serving.time_per_output_token
    return jnp.log(jnp.stack([*numbers, serving.cost_per_million_tokens, serving.power]))


@pytest.mark.slow
def test_gradients_are_finite_differences(inputs):
    """For both kinds of load, by one program: the load is data."""
    derivatives, values = jax.jit(jax.jacrev(_logarithms)), jax.jit(_logarithms)
    # No corner of the interpolation of step times is near this point.
    point, step = jnp.array([1.0013, 1.0003, 1.0007, 1.0011]), 1e-6
    for load in LOADS:
        exact = np.asarray(derivatives(point, inputs, requests_of(load)))
        assert np.all(np.isfinite(exact))
        for index in range(len(point)):
            change = step * jnp.eye(len(point))[index]
            ends = [values(point + sign * change, inputs, requests_of(load)) for sign in (1, -1)]
            difference = np.asarray(ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(exact[:, index], difference, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_mapped_is_looped(inputs):
    values = jnp.array([2.0, 10.0, 300.0])
    mapped = jax.jit(
        jax.vmap(lambda rate: serve_disaggregated(*inputs, replace(requests_of(), {"rate": rate})))
    )
    together = mapped(values)
    for index, value in enumerate(values):
        alone = _report(inputs, requests_of(rate=value))
        latency = float(together.serving.latency[index])
        assert latency == pytest.approx(float(alone.serving.latency), rel=1e-9)


@pytest.mark.slow
def test_single_precision_is_enough(inputs):
    wide = _report(inputs, requests_of()).serving
    with jax.enable_x64(False):
        narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (*inputs, requests_of(), Exact()))
        rounded = compiled(*narrow).serving
    for name in ("time_to_first_token", "time_per_output_token_p90", "cost_per_million_tokens"):
        assert float(getattr(rounded, name)) == pytest.approx(float(getattr(wide, name)), rel=1e-3)


@pytest.mark.slow
def test_with_prefill_and_network_for_free_decoding_is_all(inputs):
    """Each token takes a decode pass of the running batch; the first its passes and its own step."""
    model, system, prefill, decoding = inputs
    many = prefill._replace(workers=jnp.asarray(1e6))
    free = {f"network.{tier.name}.bandwidth": 1e15 for tier in system.network}
    free |= {f"network.{tier.name}.latency": 1e-12 for tier in system.network}
    requests = requests_of(output_spread=0.0)
    report = _report((model, replace(system, free), many, decoding), requests)
    batch = 2 * (float(report.serving.running) + 1)
    strategy = replace(decoding.strategy, {"global_batch": batch, "sequence_length": 1024.0})
    step = decode(model, dp.load_system("dgx-h100", n_devices=4), strategy)
    assert float(report.serving.time_per_output_token) == pytest.approx(float(step.time), rel=0.02)
    assert float(report.transfer) < 1e-3 * float(report.serving.time_to_first_token)
    # What is left of the wait is the rest of the decode step in progress.
    half = float(report.serving.time_per_output_token) / 2
    assert float(report.serving.queueing) == pytest.approx(half, rel=0.01)


@pytest.mark.slow
def test_caches_travel_faster_within_a_node(inputs):
    """Six devices share the links of a node; with a worker of eight the caches cross between nodes."""
    model, system, prefill, _ = inputs
    system = replace(system, {"n_devices": 16})
    near = Pool(dp.load_strategy({"tp": 2}), jnp.asarray(2.0))
    far = Pool(dp.load_strategy({"tp": 2}), jnp.asarray(7.0))
    requests = requests_of("concurrency", concurrency=4.0)
    inside = _report((model, system, prefill, near), requests).transfer
    beyond = _report((model, system, prefill, far), requests).transfer
    assert float(beyond) > 2 * float(inside)


@pytest.mark.slow
def test_the_cache_bounds_the_batch(inputs):
    """Long contexts fill the memory of the devices that decode before the batch cap is reached."""
    crowd = {"concurrency": 2000.0, "batch_cap": 1000.0, "input_length": 30000.0}
    model, system, prefill, decoding = inputs
    many = prefill._replace(workers=jnp.asarray(200.0))
    report = _report((model, system, many, decoding), requests_of("concurrency", **crowd))
    assert float(report.serving.slots) < 1000
    assert float(report.serving.kv_pressure) == pytest.approx(1, abs=0.03)
    assert float(report.serving.saturation) > 1
    assert float(report.prefill_memory.excess) < 0


@pytest.mark.slow
def test_accepted_drafts_help_decoding_and_leave_prefill_alone(inputs):
    plain = _report(inputs, requests_of())
    drafted = _report(inputs, requests_of(draft_tokens=2.0, tokens_per_step=2.2))
    ratio = float(drafted.serving.time_per_output_token) / float(plain.serving.time_per_output_token)
    assert ratio < 0.6
    assert float(drafted.prefill_capacity) == pytest.approx(float(plain.prefill_capacity), rel=1e-6)

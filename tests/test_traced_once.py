"""Functions that are traced once: programs and their parts share the trace, with the same results."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.quantity import is_traced
from diffperf.traced_once import traced_once


class Rates(NamedTuple):
    """Numbers that travel together."""

    compute: jax.Array
    memory: jax.Array


@pytest.fixture
def counted():
    """A function that computes something in vain, and something twice, and the arguments of its traces."""
    traces: list = []

    @traced_once
    def step(work, rates: Rates, kind: str = "longest"):
        traces.append((work, rates, kind))
        jnp.exp(work)
        times = jnp.stack([work / rates.compute, jnp.square(work) / rates.memory])
        longest = jnp.max(times) if kind == "longest" else jnp.sum(times)
        return {"time": longest, "share": work / rates.compute / longest}

    return step, traces


def reference(work, compute, memory):
    return np.maximum(work / compute, work**2 / memory)


def test_parts_of_programs_share_one_trace(counted):
    """Two calls in one program, a batch, a derivative and another program."""
    step, traces = counted
    work, compute = jnp.float64(2.0), jnp.float64(4.0)

    def both(work, compute):
        rates = Rates(compute, 5.0)
        return step(work, rates)["time"] + step(work + 1, rates)["time"]

    assert float(jax.jit(both)(work, compute)) == pytest.approx(reference(2, 4, 5) + reference(3, 4, 5))
    assert len(traces) == 1
    batch = jax.jit(jax.vmap(both, in_axes=(0, None)))(jnp.array([2.0, 9.0]), compute)
    np.testing.assert_allclose(batch, [reference(w, 4, 5) + reference(w + 1, 4, 5) for w in (2, 9)])
    slope = jax.jit(jax.grad(both))(work, compute)
    assert float(slope) == pytest.approx(2 * 2 / 5 + 2 * 3 / 5)
    assert float(jax.jit(jax.grad(jax.grad(both)))(work, compute)) == pytest.approx(2 * 2 / 5)
    assert len(traces) == 1


def test_other_constants_texts_and_types_are_traced_anew(counted):
    step, traces = counted
    for count, (memory, kind) in enumerate([(5.0, "longest"), (6.0, "longest"), (6.0, "sum")], start=1):
        for _ in range(2):
            time = jax.jit(lambda w, m=memory, k=kind: step(w, Rates(4.0, m), kind=k)["time"])(9.0)
            times = 9 / 4, 81 / memory
            assert float(time) == pytest.approx(sum(times) if kind == "sum" else max(times))
        assert len(traces) == count
    jax.jit(lambda w: step(w, Rates(4.0, 6.0), kind="sum")["time"])(jnp.float32(9.0))
    assert len(traces) == 4


def test_constants_stay_known(counted):
    """Choices that have no weight are left out by what is known of them."""
    step, traces = counted
    jax.jit(lambda w: step(w, Rates(4.0, np.float64(6.0)))["time"])(9.0)
    work, rates, _ = traces[0]
    assert is_traced(work)
    assert not is_traced(rates)


def test_numbers_alone_are_no_program(counted):
    step, traces = counted
    for _ in range(2):
        assert float(step(9.0, Rates(4.0, 6.0))["time"]) == pytest.approx(81 / 6)
    assert len(traces) == 2
    assert not is_traced(traces[0][0])


def test_what_is_computed_in_vain_or_twice_is_left_out(counted):
    step, _ = counted
    program = jax.make_jaxpr(jax.vmap(lambda w: step(w, Rates(4.0, 6.0))))(jnp.ones(3))
    (call,) = program.eqns
    names = [equation.primitive.name for equation in call.params["jaxpr"].eqns]
    assert "exp" not in names
    assert names.count("div") == 3


@pytest.mark.slow
def test_an_estimate_is_traced_once_for_its_values_and_its_slopes(monkeypatch):
    """And the slopes are those of differences."""
    from diffperf.estimate import phases

    traces = []
    step = phases.PHASES["training"]
    monkeypatch.setitem(phases.PHASES, "training", lambda *inputs: [traces.append(inputs), step(*inputs)][1])
    model, system = dp.load_model("llama-2-7b"), dp.load_system("dgx-a100", n_devices=8)
    strategy = dp.load_strategy({"tp": 8, "global_batch": 8})

    def time(bandwidth):
        return dp.training_step(model, dp.override(system, {"hbm.bandwidth": bandwidth}), strategy).time

    at, change = 1.37e12, 1e6
    slope = jax.jit(jax.grad(time))(at)
    ends = jax.jit(jax.vmap(time))(jnp.array([at - change, at + change]))
    assert float(slope) == pytest.approx(float(ends[1] - ends[0]) / (2 * change), rel=1e-4)
    assert len(traces) == 1

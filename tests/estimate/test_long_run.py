"""Trainings of weeks: Llama 3's published interruptions, a simulation of failures, derivatives, limits."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import diffperf as dp
from diffperf.estimate.long_run import long_run
from diffperf.quantity import real, replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration

_DAY = 86400.0


@pytest.fixture(scope="module")
def llama_405b() -> Configuration:
    """Llama 3.1 405B on 16,384 H100: 8 tensor-parallel ranks, 16 stages (arXiv 2407.21783, Table 4)."""
    system = dp.load_system("dgx-h100", n_devices=16_384)
    table = {"tp": 8, "pp": 16, "dp": 128, "global_batch": 2048, "sequence_length": 8192, "zero": "1"}
    strategy = dp.load_strategy(table, n_devices=16_384)
    return Configuration(dp.load_model("llama-3.1-405b"), system, strategy, Exact())


@pytest.fixture(scope="module")
def report(llama_405b):
    c = llama_405b
    return dp.training_step(c.model, c.system, c.strategy)


@pytest.mark.slow
def test_interruptions_of_llama_3(llama_405b, report):
    """54 days with 419 unexpected interruptions and more than 90 % effective training time (§3.3.4)."""
    tokens = 54 * _DAY / float(report.time) * 2048 * 8192
    run = long_run(llama_405b, report, real(tokens))
    assert float(run.interruptions) == pytest.approx(419 / float(run.goodput), rel=1e-3)
    assert 0.90 < float(run.goodput) < 0.97
    assert float(run.time) == pytest.approx(54 * _DAY / float(run.goodput), rel=1e-9)


def test_goodput_is_that_of_simulated_failures(llama_405b, report):
    """Failures at random moments: work since the last checkpoint is lost, and a restart may fail as well."""
    numbers = {"reliability.device_mtbf": 16_384 * 1800.0, "host_bandwidth": 1e8}
    system = replace(llama_405b.system, numbers)
    c = dataclasses.replace(llama_405b, system=system)
    run = long_run(c, report, real(1e12))
    interval, pause = float(run.checkpoint_interval), float(run.checkpoint_pause)
    restart = float(system.reliability.restart_time + run.checkpoint_write)
    random, clock, kept, failure = np.random.default_rng(0), 0.0, 0, 0.0
    failure = random.exponential(1800.0)
    while kept < 200_000:
        if clock + interval + pause <= failure:
            clock, kept = clock + interval + pause, kept + 1
            continue
        clock = failure
        while True:  # restarts, until one is not interrupted
            failure = clock + random.exponential(1800.0)
            if clock + restart <= failure:
                clock += restart
                break
            clock = failure
    assert float(run.goodput) == pytest.approx(kept * interval / clock, rel=0.01)


def test_the_interval_loses_least(llama_405b, report):
    """Against other intervals in the formula of the mean time: none is better by more than a thousandth."""
    system = replace(llama_405b.system, {"reliability.storage_bandwidth": 1e12})
    run = long_run(dataclasses.replace(llama_405b, system=system), report, real(1e12))
    between = float(system.reliability.device_mtbf) / 16_384
    restart = float(system.reliability.restart_time + run.checkpoint_write)

    def useful(interval: float) -> float:
        lost = math.expm1((interval + float(run.checkpoint_pause)) / between)
        return interval / (between * math.exp(restart / between) * lost)

    others = float(run.checkpoint_interval) * np.geomspace(0.1, 10, 201)
    assert float(run.goodput) == pytest.approx(useful(float(run.checkpoint_interval)), rel=1e-9)
    assert float(run.goodput) > max(map(useful, others)) * (1 - 1e-3)


def test_storage_bounds_the_interval(llama_405b, report):
    slow = replace(llama_405b.system, {"reliability.storage_bandwidth": 1e4})
    run = long_run(dataclasses.replace(llama_405b, system=slow), report, real(1e12))
    assert float(run.checkpoint_interval) == float(run.checkpoint_write)


def test_without_failures_everything_is_useful(llama_405b, report):
    safe = replace(llama_405b.system, {"reliability.device_mtbf": 1e12, "n_devices": 128})
    c = dataclasses.replace(llama_405b, system=safe)
    run = long_run(c, report, real(1e9))
    assert float(run.goodput) > 0.99
    assert float(run.emissions) > float(run.energy * safe.prices.carbon_intensity)


@pytest.mark.slow
def test_gradients_are_finite_differences(llama_405b, report):
    paths = (
        "reliability.device_mtbf",
        "reliability.restart_time",
        "prices.carbon_intensity",
        "host_bandwidth",
    )

    def outputs(logs):
        values = {path: jax.numpy.exp(log) for path, log in zip(paths, logs, strict=True)}
        c = dataclasses.replace(llama_405b, system=replace(llama_405b.system, values))
        run = long_run(c, report, real(1e12))
        return jax.numpy.log(jax.numpy.stack([run.time, run.cost, run.emissions, run.goodput]))

    c = llama_405b.system
    numbers = (
        c.reliability.device_mtbf,
        c.reliability.restart_time,
        c.prices.carbon_intensity,
        c.host_bandwidth,
    )
    point = jax.numpy.log(jax.numpy.stack([real(number) for number in numbers]))
    slopes = np.asarray(jax.jacfwd(outputs)(point))
    for index in range(len(paths)):
        step = 1e-5 * np.eye(len(paths))[index]
        difference = (np.asarray(outputs(point + step)) - np.asarray(outputs(point - step))) / 2e-5
        np.testing.assert_allclose(slopes[:, index], difference, rtol=1e-6, atol=1e-9)

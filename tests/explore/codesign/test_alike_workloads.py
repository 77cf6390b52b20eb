"""Workloads that are evaluated together, by one mapped estimate: the same results as one after the other."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import outputs

import diffperf as dp
from diffperf.estimate.phases import estimate
from diffperf.explore.codesign.alike_workloads import of_each
from diffperf.quantity import replace
from diffperf.relax import Exact
from diffperf.workload.configuration import Configuration


@pytest.fixture(scope="module")
def workloads():
    """Three generations that differ in lengths, batch and depth, one in another choice, and a prefill."""
    model, system = dp.load_model("llama-3-8b"), dp.load_system("dgx-h100", n_devices=8)
    strategy = dp.load_strategy({"tp": 8, "global_batch": 16})
    one = Configuration(model=model, system=system, strategy=strategy, relax=Exact())
    longer = replace(one, {"strategy.sequence_length": 5000.0, "strategy.global_batch": 3.0})
    deeper = replace(one, {"model.layers.0.count": 48.0})
    quantized = dataclasses.replace(
        one, strategy=dp.load_strategy({"tp": 8, "global_batch": 16, "precision": "fp8"})
    )
    generations = [(each, "generate") for each in (one, longer, quantized, deeper)]
    return [*generations, (one, "prefill")]


@pytest.mark.slow
def test_results_are_those_of_one_after_the_other(workloads):
    together = jax.jit(lambda: of_each(estimate, *map(list, zip(*workloads, strict=True))))()
    alone = jax.jit(lambda: [estimate(*workload) for workload in workloads])()
    for one, report in zip(alone, together, strict=True):
        expected, found = (jax.device_get(outputs(each)) for each in (one, report))
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            np.testing.assert_allclose(found[path], value, rtol=1e-12, err_msg=path)


def test_a_function_is_called_once_for_those_that_are_alike(workloads):
    """And once for equal ones, which need no mapping."""
    called = []

    def counted(configuration, phase):
        called.append(phase)
        return configuration.strategy.global_batch * configuration.strategy.sequence_length

    results = of_each(counted, *map(list, zip(*workloads, strict=True)))
    assert [float(each) for each in results] == [32768, 15000, 32768, 32768, 32768]
    assert called == ["generate", "generate", "prefill"]
    called.clear()
    one = workloads[0][0]
    assert [float(each) for each in of_each(counted, [one, one], ["decode", "decode"])] == [32768, 32768]
    assert called == ["decode"]


@pytest.mark.slow
def test_traced_numbers_are_differentiated_each_for_itself(workloads):
    (one, phase), (longer, _) = workloads[:2]

    def times(bandwidths, together):
        path = "system.accelerator.memory.hbm.bandwidth"
        configurations = [
            replace(each, {path: bandwidth})
            for each, bandwidth in zip((one, longer), bandwidths, strict=True)
        ]
        if together:
            reports = of_each(estimate, configurations, [phase, phase])
        else:
            reports = [estimate(each, phase) for each in configurations]
        return reports[0].time * reports[1].time

    at = [3e12, 2e12]
    slopes = jax.jit(jax.grad(times), static_argnames="together")
    expected, found = (slopes(at, together=together) for together in (False, True))
    np.testing.assert_allclose(found, expected, rtol=1e-10)

import numpy as np
import pytest
from helpers import generate, training

import diffperf as dp
from diffperf.explore.sensitivity import sensitivities
from diffperf.quantity import numeric, replace
from diffperf.report.tables import outputs
from diffperf.workload.configuration import Configuration


def estimated(inputs: Configuration, phase: str, output: str) -> float:
    """One output, by the program that all tests share where the relaxation is exact."""
    relax = () if isinstance(inputs.relax, dp.Exact) else (inputs.relax,)
    report = {"training": training, "generate": generate}[phase]
    return float(outputs(report(inputs.model, inputs.system, inputs.strategy, *relax))[output][1])


def central(inputs: Configuration, phase: str, output: str, path: str, step: float = 1e-5) -> float:
    """d log(output) / d log(input) from two estimates."""
    value = numeric(inputs)[path][1]
    above, below = (
        estimated(replace(inputs, {path: value * factor}), phase, output) for factor in (1 + step, 1 - step)
    )
    return (above - below) / (2 * step) / estimated(inputs, phase, output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "output"), [("training", "time"), ("training", "cost.run"), ("generate", "energy.total")]
)
def test_elasticities_equal_central_differences(gpt, system, strategy, phase, output):
    configuration = Configuration(gpt, system, strategy)
    ranked = sensitivities(configuration, phase, output)
    # Whole numbers sit on staircases and at kinks (a group that just fills a domain), where differences see
    # the next step. So does 1, the tiles that a streaming multiprocessor works on at a time.
    moving = [
        input
        for input in ranked
        if abs(input.elasticity) > 1e-4
        and not input.declared.integer
        and input.path != "system.accelerator.tiles_at_once"
    ][::4]
    assert len(moving) >= 4
    for input in moving:
        expected = central(configuration, phase, output, input.path)
        assert input.elasticity == pytest.approx(expected, rel=1e-5, abs=1e-9), input.path


def assert_ranked_and_complete(ranked, **parts):
    """The largest first, all finite, and every input of these parts of the configuration, but no other."""
    sizes = [abs(input.elasticity) for input in ranked]
    assert sizes == sorted(sizes, reverse=True)
    assert np.isfinite(sizes).all()
    expected = {f"{group}.{path}" for group, part in parts.items() for path in numeric(part)}
    assert {input.path for input in ranked} == expected


@pytest.mark.slow
def test_smooth_elasticities_equal_central_differences(gpt, system, strategy):
    """By the inputs of two groups."""
    configuration = Configuration(gpt, system, strategy, dp.Smooth(20.0))
    ranked = sensitivities(configuration, groups=("strategy", "model"))
    assert_ranked_and_complete(ranked, strategy=strategy, model=gpt)
    by_path = {input.path: input.elasticity for input in ranked}
    # The degrees sit where staircases turn: a step much smaller than a tread's rounding.
    for path in ("strategy.tp", "strategy.sequence_length"):
        expected = central(configuration, "training", "time", path, step=1e-9)
        assert by_path[path] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_ranked_and_complete(gpt, system, strategy):
    ranked = sensitivities(Configuration(gpt, system, strategy))
    assert_ranked_and_complete(ranked, system=system)
    bandwidth = next(input for input in ranked if input.path == "system.accelerator.memory.hbm.bandwidth")
    assert bandwidth.value == float(system.accelerator.device_memory.bandwidth)
    assert bandwidth.declared.unit == "byte/s"


@pytest.mark.slow
def test_cost_is_proportional_to_what_is_bought(gpt, system, strategy):
    ranked = sensitivities(Configuration(gpt, system, strategy), output="cost.capital")
    elasticities = {input.path: input.elasticity for input in ranked}
    assert elasticities["system.n_devices"] == pytest.approx(1, rel=1e-12)
    prices = ["prices.accelerator_markup", "prices.host", "prices.rack"]
    parts = ("adapter_price", "port_price", "link_price", "cable_price")
    prices += ["network.nvlink.price", *(f"network.infiniband.{part}" for part in parts)]
    assert sum(elasticities[f"system.{path}"] for path in prices) == pytest.approx(1, rel=1e-12)


@pytest.mark.slow
def test_a_changed_number_does_not_compile_again(gpt, system, strategy):
    from diffperf.explore.sensitivity import _elasticities

    sensitivities(Configuration(gpt, system, strategy))

    def programs() -> int:
        """Those that are stored, and those that JAX holds where nothing is stored."""
        return len(_elasticities.programs) + _elasticities.jitted._cache_size()

    before = programs()
    faster = dp.override(system, {"accelerator.memory.hbm.bandwidth": "4 TB/s"})
    sensitivities(Configuration(gpt, faster, replace(strategy, {"recompute": np.array([0.0, 0.0, 1.0])})))
    assert programs() == before > 0


def test_unknown_and_zero_outputs_are_refused(gpt, system, strategy):
    configuration = Configuration(gpt, system, strategy)
    with pytest.raises(dp.ConfigError, match='did you mean "time"'):
        sensitivities(configuration, output="tme")
    with pytest.raises(dp.ConfigError, match="not zero"):
        sensitivities(configuration, output="memory.kv_cache")

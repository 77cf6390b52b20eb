"""Inputs replaced by path, strategies from tables, and systems scaled out are checked like files."""

import pytest
from config_tables import MIXED, write
from helpers import check_error

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.load import load
from diffperf.workload.model import Model


def test_override_reaches_into_optional_parts(tmp_path):
    model = load(Model, write(tmp_path, MIXED))
    changed = dp.override(model, {"layers.1.mixture.experts": "16", "layers.1.latent.kv_rank": 256})
    assert float(changed.layers[1].mixture.experts) == 16
    assert float(changed.layers[1].latent.kv_rank) == 256
    assert changed.layers[0].mixture is None
    assert float(model.layers[1].mixture.experts) == 8


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("layers.0.mixture.experts", ["layers.0.mixture has no parts"]),
        ("layers.0.mixture", ["a part that is not there"]),
        ("layers.1.mixture", ["go on with one of: experts, experts_per_token, shared_ffn"]),
        ("layers", ["such as layers.0.count (members: 0, 1)"]),
        ("layers.1.mixture.expert", ['did you mean "experts"?']),
        ("layers.1.experts", ['did you mean "layers.1.mixture.experts"?']),
    ],
)
def test_override_refuses_parts_that_are_not_there(tmp_path, path, words):
    model = load(Model, write(tmp_path, MIXED))
    with pytest.raises(ConfigError) as caught:
        dp.override(model, {path: "8"})
    check_error(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_override_changes_inputs(system):
    changed = dp.override(
        system, {"accelerator.memory.hbm.bandwidth": "4 TB/s", "accelerator.compute_units": "132"}
    )
    assert float(changed.accelerator.device_memory.bandwidth) == 4e12
    assert float(changed.accelerator.compute_units) == 132
    assert dp.override(system, {}) is system


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("accelerator.memory.hmb.bandwidth", "4 TB/s", ['did you mean "hbm"?']),
        ("acelerator.vector", "4 TFLOP/s", ['did you mean "accelerator.vector"?']),
        ("accelerator.vector.peak", "4 TFLOP/s", ["accelerator.vector has no parts"]),
        ("accelerator.memory.hbm", "4 TB/s", ["capacity"]),
        ("accelerator.memory", "4 TB/s", ["hbm"]),
        ("accelerator.name", "mine", ["name"]),
        ("", "1", ["known: "]),
        ("accelerator.memory.hbm.bandwidth", "4", ["bare number"]),
        ("accelerator.memory.hbm.bandwidth", "4 TB", ["wrong dimension"]),
        ("accelerator.memory.hbm.bandwidth", "fast", ["fast"]),
        ("accelerator.memory.hbm.bandwidth", "", ["TB/s"]),
        ("accelerator.package.carrier", "organc", ['did you mean "organic"?']),
        ("n_devices", "-8", ["-8"]),
        ("n_devices", "9" * 5000, ["Infinity"]),
        ("n_devices", "eight", ["eight"]),
    ],
)
def test_override_refuses(system, path, value, words):
    with pytest.raises(ConfigError) as caught:
        dp.override(system, {path: value})
    check_error(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("first", ["n_devices", "accelerator.compute_units"])
def test_override_refuses_values_that_do_not_fit_others(system, first):
    """Every module on the way to a changed value is checked, whichever others change with it."""
    with pytest.raises(ConfigError, match="at most the boost clock"):
        dp.override(system, {first: "16", "accelerator.base_clock": "9 GHz"})


@pytest.mark.parametrize("n_devices", [0, -8, float("nan"), 1e9])
def test_scaling_out_is_checked(n_devices):
    with pytest.raises(ConfigError, match="n_devices") as caught:
        dp.load_system("dgx-a100", n_devices=n_devices)
    check_error(caught.value)


def test_strategy_fills_the_devices():
    assert float(dp.load_strategy({"tp": 8, "pp": 4}, n_devices=64).dp) == 2
    assert float(dp.load_strategy({"tp": 8, "cp": 2}, n_devices=64).dp) == 4
    assert float(dp.load_strategy({"tp": 8, "pp": 4, "dp": 3}, n_devices=64).dp) == 3
    assert float(dp.load_strategy({"tp": 8}).dp) == 1


def test_choices_may_be_weights():
    strategy = dp.load_strategy({"recompute": {"none": 0.25, "full": 0.75}, "sequence_parallel": False})
    assert strategy.recompute.by_name() == {"none": 0.25, "selective": 0, "full": 0.75}
    assert strategy.sequence_parallel.by_name() == {"off": 1, "on": 0}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"tp": 0}, "tp"),
        ({"tp": "eight"}, "tp"),
        ({"tpp": 8}, "tpp"),
        ({"recompute": "selectiv"}, "recompute"),
        ({"zero": 4}, "zero"),
        ({"precision": "bf17"}, "precision"),
        ({"sequence_parallel": "maybe"}, "sequence_parallel"),
        ({"optimizer_bytes": 12}, "optimizer_bytes"),
    ],
)
def test_a_wrong_strategy(table, key):
    with pytest.raises(ConfigError) as caught:
        dp.load_strategy(table)
    check_error(caught.value)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("path", "value", "remedy"),
    [
        ("prices.lifetime", "5", 'write "3 years"'),
        ("prices.interest", "6 %", 'write "8 %/year"'),
        ("accelerator.power_window", "1 W", 'write "32 ms"'),
    ],
)
def test_the_value_that_an_error_suggests_is_allowed(path, value, remedy):
    with pytest.raises(ConfigError, match=remedy) as problem:
        dp.override(dp.load_system("dgx-h100"), {path: value})
    assert "5 us" not in str(problem.value)

"""Stacks that nobody has measured take the numbers of measured stacks with the same features."""

import math
import tomllib

import pytest
from helpers import STUDIES, study_module

import diffperf as dp
from diffperf import load_stack
from diffperf.errors import ConfigError
from diffperf.load import config_root
from diffperf.load.extending import Origin
from diffperf.load.features import FEATURES, Features, measured_stacks
from diffperf.load.features import typical_numbers as typical_numbers_of

EAGER_FSDP = {"kernels": "eager", "host": "launches", "sharding": "fsdp"}
BARE = {
    "kernel_overhead": "3 us",
    "collective_overhead": "10 us",
    "collectives": "nccl",
    "memory_reserve": "2 GB",
}


def typical_numbers(table: dict, without: str = "") -> dict[str, float]:
    """Typical numbers for the table `features` of a file."""
    return typical_numbers_of(Features.of(table, "features.", Origin("mine.toml", None)), without)


def shipped(stack: str, key: str):
    """A number, or a quantity as text, as a shipped file gives it."""
    return tomllib.loads((config_root() / "stacks" / f"{stack}.toml").read_text(encoding="utf-8"))[key]


def test_versions_of_one_software_count_once_and_software_counts_alike():
    """Two softwares have eager kernels: the geometric mean of nanotron and of LLM Foundry's two stacks."""
    foundry = [shipped(f"llm-foundry-fsdp{on}", "elementwise_traffic") for on in ("", "-hopper")]
    expected = math.sqrt(math.sqrt(math.prod(foundry)) * shipped("nanotron", "elementwise_traffic"))
    stack = load_stack(BARE | {"features": EAGER_FSDP})
    assert float(stack.elementwise_traffic) == pytest.approx(expected, rel=1e-6)


def test_a_number_that_no_feature_decides_about_is_the_median_of_all_software():
    """Of seven fitted softwares, three reach less than Megatron-Core, three more."""
    assert (
        len({each.features.software for each in measured_stacks() if "matrix_efficiency" in each.numbers})
        == 7
    )
    assert typical_numbers(EAGER_FSDP)["matrix_efficiency"] == shipped("megatron-core", "matrix_efficiency")


def test_a_feature_chooses_the_stacks():
    typical = typical_numbers({**EAGER_FSDP, "sharding": "whole_layers"})
    assert typical["collective_units"] == pytest.approx(shipped("megatron-core", "collective_units"))
    assert typical["collective_units"] < typical_numbers(EAGER_FSDP)["collective_units"] / 4


def test_what_no_measured_stack_with_the_feature_has_keeps_its_default():
    """Nobody has measured a host that launches graphs, nor a stack whose sharding is not named."""
    assert "host_launch" not in typical_numbers({**EAGER_FSDP, "host": "graphs"})
    stack = load_stack(BARE | {"features": {"kernels": "eager"}})
    assert float(stack.host_launch) == pytest.approx(1e-9)
    assert float(stack.collective_units) == pytest.approx(1e-3)
    assert float(stack.elementwise_traffic) > 2


def test_own_numbers_go_before_typical_ones_also_where_a_config_extends_another(tmp_path):
    (tmp_path / "base.toml").write_text(
        'extends = "pytorch-fsdp"\nhost_launch = "0.3 ms"\n', encoding="utf-8"
    )
    (tmp_path / "mine.toml").write_text(
        'extends = "base.toml"\n[features]\nsharding = "whole_layers"\n', encoding="utf-8"
    )
    stack = load_stack(tmp_path / "mine.toml")
    assert float(stack.host_launch) == pytest.approx(0.3e-3)
    assert float(stack.collective_units) == pytest.approx(shipped("megatron-core", "collective_units"))
    assert not stack.is_measured


def test_measured_stacks_take_launch_times_alone_and_only_where_they_give_none():
    """Runs with long layers do not show the time of their host: Megatron-LM and Megatron-Core take that of
    measured hosts, and keep their other numbers. nanotron was fitted with a launch time, Megatron-Bridge
    launches graphs, MaxText a program.
    """
    typical = typical_numbers({"host": "launches"})
    for name in ("megatron-lm", "megatron-core", "megatron-bridge-26.04", "nemo", "llm-foundry-fsdp"):
        stack = load_stack(name)
        for key in ("host_launch", "head_launch"):
            assert float(getattr(stack, key)) == pytest.approx(typical[key], rel=1e-6)
    assert float(load_stack("megatron-core").elementwise_traffic) == 1.0
    assert float(load_stack("nanotron").head_launch) == pytest.approx(1e-9)
    assert f"{1e3 * float(load_stack('nanotron').host_launch):.3g} ms" == shipped("nanotron", "host_launch")
    assert float(load_stack("megatron-bridge").host_launch) == pytest.approx(1e-4)
    assert float(load_stack("maxtext").host_launch) == pytest.approx(1e-9)


def test_small_layers_wait_for_their_host():
    """A layer of 1,024 channels takes an H100 a fifth of a millisecond for 1,024 tokens, less than its host
    takes to launch it: 24 layers pass forward and backward for each of four micro-batches in the time of 14
    launches each, of 16 with tensor parallelism. A pass takes the longer of both times, nearly.
    """
    model, system = dp.load_model("gpt2-medium"), dp.load_system("dgx-h100", n_devices=1)
    strategy = dp.load_strategy({"sequence_length": 1024, "global_batch": 4, "micro_batch": 1})
    report, stack = dp.training_step(model, system, strategy), system.stack
    launches = 4 * (2 * 24 * float(stack.host_launch) * 14 / 16 + float(stack.head_launch))
    assert float(report.time) == pytest.approx(launches + float(report.breakdown.optimizer), rel=1e-3)


def test_a_software_left_out_gives_nothing():
    """Without Megatron-DeepSpeed only nanotron has timed its host, which launches 31 kernels there for 16."""
    left_out = typical_numbers(EAGER_FSDP, without="Megatron-DeepSpeed")
    expected = float(load_stack("nanotron").host_launch) * 16 / 31
    assert left_out["host_launch"] == pytest.approx(expected, rel=1e-6)
    assert "head_launch" not in left_out


def test_hosts_take_as_long_for_a_kernel_whatever_the_software():
    """Their sources give Megatron-DeepSpeed 16 kernels a pass and nanotron 31, their runs 72 and 66 µs for
    each, measured on hosts of their own.
    """
    each = [
        float(load_stack(name).host_launch) / kernels
        for name, kernels in (("megatron-deepspeed", 16), ("nanotron", 31))
    ]
    assert each[0] == pytest.approx(each[1], rel=0.1)
    (twice, once) = (
        typical_numbers({**EAGER_FSDP, "launches": launches})["host_launch"] for launches in (32, 16)
    )
    assert twice == pytest.approx(2 * once, rel=1e-12)
    assert once == pytest.approx(16 * math.sqrt(each[0] * each[1]), rel=1e-6)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"launches": 0}, "features.launches: found 0; expected a number of kernels above 0"),
        ({"fitted": 5}, "features.fitted: found 5; expected an array of names of numbers of the stack"),
        ({"fitted": ["speed"]}, 'features.fitted: found ["speed"]; expected an array of names'),
        ({"software": 7}, "features.software: found 7; expected a text; quote it"),
        ({"kernel": "eager"}, 'features.kernel: found unknown feature "kernel"'),
        ({"kernels": "fuse"}, 'features.kernels: found "fuse"; expected one of eager, fused, compiled'),
        ("eager", 'features: found "eager"; expected a table of features'),
    ],
)
def test_wrong_features_get_one_clear_line(features, message):
    with pytest.raises(ConfigError) as problem:
        load_stack(BARE | {"features": features})
    assert message in str(problem.value)


def test_every_measured_stack_says_how_it_works():
    by_software = {}
    for stack in measured_stacks():
        by_software.setdefault(stack.features.software, {}).update(stack.features.how)
    assert len(by_software) == 8
    assert all(set(features) == set(FEATURES) for features in by_software.values())


def test_the_fits_of_the_study_are_the_numbers_that_files_call_fitted(monkeypatch):
    """What studies/stacks fits to a stack's runs is listed in the stack's file, so that others may use it."""
    monkeypatch.syspath_prepend(str(STUDIES / "stacks"))
    run = study_module("stacks", "run")
    fitted = {stack.name: set(stack.numbers) for stack in measured_stacks()}
    extending = {"vtrain": "megatron-deepspeed", f"{run.BRIDGE}-blackwell": run.BRIDGE}
    for fit in run.FITS:
        ours = fitted.get(fit.stack, set()) | fitted.get(extending.get(fit.stack, ""), set())
        assert {name for name in fit.parameters if "." not in name} <= ours, fit.stack

"""Contributions add up, and are the means over all orders."""

import dataclasses
import itertools

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.attribution import SYSTEM_PARTS, attributed, changes_between, shapley
from diffperf.explore.points import outputs_at
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.quantity import replace
from diffperf.workload.configuration import Configuration


def test_shapley_values_are_means_over_all_orders():
    rng = np.random.default_rng(0)
    worth = {frozenset(s): rng.normal() for n in range(5) for s in itertools.combinations(range(4), n)}
    expected = np.zeros(4)
    for order in itertools.permutations(range(4)):
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            expected[player] += (worth[before | {player}] - worth[before]) / 24
    np.testing.assert_allclose(shapley(worth.__getitem__, 4), expected, rtol=1e-12)


def test_every_field_of_a_system_belongs_to_one_part():
    of_accelerator = [name for part, _ in SYSTEM_PARTS.values() for name in part]
    of_system = [name for _, part in SYSTEM_PARTS.values() for name in part]
    assert sorted([*of_accelerator, "name", "extends"]) == sorted(
        field.name for field in dataclasses.fields(Accelerator)
    )
    others = ["name", "accelerator", "calibration"]
    assert sorted([*of_system, *others]) == sorted(field.name for field in dataclasses.fields(System))


@pytest.mark.slow
def test_the_way_from_one_system_to_another():
    strategy = dp.load_strategy({"tp": 8, "global_batch": 16}, n_devices=8)
    model = dp.load_model("llama-2-7b")
    before, after = (
        Configuration(model, dp.load_system(name, n_devices=8), strategy) for name in ("dgx-a100", "dgx-h100")
    )
    changes = changes_between(before, after)
    assert {"memory", "compute", "network", "power", "price", "host and size"} <= set(changes)
    assert not {"strategy", "model"} & set(changes)
    found = attributed(before, changes, "decode", "time")
    ends = [float(outputs_at(c, {}, "decode")["time"][0]) for c in (before, after)]
    assert [found.before, found.after] == pytest.approx(ends, rel=1e-12)
    assert sum(found.contributions.values()) == pytest.approx(found.after - found.before, rel=1e-9)
    assert found.contributions["price"] == 0
    assert found.contributions["memory"] < 0


@pytest.mark.slow
def test_two_changes_by_hand():
    strategy = dp.load_strategy({"tp": 8, "global_batch": 16}, n_devices=8)
    c = Configuration(dp.load_model("llama-2-7b"), dp.load_system("dgx-a100", n_devices=8), strategy)
    hbm, nvlink = "system.accelerator.memory.hbm.bandwidth", "system.network.nvlink.bandwidth"

    def time(values: dict) -> float:
        changes = {path: np.array([value]) for path, value in values.items()}
        return float(outputs_at(c, changes, "decode")["time"][0])

    def setting(path: str, value: float):
        return lambda c: replace(c, {path: value})

    found = attributed(c, {"hbm": setting(hbm, 4e12), "nvlink": setting(nvlink, 1e11)}, "decode", "time")
    none, one, other, both = (
        time(values) for values in ({}, {hbm: 4e12}, {nvlink: 1e11}, {hbm: 4e12, nvlink: 1e11})
    )
    assert found.contributions["hbm"] == pytest.approx(((one - none) + (both - other)) / 2, rel=1e-9)
    assert found.contributions["nvlink"] == pytest.approx(((other - none) + (both - one)) / 2, rel=1e-9)

"""The study of Calculon's strategies: its enumeration by brute force, and the constraints of its sweep."""

import itertools
import sys

import jax
import jax.numpy as jnp
import pytest
from helpers import study_module

from diffperf.explore.sweep.space_file import load_space


@pytest.fixture(scope="module")
def strategies():
    return study_module("calculon_space", "strategies")


@pytest.fixture(scope="module")
def strategy_space(strategies):
    sys.modules["strategies"] = strategies  # as a script finds the file beside it
    yield study_module("calculon_space", "strategy_space")
    del sys.modules["strategies"]


@pytest.fixture(scope="module")
def small(strategies):
    """Searches as small as to be listed number by number."""
    numbers = [(1, 6), (8, 20), (12, 30), (24, 10)]
    return [
        strategies.Search(devices=devices, largest_batch=batch, blocks=12, heads=6, hidden=24, sequence=8)
        for devices, batch in numbers
    ]


def layouts_by_trial(search):
    """Every layout of which all numbers up to the devices, the blocks and the batch are tried."""
    degrees = range(1, search.devices + 1)
    for tp, pp, dp in itertools.product(degrees, repeat=3):
        if tp * pp * dp != search.devices or search.heads % tp or search.hidden % tp or search.blocks % pp:
            continue
        batch = dp
        while batch + dp <= search.largest_batch:
            batch += dp
        for chunks, micro_batch in itertools.product(range(1, search.blocks + 1), range(1, batch + 1)):
            splits = search.blocks % (pp * chunks) == 0 and (pp > 1 or chunks == 1)
            if splits and batch % (dp * micro_batch) == 0 and micro_batch * search.sequence % tp == 0:
                yield tp, pp, dp, batch, chunks, micro_batch


def executions_of(layout):
    """Calculon's executions of a layout one by one, each a tuple of its options."""
    tp, pp, dp = layout.tp > 1, layout.pp > 1, layout.dp > 1
    either = (False, True)
    for recompute in ("full", "attn_only", "none"):
        for communication in ("ar", "p2p_rs_ag", "rs_ag"):
            yield from itertools.product(
                [recompute],
                [communication],
                either if communication == "rs_ag" and recompute != "full" else (False,),  # seq_par_ag_redo
                either if dp else (False,),  # optimizer_sharding
                either if dp else (False,),  # data_par_overlap
                ("none", "ring", "pipe") if tp else ("none",),
                either,  # weight_offload
                (False,) if recompute == "full" else either,  # activations_offload
                either,  # optimizer_offload
                either,  # fused_activation
                *((0, 1) if several else (0,) for several in (tp, pp, dp)),  # networks
            )


def test_layouts_are_those_found_by_trial(strategies, small):
    for search in small:
        found = strategies.layouts(search)
        assert found
        assert sorted(found) == sorted(layouts_by_trial(search)), search


def test_executions_are_counted_as_listed(strategies, small):
    for search in small:
        chosen = strategies.layouts(search)
        listed = sum(len(set(executions_of(layout))) for layout in chosen)
        assert strategies.calculon_executions(chosen) == listed, search


def test_the_space_of_figure_5(strategies):
    """816 layouts; a batch of 4,096 on as many replicas is beyond the limit of 2,340."""
    chosen = strategies.layouts(strategies.Search())
    assert len(chosen) == len(set(chosen)) == 816
    assert strategies.calculon_executions(chosen) == 10_957_376
    within = [layout for layout in chosen if layout.global_batch <= 2340]
    assert len(within) == 815
    assert strategies.calculon_executions(within) == 10_956_160


def test_constraints_leave_as_many_points_as_are_counted(strategies, strategy_space):
    """For one layout of every combination of groups of one and of several devices."""
    kinds = {
        tuple(degree > 1 for degree in layout[:3]): layout
        for devices in (1, 4, 16, 64)
        for layout in strategies.layouts(strategies.Search(devices=devices, largest_batch=8))
    }
    chosen = list(kinds.values())
    assert len(chosen) == 8
    space = load_space(strategy_space.space_of(chosen, (0,), strategy_space.ORDERS))
    places = jnp.asarray([space.digits(number) for number in range(space.size)])

    @jax.jit
    @jax.vmap
    def allowed(digits):
        point = space.point(digits, space.inputs)
        return jnp.all(jnp.stack([each.holds(point) for each in space.where]))

    left = int(allowed(places).sum())
    assert left == strategies.mapped_points(chosen, (0,), len(strategy_space.ORDERS)) < space.size

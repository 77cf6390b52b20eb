"""Numbers of a template that a design replaces by its own: problems and spaces refuse to set or vary them."""

import equinox as eqx
import jax
import numpy as np
import pytest

from diffperf.errors import ConfigError
from diffperf.explore.codesign.problem_file import load_problem
from diffperf.explore.codesign.replaced_inputs import refuse_replaced_input
from diffperf.explore.sweep.space_file import load_space
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import system_of
from diffperf.quantity import locate, walk

PROBLEM = {
    "model": "llama-3-8b",
    "system": "dgx-h100",
    "n_devices": 1,
    "technology": "n4-hbm3",
    "phase": "decode",
    "minimize": "time",
    "variable": [{"path": "design.compute_units", "from": 8, "to": 200}],
    "constraint": [{"quantity": "cost.manufacturing", "at_most": "3000 USD"}],
}
SPACE = {
    "model": "llama-3-8b",
    "system": "dgx-h100",
    "technology": "n4-hbm3",
    "phase": "decode",
    "axis": [{"path": "design.compute_units", "values": [100, 132]}],
}
REPLACED = {
    "system.accelerator.package.memory_price": ("90 USD/GB", 'write "technology.memory.price"'),
    "system.accelerator.memory.hbm.bandwidth": ("8 TB/s", 'write "technology.memory.stack_bandwidth"'),
    "system.accelerator.memory.hbm.latency": ("300 ns", 'write "technology.memory.latency"'),
    "system.accelerator.memory.l2.capacity": ("60 MB", 'write "design.cache"'),
    "system.accelerator.package.dies.compute.process.wafer_price": (
        "9000 USD",
        'write "technology.process.wafer_price"',
    ),
    "system.accelerator.package.dies.compute.area": ("500 mm2", "name a number of the design"),
    "system.network.nvlink.bandwidth": ("1 TB/s", 'write "design.network_bandwidth"'),
}


@pytest.mark.parametrize("path", REPLACED)
@pytest.mark.parametrize(("load", "table"), [(load_problem, PROBLEM), (load_space, SPACE)])
def test_setting_what_the_design_replaces_is_one_clear_line(load, table, path):
    value, remedy = REPLACED[path]
    with pytest.raises(ConfigError) as problem:
        load(table | {"set": {path: value}})
    assert problem.value.key == f"set.{path}"
    assert remedy in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(("load", "table"), [(load_problem, PROBLEM), (load_space, SPACE)])
def test_what_a_design_takes_from_its_template_may_be_set(load, table):
    settings = {
        "system.accelerator.package.carrier": "organic",
        "system.accelerator.memory.hbm.efficiency": 0.8,
        "system.accelerator.memory.l2.bandwidth": "6 TB/s",
        "system.network.infiniband.bandwidth": "80 GB/s",
        "system.prices.electricity": "0.2 USD/kWh",
        "technology.memory.price": "90 USD/GB",
    }
    load(table | {"set": settings})


@pytest.mark.parametrize(
    ("key", "low", "high"), [("variable", "5 USD/GB", "20 USD/GB"), ("uncertain", 0.5, 2.0)]
)
def test_varying_what_the_design_replaces_is_refused(key, low, high):
    varied = {"path": "package.memory_price", "from": low, "to": high}
    with pytest.raises(ConfigError, match=r'write "technology\.memory\.price"') as problem:
        load_problem(PROBLEM | {key: [varied]})
    assert problem.value.key == f"{key}[0].path"


@pytest.mark.slow  # hundreds of designs, one by one
def test_exactly_the_inputs_that_change_nothing_are_refused():
    """Twice as much of every number of memory levels, package and network either changes the design or is
    refused.
    """
    candidate = load_problem(PROBLEM).baseline

    @jax.jit
    def made(candidate):
        system = system_of(candidate.design, candidate.technology, candidate.system)
        return system, chip(candidate.design, candidate.technology, candidate.system.accelerator)

    refused, without_effect = set(), set()
    with jax.enable_x64(True):
        before = made(candidate)
        for path, _, leaf in walk(candidate.system, "system."):
            if not path.startswith(("system.accelerator.memory", "system.accelerator.pack", "system.net")):
                continue
            more = jax.tree.map(lambda number: 2 * number + 1, leaf)
            changed = eqx.tree_at(lambda tree, path=path: locate(tree, path)[0], candidate, more)
            if jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, 1e-9, 0.0), before, made(changed))):
                without_effect.add(path)
            try:
                refuse_replaced_input(candidate, path, "problem.toml", path)
            except ConfigError:
                refused.add(path)
    assert len(refused) > 20
    assert refused == without_effect

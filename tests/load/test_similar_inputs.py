"""An input that has moved or became several is found by the words of its name, wherever it is now."""

import pytest
from config_tables import MIXED, write
from helpers import check_error

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.hardware.system import System
from diffperf.load import load
from diffperf.load.similar_inputs import input_elsewhere, key_elsewhere
from diffperf.workload.model import Model

HOST = (
    "did you mean an input of system.host: processors_idle, processors_busy, memory, adapters, switches, "
    "board, fans, supply_efficiency?"
)


@pytest.fixture(scope="module")
def system() -> System:
    return dp.load_system("dgx-h100")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("host_power", HOST),  # became several
        ("processors_idle", 'did you mean "system.host.processors_idle"?'),  # moved
        ("hbm_capacity", 'did you mean "system.accelerator.memory.hbm.capacity"?'),  # a part of its path
        ("electricity_price", 'did you mean "system.prices.electricity"?'),  # a word of what it is
        (
            "memory_bandwidth",  # not the efficiencies, which are shares of a bandwidth
            "did you mean one of system.accelerator.memory.smem.bandwidth, "
            "system.accelerator.memory.l2.bandwidth, system.accelerator.memory.hbm.bandwidth, "
            "system.host_memory_bandwidth?",
        ),
        ("power", ""),  # too many, all over the system
        ("host_colour", ""),
        ("", ""),
    ],
)
def test_inputs_by_the_words_of_a_name(system, name, hint):
    assert input_elsewhere(name, system, "system.") == hint


def test_keys_of_files_need_no_values():
    """The keys of a system's file and of all that it names: there need not be a system yet."""
    assert key_elsewhere("host_power", System) == HOST
    assert key_elsewhere("host_power", Model) == ""


@pytest.mark.parametrize(
    "path", ["prices.host_power", "system.prices.host_power", "host_power", "prices.host_watts"]
)
def test_a_path_of_an_older_release_leads_to_its_place(system, path):
    """A name that is spelled like `prices.host` counts only where no input is described by the words."""
    with pytest.raises(ConfigError) as caught:
        dp.estimate("gpt3-22b", "dgx-h100", devices=8, tp=8, set={path: "400 W"})
    check_error(caught.value)
    expected = 'did you mean "system.prices.host"?' if path.endswith("watts") else HOST
    assert caught.value.remedy == expected


def test_a_file_of_an_older_release_leads_to_its_place(tmp_path):
    path = write(tmp_path, {"extends": "dgx-h100", "prices": {"host_power": "400 W"}})
    with pytest.raises(ConfigError) as caught:
        load(System, path)
    check_error(caught.value)
    assert (caught.value.key, caught.value.remedy) == ("prices.host_power", HOST)


def test_what_a_part_lacks_is_looked_for_in_that_part(tmp_path):
    """Experts of a layer are no switch of a stack."""
    model = load(Model, write(tmp_path, MIXED))
    with pytest.raises(ConfigError) as caught:
        dp.override(model, {"layers.1.experts": "8"})
    assert caught.value.remedy == 'did you mean "layers.1.mixture.experts"?'
    with pytest.raises(ConfigError) as caught:
        dp.estimate("gpt3-22b", "dgx-h100", devices=8, tp=8, set={"model.layers.0.experts": "8"})
    assert caught.value.remedy.startswith("known: count, heads")

"""`extends`: a config takes from another one what it leaves out, and says all that is missing at once."""

import dataclasses

import pytest
from config_tables import ACCELERATOR, toml

import diffperf as dp
from diffperf.cost.ownership import accelerator_price
from diffperf.cost.package_cost import package_cost
from diffperf.errors import ConfigError, MissingKeys
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import load, load_calibrated
from diffperf.quantity import walk
from diffperf.relax import Exact

BASE = "h100-sxm5-80gb"


def write(folder, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def values(module) -> dict[str, list]:
    return {path: value.tolist() if hasattr(value, "tolist") else value for path, _, value in walk(module)}


def test_only_the_changed_keys_differ(tmp_path):
    changes = 'memory.hbm.bandwidth = "4 TB/s"\npower_limit = "750 W"'
    mine = load(Accelerator, write(tmp_path, "mine", f'extends = "{BASE}"\n{changes}'))
    base = load(Accelerator, BASE)
    assert str(mine.name) == "mine"
    assert mine.lineage == ("mine", BASE)
    own, its = values(mine), values(base)
    changed = {path: own[path] for path in own if str(own[path]) != str(its[path])}
    assert changed == {"memory.hbm.bandwidth": 4e12, "power_limit": 750}


def test_what_follows_from_a_changed_key_follows(tmp_path):
    """Formats without a rate of their own have that of bf16."""
    mine = load(Accelerator, write(tmp_path, "mine", f'extends = "{BASE}"\nmatrix.bf16.rate = "500 TFLOP/s"'))
    assert float(mine.matrix.bf16.rate) == 500e12
    assert float(mine.matrix.int4.rate) == float(load(Accelerator, BASE).matrix.int8.rate)
    assert float(mine.matrix.fp16.rate) == 989.4e12


def test_chains_of_files_and_members_of_arrays(tmp_path):
    write(tmp_path, "first", f'extends = "{BASE}"\nmemory.hbm.bandwidth = "4 TB/s"')
    text = 'extends = "first.toml"\nmemory.hbm.capacity = "96 GiB"\npackage.dies.compute.area = "800 mm^2"'
    second = load(Accelerator, write(tmp_path, "second", text))
    assert float(second.device_memory.bandwidth) == 4e12
    assert float(second.device_memory.capacity) == 96 * 2**30
    assert float(second.package.dies[0].area) == 800
    assert second.lineage == ("second", "first", BASE)


def test_a_system_changes_its_accelerator_and_keeps_its_calibration(tmp_path):
    text = 'extends = "dgx-h100"\naccelerator.memory.hbm.bandwidth = "4 TB/s"\nnetwork.nvlink.size = 16'
    system, calibration = load_calibrated(write(tmp_path, "mine", text))
    shipped, its = load_calibrated("dgx-h100")
    assert calibration is not None
    assert its is not None
    assert calibration.name == its.name
    assert float(system.accelerator.device_memory.bandwidth) == 4e12
    assert float(system.network[0].size) == 16
    assert str(system.accelerator.name) == BASE
    assert float(system.accelerator.matrix.bf16.efficiency) == float(
        shipped.accelerator.matrix.bf16.efficiency
    )


def test_a_system_of_an_own_accelerator_keeps_the_calibration_of_what_it_extends(tmp_path):
    write(tmp_path, "mine", f'extends = "{BASE}"\nmemory.hbm.bandwidth = "4 TB/s"')
    path = write(tmp_path, "system", 'extends = "dgx-h100"\naccelerator = "mine.toml"')
    system, calibration = load_calibrated(path)
    assert str(system.accelerator.name) == "mine"
    assert calibration is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('extends = "h100-sxm5-80g"', 'did you mean "h100-sxm5-80gb"?'),
        ("extends = 5", "the name or the path of a config"),
        (f'extends = "{BASE}"\nmemory.hmb.bandwidth = "1 TB/s"', 'did you mean "hbm"?'),
        (f'extends = "{BASE}"\nmemory.hbm = 5', "a table of changed keys"),
        (f'extends = "{BASE}"\npower_limi = "1 W"', 'did you mean "power_limit"?'),
        (f'extends = "{BASE}"\npower_limit = "1 kg"', "power_limit"),
        ('extends = "mine.toml"', "a circle"),
    ],
)
def test_wrong_extensions_are_one_line(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(Accelerator, write(tmp_path, "mine", text))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.file.endswith("mine.toml")


def test_a_longer_circle_is_found(tmp_path):
    write(tmp_path, "a", 'extends = "b.toml"')
    write(tmp_path, "b", 'extends = "a.toml"')
    with pytest.raises(ConfigError, match=r"a\.toml → b\.toml → a\.toml, a circle"):
        load(Accelerator, str(tmp_path / "a.toml"))


def test_all_missing_keys_are_named_at_once(tmp_path):
    text = 'compute_units = 4\n[[memory]]\nname = "l2"\nbandwidth = "1 TB/s"\n'
    with pytest.raises(ConfigError) as caught:
        load(Accelerator, write(tmp_path, "mine", text))
    for key in ("matrix", "vector", "power_limit", "package", "memory[0].capacity", "memory[0].latency"):
        assert key in str(caught.value)
    assert "memory[0].bandwidth" not in str(caught.value)


@pytest.mark.parametrize(
    ("formats", "needed"),
    [
        ('bf16 = "300 TFLOP/s"', {"matrix.bf16.efficiency", "matrix.fp32", "attention"}),
        ('fp8 = "600 TFLOP/s"', {"matrix.bf16", "matrix.fp32", "attention"}),
        ('bf16 = { rate = "300 TFLOP/s", efficiency = 0.8 }', {"matrix.fp32", "attention"}),
        (
            'bf16 = "300 TFLOP/s"\nfp32 = "9 TFLOP/s"\nfp8 = { split_k = 1 }',
            {"matrix.bf16.efficiency", "matrix.fp8.rate", "attention"},
        ),
    ],
)
def test_keys_that_follow_from_missing_ones_are_not_asked_for(tmp_path, formats, needed):
    """Formats take from bf16, and from the one that their operands are converted to, what they lack."""
    complete = {key: value for key, value in ACCELERATOR.items() if key not in ("matrix", "attention")}
    text = f"{toml(complete)}\n[matrix]\n{formats}\n"
    with pytest.raises(MissingKeys) as caught:
        load(Accelerator, write(tmp_path, "mine", text))
    assert set(caught.value.expected_at) == needed


def test_an_extended_table_needs_no_file():
    mine = dp.load_accelerator({"extends": BASE, "memory": {"hbm": {"bandwidth": "4 TB/s"}}})
    assert float(mine.device_memory.bandwidth) == 4e12
    system = dp.load_system({"extends": "dgx-h100", "n_devices": 16})
    assert float(system.n_devices) == 16
    assert isinstance(system, System)


LARGER = 'memory.hbm.capacity = "160 GiB"'
QUOTE = 'purchase_price = "40000 USD"'


def price(accelerator: Accelerator) -> float:
    system = dataclasses.replace(load(System, "dgx-h100"), accelerator=accelerator)
    return float(accelerator_price(system, package_cost(accelerator, Exact()).total))


def test_a_price_of_an_own_file_is_for_its_own_package(tmp_path):
    """Not for that of the extended accelerator, whose price the larger package would multiply by 1.5."""
    mine = load(Accelerator, write(tmp_path, "mine", f'extends = "{BASE}"\n{LARGER}\n{QUOTE}'))
    assert price(mine) == pytest.approx(40_000, rel=1e-6)
    table = {"extends": BASE, "memory": {"hbm": {"capacity": "160 GiB"}}, "purchase_price": "40000 USD"}
    assert price(load(Accelerator, table)) == pytest.approx(40_000, rel=1e-6)
    system = load(System, {"extends": "dgx-h100", "accelerator": table})
    assert price(system.accelerator) == pytest.approx(40_000, rel=1e-6)


def test_a_price_of_an_own_file_follows_later_changes_of_the_package(tmp_path):
    write(tmp_path, "quoted", f'extends = "{BASE}"\n{QUOTE}')
    larger = load(Accelerator, write(tmp_path, "larger", f'extends = "quoted.toml"\n{LARGER}'))
    assert price(larger) == pytest.approx(40_000 * 4233.3 / 2739.3, rel=1e-3)


def test_a_price_says_which_cost_it_is_for(tmp_path):
    text = f'extends = "{BASE}"\n{LARGER}\n{QUOTE}\npriced_manufacturing = "0 USD"'
    assert float(load(Accelerator, write(tmp_path, "fixed", text)).priced_manufacturing) == 0

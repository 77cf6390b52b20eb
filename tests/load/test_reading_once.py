"""Many configs at once: a file that several of them name is read once, as long as the block lasts."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.hardware.host import Host
from diffperf.hardware.system import System
from diffperf.load import available, load, reading_once


def test_systems_share_what_their_files_share(caplog):
    """Systems of one price list: it is read once, and each has the numbers that it has alone."""
    names, line = ("dgx-h100", "dgx-a100", "hgx-b200"), "reads configs/prices/datacenter.toml"
    with caplog.at_level(logging.DEBUG, "diffperf"):
        alone = [load(System, name) for name in names]
        assert [record.getMessage() for record in caplog.records].count(line) == len(names)
        caplog.clear()
        with reading_once():
            together = [load(System, name) for name in names]
    assert [record.getMessage() for record in caplog.records].count(line) == 1
    assert together[0].prices.pue is together[1].prices.pue
    for one, other in zip(alone, together, strict=True):
        assert eqx.tree_equal(one, other)


def test_all_systems_are_read_from_few_files(caplog):
    """Most of the time of `diffperf list systems` was reading the same files again."""
    with caplog.at_level(logging.DEBUG, "diffperf"), reading_once():
        systems = [load(System, name) for name in available("systems")]
    read = [record.getMessage() for record in caplog.records]
    shared = [line for line in read if "/processes/" in line or "/packages/" in line or "/hosts/" in line]
    assert len(shared) == len(set(shared))
    assert len(systems) > 70


def test_a_file_is_read_again_after_the_block(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "dgx-h100-node"\nfans = 0.1\n')
    with reading_once():
        assert float(load(Host, file).fans) == pytest.approx(0.1)
        file.write_text('extends = "dgx-h100-node"\nfans = 0.2\n')
        assert float(load(Host, file).fans) == pytest.approx(0.1)
    assert float(load(Host, file).fans) == pytest.approx(0.2)


def test_each_precision_has_its_own_numbers():
    with reading_once():
        wide = load(Host, "dgx-h100-node")
        with jax.enable_x64(False):
            narrow = load(Host, "dgx-h100-node")
    assert (wide.fans.dtype, narrow.fans.dtype) == (jnp.float64, jnp.float32)


def test_a_faulty_file_is_an_error_each_time(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "dgx-h100-node"\nfan = 0.1\n')
    with reading_once():
        for _ in range(2):
            with pytest.raises(ConfigError, match='did you mean "fans"'):
                load(Host, file)


def test_a_shared_module_has_separate_gradients():
    """Two systems of one block are told apart by their places, not by the arrays that they share."""
    with reading_once():
        both = tuple(load(System, name) for name in ("dgx-h100", "dgx-a100"))
    slopes = eqx.filter_grad(lambda pair: pair[0].prices.pue + 3 * pair[1].prices.pue)(both)
    assert [float(each.prices.pue) for each in slopes] == [1, 3]
    changed = dp.override(both[0], {"prices.pue": 1.5})
    assert float(changed.prices.pue) == 1.5
    assert float(both[1].prices.pue) == float(both[0].prices.pue) != 1.5


def test_loading_a_system_compiles_nothing():
    """The checks of a package are NumPy's: JAX would compile every operation, in each process anew."""
    jax.clear_caches()
    events = []

    def note(event: str, *_: object, **__: object) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        load(System, "dgx-h100")
        assert [event for event in events if "compile" in event] == []
        assert float(jnp.ones(3).sum()) == 3  # an operation that JAX compiles
        assert [event for event in events if "compile" in event] != []
    finally:
        jax.monitoring.unregister_event_duration_listener(note)

"""Files with memory levels of several kinds, and the errors of those that do not fit together."""

import tomllib

import pytest

import diffperf as dp
from diffperf.errors import ConfigError
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import override
from diffperf.load.builder import FOLDERS, Builder
from diffperf.load.files import find

HBS = {
    "name": "hbs", "kind": "storage", "capacity": "64 GB", "bandwidth": "173 GB/s", "latency": "10 us",
    "energy": "50 pJ/byte",
}  # fmt: skip


def table(**changes):
    """The table of the H100 with storage; `changes` by the name of the level."""
    fields = tomllib.loads(find("h100-sxm5-80gb", FOLDERS[Accelerator]).read_text())
    fields["memory"] = [level | changes.get(level["name"], {}) for level in [*fields["memory"], HBS]]
    return {"name": "test"} | fields


def build(**changes) -> Accelerator:
    return Builder("test.toml").module(Accelerator, table(**changes))


def test_storage_may_lie_outside_device_memory():
    accelerator = build(hbs={"holds": {"mlp_weights": 0.5}, "prefetch": {"tile": "4 KiB", "depth": 64}})
    assert accelerator.memory_kinds == ("cache", "cache", "memory", "storage")
    assert str(accelerator.device_memory.name) == "hbm"
    assert accelerator.inner_caches == (0, 1, 1)
    assert float(accelerator.memory[3].holds.mlp_weights) == 0.5
    assert float(accelerator.memory[3].prefetch.tile) == 4096
    assert float(build().memory[3].holds.mlp_weights) == 0.0


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hbs": {"kind": "memory"}, "hbm": {"kind": "memory"}}, ["memory", "2 levels", "device memory"]),
        ({"hbm": {"kind": "storage"}, "l2": {"kind": "cache"}, "smem": {"kind": "cache"}}, ["0 levels"]),
        ({"hbs": {"kind": "disk"}}, ["memory[3].kind", "disk", "cache, memory, storage"]),
        ({"smem": {"kind": "storage"}}, ["memory[0].kind", "cache"]),
        ({"hbm": {"holds": {"kv_cache": 1}}}, ["memory[2].holds", "it holds the rest"]),
        ({"hbs": {"holds": {"kv_cache": 1.5}}}, ["memory[3].holds.kv_cache", "from 0 to 1"]),
        ({"hbs": {"holds": {"weights": 1}}}, ["memory[3].holds.weights", "unknown key"]),
    ],
)
def test_levels_that_do_not_fit_together(changes, parts):
    with pytest.raises(ConfigError) as error:
        build(**changes)
    assert all(part in str(error.value) for part in parts), error.value
    assert "\n" not in str(error.value)


def test_shares_are_inputs_and_kinds_are_not():
    system = dp.load_system("mobile-soc-lpddr6-173-hbs-173")
    changed = override(system, {"accelerator.memory.hbs.holds.mlp_weights": 0.25})
    assert float(changed.accelerator.memory[3].holds.mlp_weights) == 0.25
    with pytest.raises(ConfigError, match="decides what is compiled"):
        override(system, {"accelerator.memory.hbs.kind": "cache"})
    assert isinstance(changed, System)

"""Power of nodes: by hand, against published and measured nodes, slopes."""

import jax
import pytest

import diffperf as dp
from diffperf.hardware.host import Host
from diffperf.load import available
from diffperf.quantity import real, replace

NUMBERS = {
    "processors_idle": 20.0,
    "processors_busy": 100.0,
    "processor_load": 0.25,
    "memory": 10.0,
    "adapters": 30.0,
    "switches": 20.0,
    "board": 40.0,
    "fans": 0.2,
    "supply_efficiency": 0.9,
}


def host() -> Host:
    return Host(name="by-hand", **{name: real(number) for name, number in NUMBERS.items()})


def test_parts_by_hand():
    """560 W of a device and 140 W of the host, at a quarter of the way to full load, are moved by 140 W of
    fans and fed through supplies that lose a tenth of what they draw.
    """
    node = host().node_power(real(560.0), real(0.25))
    expected = {"accelerators": 560.0, "processors": 40.0, "memory": 10.0, "adapters": 30.0, "switches": 20.0}
    expected |= {"board": 40.0, "fans": 140.0, "conversion": 840 / 9}
    for name, watts in expected.items():
        assert float(getattr(node, name)) == pytest.approx(watts, rel=1e-12), name
    assert float(node.total) == pytest.approx(840 / 0.9, rel=1e-12)


# Maximum power of published nodes in W: user guides of DGX A100, DGX H100 and DGX B200, data sheet
# of GB200 NVL72.
MAXIMA = {"dgx-a100": 6_500, "dgx-h100": 10_200, "hgx-b200": 14_300, "gb200-nvl72": 120_000}


@pytest.mark.parametrize("name", MAXIMA)
def test_nodes_at_their_power_limits_stay_below_the_published_maximum(name):
    """Makers rate nodes for what their supplies and fans may draw at once."""
    system = dp.load_system(name)
    node = system.host.node_power(system.accelerator.power_limit, real(1.0))
    assert 0.8 < float(system.n_devices * node.total) / MAXIMA[name] < 1


@pytest.mark.parametrize("name", available("hosts"))
def test_shipped_hosts(name):
    host = dp.load_system({"extends": "dgx-h100", "host": name}).host
    assert host.processors_idle < host.processors_busy
    idle, busy = (float(host.node_power(real(0.0), real(load)).total) for load in (0.0, 1.0))
    assert 0 < idle < busy < 500


def test_a_watt_of_a_device_costs_its_fans_and_conversion():
    """The slope by the power of a device, and by every number of the host, are those of differences."""
    slope = jax.grad(lambda watts: host().node_power(watts, real(0.25)).total)(real(560.0))
    assert float(slope) == pytest.approx(1.2 / 0.9, rel=1e-12)

    def total(name, number):
        made = replace(host(), {name: number})
        return made.node_power(real(560.0), made.processor_load).total

    for name, number in NUMBERS.items():
        step = 1e-6 * number
        difference = (float(total(name, number + step)) - float(total(name, number - step))) / (2 * step)
        assert float(jax.grad(total, argnums=1)(name, number)) == pytest.approx(difference, rel=1e-5), name


def test_a_system_without_a_host_has_that_of_a_dgx_h100():
    shipped = dp.load_system("dgx-h100")
    table = {
        "accelerator": "h100-sxm5-80gb",
        "stack": "megatron-core",
        "prices": "datacenter",
        "n_devices": 8,
    }
    tier = {"name": "nvlink", "size": 8, "bandwidth": "450 GB/s", "latency": "1 us", "efficiency": 0.9}
    made = dp.load_system(table | {"network": [tier | {"energy": "88 pJ/byte"}]})
    assert float(made.host.fans) == float(shipped.host.fans)
    assert str(made.host.name) == "dgx-h100-node"

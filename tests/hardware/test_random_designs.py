"""Random designs within all documented ranges: values and slopes are finite in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffperf as dp
from diffperf.hardware.chip import chip
from diffperf.hardware.designed_accelerator import design_of, system_of
from diffperf.load import load_technology
from diffperf.quantity import numeric, replace

DESIGNS = 4000  # a million, once: all of them finite


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n7-hbm2e", "n4-hbm3-hbs"])
def test_any_design_is_finite_in_value_and_slope(float32, name):
    """Every number of the design, of the technology and of the package's prices and yields is drawn."""
    technology, template = load_technology(name), dp.load_system("dgx-h100", n_devices=8)
    model, strategy = dp.load_model("llama-2-70b"), dp.load_strategy({"tp": 8, "global_batch": 32}, 8)
    design, package = design_of(template, technology), template.accelerator.package
    parts = {"design": design, "technology": technology, "package": package}
    declared = [(name, path, each[0]) for name in parts for path, each in numeric(parts[name]).items()]

    def logarithms(x):
        values = {name: {} for name in parts}
        for row, (part, path, _) in enumerate(declared):
            values[part][path] = x[row]
        drawn = {name: replace(part, values[name]) for name, part in parts.items()}
        system = eqx.tree_at(lambda tree: tree.accelerator.package, template, drawn["package"])
        made = chip(drawn["design"], drawn["technology"], system.accelerator)
        report = dp.decode(model, system_of(drawn["design"], drawn["technology"], system), strategy)
        chip_outputs = [made.die_area, made.power, made.shoreline, made.heat_flux, made.bumps, made.clock]
        costs = [report.cost.manufacturing, report.cost.capital, report.energy.total, report.time]
        return jnp.sum(jnp.log(jnp.stack([*chip_outputs, *costs])))

    low, high = np.array([quantity.bounds for *_, quantity in declared]).T
    log = np.array([quantity.log and quantity.bounds[0] > 0 for *_, quantity in declared])
    shares = np.random.default_rng(0).random((DESIGNS, len(declared)))
    ratio = np.where(log, high / np.where(log, low, 1.0), 1.0)
    drawn = np.where(log, low * ratio**shares, low + shares * (high - low))
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(logarithms)))(drawn.astype(np.float32))
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(slopes))

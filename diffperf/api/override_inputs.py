"""dp.override: inputs of a model, a system or a strategy replaced by path."""

from collections.abc import Mapping
from typing import Any

from diffperf.api.boundary import asker_of, naming
from diffperf.api.input_values import with_paths_and_units
from diffperf.load import override as override_checked
from diffperf.quantity import AnyModule


@naming("override")
def override(module: AnyModule, values: Mapping[str, Any]) -> AnyModule:
    """The module with other values of some inputs, such as `{"hbm.bandwidth": "4 TB/s"}`.

    Paths are those of the command line's `--set`, or begin inside the module: for a system `hbm.bandwidth`,
    `accelerator.memory.hbm.bandwidth` and `system.accelerator.memory.hbm.bandwidth` mean the same. Values are
    texts with units, names of alternatives, numbers in internal units (SI, byte, FLOP, mm², USD), or values
    that JAX traces, so that the function works under jit, grad and vmap.

    **Raises:** `ConfigError` for a path that does not lead to one input, and for a value outside its bounds.
    """
    asker = asker_of("override")
    return override_checked(module, with_paths_and_units(module, values, asker), asker)


replace = override  # the same function under its other name

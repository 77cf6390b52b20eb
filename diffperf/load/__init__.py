"""Files become modules: accelerators, systems, models and strategies from TOML or Hugging Face JSON.

The keys of a file are the fields of a module, checked against their declarations (`diffperf.quantity`).
Everything wrong with a file is a `ConfigError`: one line with file, key, found, expected and remedy.
"""

from diffperf.load.builder import FOLDERS, reading_once
from diffperf.load.checks import checked
from diffperf.load.files import available, config_root, display, find, is_accelerator_file, read_toml
from diffperf.load.override import declared_at, literal, override
from diffperf.load.strategies import (
    check,
    load_strategy,
    refuse_inference_fields,
    refuse_other_stack,
    refuse_training_fields,
)
from diffperf.load.systems import (
    Source,
    calibrated,
    load,
    load_accelerator,
    load_calibrated,
    load_calibration,
    load_model,
    load_stack,
    load_system,
)
from diffperf.load.technologies import load_node, load_nodes, load_technology

__all__ = [
    "FOLDERS",
    "Source",
    "available",
    "calibrated",
    "check",
    "checked",
    "config_root",
    "declared_at",
    "display",
    "find",
    "is_accelerator_file",
    "literal",
    "load",
    "load_accelerator",
    "load_calibrated",
    "load_calibration",
    "load_model",
    "load_node",
    "load_nodes",
    "load_stack",
    "load_strategy",
    "load_system",
    "load_technology",
    "override",
    "read_toml",
    "reading_once",
    "refuse_inference_fields",
    "refuse_other_stack",
    "refuse_training_fields",
]

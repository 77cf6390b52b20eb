"""The number format that a Hugging Face `config.json` says its weights are published in."""

from typing import Any

from diffperf.load.huggingface_values import part

# Methods whose format is always the same: `quantization_config.quant_method`.
_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "bitnet": "ternary"}
_INTEGERS = {4: "int4", 8: "int8"}
_FLOATS = {4: "fp4", 8: "fp8"}


def quantization(config: dict[str, Any]) -> str:
    """The method and the format of published weights, such as "gptq int4"; empty for those of 16 bits.

    The format is one of a strategy's where that has it, else the bits, such as "gptq 3-bit", or nothing where
    the method says none.
    """
    keys = part(config, "quantization_config")
    method = keys.get("quant_method")
    if not isinstance(method, str) or not method:
        return ""
    name = method.lower()
    stored = _METHODS.get(name) or _format(keys)
    return stored if stored == name else f"{name} {stored}".strip()


def _format(keys: dict[str, Any]) -> str:
    """The format of quantized weights that a method's own keys give; empty where they give none.

    Keys of bitsandbytes, ModelOpt, compressed-tensors (the first group of layers), and of GPTQ, AWQ and
    others with `bits`.
    """
    for bits, key in ((4, "load_in_4bit"), (8, "load_in_8bit")):
        if keys.get(key) is True:
            return _INTEGERS[bits]
    algorithm = str(keys.get("quant_algo", "")).lower()
    for name in ("nvfp4", "mxfp4", "fp8", "int8", "int4"):
        if name in algorithm or str(keys.get("format", "")).startswith(name):
            return name
    groups = [group for group in part(keys, "config_groups").values() if isinstance(group, dict)]
    weights = part(groups[0], "weights") if groups else {}
    bits = weights.get("num_bits", keys.get("bits", keys.get("w_bit")))
    if not isinstance(bits, int) or isinstance(bits, bool):
        return ""
    known = _FLOATS if weights.get("type") == "float" else _INTEGERS
    return known.get(bits, f"{bits}-bit")

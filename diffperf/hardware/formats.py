"""Number formats: the bytes of an element, the formats that kernels multiply and write, and the formats in
which weights are stored.

A strategy chooses formats by weights over `PRECISIONS` (operands) or `STORED` (weights), so every property
here is a weighted mean over formats.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from diffperf.quantity import Scalar, Weights

# Formats of matrix operands, and the bytes of an element of each. Block formats carry their scales: one byte
# for 32 elements in mxfp8 and mxfp4 (OCP Microscaling v1.0), one for 16 in nvfp4 (NVIDIA Blackwell
# architecture brief).
# Ternary weights, of 1.58 bits, are packed in 2 bits (BitBLAS, with which arXiv 2406.02528 serves models:
# Figure 4(d)).
PRECISION_BYTES = {
    "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 1.0 + 1 / 32, "int8": 1.0,
    "fp4": 0.5, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32, "int4": 0.5, "ternary": 0.25,
}  # fmt: skip
PRECISIONS = tuple(PRECISION_BYTES)

# Formats in which weights may be stored: those of operands and those of llama.cpp's GGUF files, which kernels
# convert as they read them. The block formats by their definitions (ggml-common.h of github.com/ggml-org/
# llama.cpp: q8_0 has 34 bytes for 32 weights, q4_0 18, q4_k 144 for 256, q6_k 210); the mixes ("_s", "_m",
# "_l", and "q2_k", "q3_k" as files are called), which store some matrices more finely, as bits of an average
# weight of Llama-3.1-8B (tools/quantize/README.md there).
STORED_BYTES = PRECISION_BYTES | {
    "q8_0": 34 / 32, "q6_k": 210 / 256, "q5_0": 22 / 32, "q5_1": 24 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32,
    "q5_k_m": 5.7036 / 8, "q5_k_s": 5.5704 / 8, "q4_k_m": 4.8944 / 8, "q4_k_s": 4.6672 / 8,
    "q3_k_l": 4.2979 / 8, "q3_k_m": 3.9960 / 8, "q3_k_s": 3.6429 / 8, "q2_k": 3.1593 / 8,
}  # fmt: skip
STORED = tuple(STORED_BYTES)

# Floating-point formats of four bits. Blackwell's matrix units multiply their elements by operands of 8 bits
# as they are (tcgen05.mma, kind mxf8f6f4: PTX ISA 8.7).
FOUR_BIT_FLOATS = ("fp4", "nvfp4", "mxfp4")

# Formats under 16 bits: activations, which kernels write in 16 bits, are converted to these before a product.
_NARROW = {name: float(size < PRECISION_BYTES["fp16"]) for name, size in PRECISION_BYTES.items()}
_OUTPUT_BYTES = {name: max(size, PRECISION_BYTES["fp16"]) for name, size in PRECISION_BYTES.items()}
_SIXTEEN_BITS = {name: float(name in ("bf16", "fp16")) for name in PRECISIONS}
_LEAST_DIFFERENCE = 1e-3  # bytes, between elements of two formats that are not of the same width
_OF_GGUF = frozenset(STORED) - frozenset(PRECISIONS)
_FP8 = {name: float(name in ("fp8", "mxfp8")) for name in PRECISIONS}


def quantized_with_head(weights: Weights) -> Scalar:
    """The weight of formats of llama.cpp's files, which quantize the vocabulary projection and the embedding
    with all other matrices: 0 or 1 for a choice. Other checkpoints leave both in 16 bits.
    """
    return weights.mean({name: float(name in _OF_GGUF) for name in weights.alternatives})


def same_width(first: Scalar, second: Scalar | float) -> Array:
    """Whether elements of `first` and of `second` bytes are of the same width, but for rounding errors."""
    return jnp.abs(first - second) < _LEAST_DIFFERENCE


def width(precision: Weights) -> Scalar:
    """Bytes of one element."""
    return precision.mean(PRECISION_BYTES)


def output_width(precision: Weights) -> Scalar:
    """Bytes of one element of a product of operands of this precision: 2 for all formats under 16 bits."""
    return precision.mean(_OUTPUT_BYTES)


def converted(precision: Weights) -> Scalar:
    """The weight of formats under 16 bits, to which activations are converted: 0 or 1 for a choice."""
    return precision.mean(_NARROW)


def fp8_share(precision: Weights) -> Scalar:
    """The weight of 8-bit floating-point formats: 0 or 1 for a definite choice."""
    return precision.mean(_FP8)


def sixteen_bits_share(precision: Weights) -> Scalar:
    """The weight of bf16 and fp16: 0 or 1 for a choice."""
    return precision.mean(_SIXTEEN_BITS)


def four_bit_floats(stored: Weights) -> Scalar:
    """The weight of floating-point formats of four bits among those in which weights are stored."""
    return jnp.sum(jnp.stack([stored[name] for name in FOUR_BIT_FLOATS]), axis=0)


def sixteen_bits(precision: Weights) -> Weights:
    """The formats of the layers that quantization leaves out: bf16 in place of every narrow format."""
    kept = precision.array * _indicator(*(name for name in PRECISIONS if not _NARROW[name]))
    return Weights(kept + converted(precision)[..., None] * _indicator("bf16"), PRECISIONS)


def in_fp8(precision: Weights, share: Scalar) -> Weights:
    """The formats of products of which a share, 0 or 1 for a choice, has its operands in fp8 instead."""
    kept = precision.array * (1 - share)[..., None]
    return Weights(kept + share[..., None] * _indicator("fp8"), PRECISIONS)


def attention_format(precision: Weights, kv_precision: Weights) -> Weights:
    """The format in which fused attention multiplies.

    Activations of 32 bits are multiplied in their own format. Otherwise the KV cache decides: 16-bit formats
    and fp8 are multiplied as they are stored, and any other format is converted to bf16 by the kernel that
    reads the cache.
    """
    direct = _indicator("bf16", "fp16", "fp8", "mxfp8")
    converted_share = jnp.sum(kv_precision.array * (1 - direct), axis=-1)
    from_cache = kv_precision.array * direct + converted_share[..., None] * _indicator("bf16")
    wide = _indicator("fp32", "tf32")
    wide_share = jnp.sum(precision.array * wide, axis=-1)
    return Weights(precision.array * wide + (1 - wide_share)[..., None] * from_cache, PRECISIONS)


def _indicator(*names: str) -> np.ndarray:
    """1 for these formats, 0 for the others, in integers of 8 bits: times an array of float32, NumPy makes
    float64 of wider integers.
    """
    return np.isin(PRECISIONS, names).astype(np.int8)

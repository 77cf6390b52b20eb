"""Number of points of a sweep that are estimated together: what fits into a core's cache, or what fills a
GPU.
"""

import os

import jax

# Points that a core evaluates together: few enough that their intermediate results stay in its cache.
BLOCK = 512
# A generation has those of a prefill and of decode passes: of more points, a megabyte would not hold them.
_BLOCK_OF_PHASE = {"generate": 256}
# Points that one call of a compiled program estimates, on a CPU and on a GPU. A GPU needs many at once, to
# have work for all its threads and to hide the host's work between two calls.
CHUNK = 128 * BLOCK
_GPU_CHUNK = 2**22
_GPU_BLOCK = 2**20
_GPU_THREADS = 4  # of the host, so that the device need not wait for one of them


def on_cpu() -> bool:
    """Whether programs are compiled for CPUs."""
    return jax.default_backend() == "cpu"


def usual_chunk() -> int:
    """Points of one call of a compiled program, where nobody chooses how many."""
    return CHUNK if on_cpu() else _GPU_CHUNK


def usual_threads() -> int:
    """Parts of a sweep that are estimated at once, where nobody chooses how many: one a core, or what keeps
    a GPU busy."""
    return os.cpu_count() or 1 if on_cpu() else _GPU_THREADS


def block_of(chunk: int, phase: str = "") -> int:
    """Points of a chunk, a multiple of `BLOCK`, that are evaluated together: a divisor of the chunk."""
    if on_cpu():
        return _BLOCK_OF_PHASE.get(phase, BLOCK)
    return _GPU_BLOCK if chunk % _GPU_BLOCK == 0 else chunk

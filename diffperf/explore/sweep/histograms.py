"""Histograms of outputs whose bins are the same for every sweep, so that counts of parts simply add up.

A bin is an eighth of an octave: the numbers whose float32 has one exponent and one value of the first three
bits of its significand, so that the bin of a number is read from its bits. Bins are 9 to 12.5 % wide, as
those of HdrHistogram (G. Tene, hdrhistogram.org), and cover all positive numbers of float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

_DROPPED_BITS = 20  # of the 23 bits of a significand
BINS = 1 << 11  # 8 bits of exponent and 3 of the significand; the sign of a positive number is 0


def bins_of(values: Float[Array, " points"]) -> Int[Array, " points"]:
    """The bin of every value; zero and negative numbers are in bin 0, with the smallest positive ones."""
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)
    return jnp.maximum(bits, 0) >> _DROPPED_BITS


def count_values(values: Float[np.ndarray, " points"]) -> Int[np.ndarray, " bins"]:
    """Number of values in every bin, as `bins_of` counts on the device."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    return np.bincount(np.maximum(bits, 0) >> _DROPPED_BITS, minlength=BINS).astype(np.int64)


def edges() -> Float[np.ndarray, " edges"]:
    """The smallest number of every bin; of the last bins, infinity."""
    numbers = (np.arange(BINS, dtype=np.int32) << _DROPPED_BITS).view(np.float32)
    return np.where(np.isnan(numbers), np.float32(np.inf), numbers).astype(float)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Number of values of an output in every bin.

    `least`, `most`: the smallest and the largest value, where these are known.
    """

    counts: Int[np.ndarray, " bins"]
    least: float = -np.inf
    most: float = np.inf

    @property
    def total(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float:
        """The number that this share of the values is at most, to within half a bin (6 %)."""
        position = int(np.searchsorted(np.cumsum(self.counts), share * self.total))
        low, high = edges()[position : position + 2]
        return min(max(float((low + high) / 2), self.least), self.most)

    def rows(self) -> list[dict[str, float]]:
        """The bins that have values: their ends, in the unit of the output, and their counts."""
        low = edges()
        return [
            {"from": float(low[i]), "to": float(low[i + 1]), "points": int(self.counts[i])}
            for i in np.flatnonzero(self.counts)
        ]

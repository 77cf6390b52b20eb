"""Shares of an output's variance over declared ranges that inputs explain: Sobol indices.

The first-order index of an input is the share of the variance that is left out if only that input is known;
the total index is the share that stays if all others are known; an interaction of two is what they do
together beyond what each does alone (Sobol, Mathematics and Computers in Simulation 2001).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.stats import qmc

from diffperf.explore.points import outputs_at
from diffperf.explore.ranges import Range, with_tied
from diffperf.workload.configuration import Configuration

_RESAMPLES = 200  # of the bootstrap
CONFIDENCE = 0.95  # of the intervals


@dataclasses.dataclass(frozen=True)
class Design:
    """Points in the unit cube as Saltelli's estimators want them (Computer Physics Communications 2010).

    `a` and `b` are two samples; `ab[i]` is `a` with column i of `b`, `ba[i]` the reverse (for interactions
    only).
    """

    a: Float[np.ndarray, "samples inputs"]
    b: Float[np.ndarray, "samples inputs"]
    ab: Float[np.ndarray, "inputs samples inputs"]
    ba: Float[np.ndarray, "varied samples inputs"]

    @classmethod
    def of(cls, inputs: int, samples: int, seed: int = 0, *, interactions: bool = False) -> "Design":
        """A scrambled Sobol sequence of `samples` points, a power of two."""
        both = qmc.Sobol(2 * inputs, scramble=True, rng=np.random.default_rng(seed)).random(samples)
        a, b = both[:, :inputs], both[:, inputs:]
        ab, ba = np.tile(a, (inputs, 1, 1)), np.tile(b, (inputs if interactions else 0, 1, 1))
        for column in range(inputs):
            ab[column, :, column] = b[:, column]
            if interactions:
                ba[column, :, column] = a[:, column]
        return cls(a, b, ab, ba)

    @property
    def points(self) -> Float[np.ndarray, "points inputs"]:
        """All points, one below the other."""
        inputs = self.a.shape[1]
        return np.concatenate([self.a, self.b, self.ab.reshape(-1, inputs), self.ba.reshape(-1, inputs)])

    def split(self, values: Float[np.ndarray, " points"]) -> "Evaluated":
        """The values of a function at all points, by sample."""
        samples, inputs = self.a.shape
        a, b, *others = np.asarray(values).reshape(-1, samples)
        return Evaluated(a, b, np.stack(others[:inputs]), np.reshape(others[inputs:], (-1, samples)))


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The values of a function at the points of a design."""

    a: Float[np.ndarray, " samples"]
    b: Float[np.ndarray, " samples"]
    ab: Float[np.ndarray, "inputs samples"]
    ba: Float[np.ndarray, "varied samples"]

    def __getitem__(self, rows: np.ndarray) -> "Evaluated":
        """The values of some samples."""
        return Evaluated(self.a[rows], self.b[rows], self.ab[:, rows], self.ba[:, rows])

    def centred(self) -> "Evaluated":
        """The values around their mean, which makes the estimates of first order less noisy."""
        mean = np.mean(np.concatenate([self.a[None], self.b[None], self.ab, self.ba]))
        return Evaluated(self.a - mean, self.b - mean, self.ab - mean, self.ba - mean)

    @property
    def variance(self) -> float:
        """Variance of the output over both samples."""
        return float(np.var([self.a, self.b]))

    def first_order(self) -> Float[np.ndarray, " inputs"]:
        """mean(f_B·(f_ABi − f_A)) / variance (Saltelli 2010, Table 2 b)."""
        return np.mean(self.b * (self.ab - self.a), axis=1) / self.variance

    def total(self) -> Float[np.ndarray, " inputs"]:
        """mean((f_A − f_ABi)²) / 2 / variance (Jansen 1999; Saltelli 2010, Table 2 f)."""
        return 0.5 * np.mean((self.a - self.ab) ** 2, axis=1) / self.variance

    def interactions(self) -> Float[np.ndarray, "varied varied"]:
        """Index of every pair: mean(f_BAi·f_ABj − f_A·f_B) / variance, less the first-order indices of
        both inputs (Saltelli 2002).
        """
        if not len(self.ba):
            return np.zeros((0, 0))
        together = (self.ba @ self.ab.T - self.a @ self.b) / len(self.a) / self.variance
        alone = self.first_order()
        return np.triu(together - alone[:, None] - alone, 1)


@dataclasses.dataclass(frozen=True)
class SobolIndices:
    """Indices of every input, with half the width of their 95 % intervals by bootstrap.

    `interactions` are those of pairs above the diagonal; empty where they were not asked for.
    """

    first: Float[np.ndarray, " inputs"]
    first_interval: Float[np.ndarray, " inputs"]
    total: Float[np.ndarray, " inputs"]
    total_interval: Float[np.ndarray, " inputs"]
    interactions: Float[np.ndarray, "varied varied"]
    interactions_interval: Float[np.ndarray, "varied varied"]
    mean: float
    deviation: float
    low: float  # 5th percentile of the output
    high: float  # 95th percentile

    @classmethod
    def of(cls, values: Evaluated, seed: int = 0) -> "SobolIndices":
        """Indices of the values of a function, all 0 for one that does not vary."""
        rng, samples = np.random.default_rng(seed), len(values.a)
        sampled = np.concatenate([values.a, values.b])
        described = {
            "mean": float(sampled.mean()),
            "deviation": float(sampled.std()),
            "low": float(np.percentile(sampled, 5)),
            "high": float(np.percentile(sampled, 95)),
        }
        if described["deviation"] <= 1e-12 * abs(described["mean"]):
            none, pairs = np.zeros(len(values.ab)), np.zeros((len(values.ba),) * 2)
            return cls(
                first=none,
                first_interval=none,
                total=none,
                total_interval=none,
                interactions=pairs,
                interactions_interval=pairs,
                **described,
            )
        values = values.centred()
        resamples = [values[rng.integers(0, samples, samples)] for _ in range(_RESAMPLES)]

        def half_width(estimates: list[np.ndarray]) -> np.ndarray:
            low, high = np.percentile(estimates, [50 - 50 * CONFIDENCE, 50 + 50 * CONFIDENCE], axis=0)
            return (high - low) / 2

        return cls(
            first=values.first_order(),
            first_interval=half_width([each.first_order() for each in resamples]),
            total=values.total(),
            total_interval=half_width([each.total() for each in resamples]),
            interactions=values.interactions(),
            interactions_interval=half_width([each.interactions() for each in resamples]),
            **described,
        )


def sobol_indices(
    configuration: Configuration,
    ranges: Sequence[Range],
    phase: str,
    output: str,
    samples: int = 1024,
    *,
    interactions: bool = False,
    seed: int = 0,
) -> SobolIndices:
    """Indices of an output of a phase over ranges, in which every value is as likely as any other.

    It takes `samples` · (inputs + 2) estimates, with interactions `samples` · (2 · inputs + 2).
    """
    design = Design.of(len(ranges), samples, seed, interactions=interactions)
    columns = {each.path: each.at(share) for each, share in zip(ranges, design.points.T, strict=True)}
    values = outputs_at(configuration, with_tied(configuration, columns), phase)[output]
    return SobolIndices.of(design.split(values), seed)

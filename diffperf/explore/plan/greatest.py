"""The largest batch and the longest sequences that the memory of a layout holds."""

import math

from diffperf.explore.plan.ranking import report_of
from diffperf.quantity import locate, replace
from diffperf.workload.configuration import Configuration

# The phases whose sequences have an answer beside the prompt.
ANSWERING = ("decode", "generate")
# Beyond this, memory is not what limits a batch or a sequence.
_MOST = 1e9


def greatest_batch(configuration: Configuration, phase: str) -> float:
    """The largest number of sequences that fit memory, the same on every replica, or 0 where not even one
    sequence a replica fits.
    """
    return _greatest(configuration, phase, "global_batch", float(configuration.strategy.dp))


def greatest_length(configuration: Configuration, phase: str) -> float:
    """The longest prompts, in tokens, with which the batch fits memory, or 0 where none does.

    The longest sequence of the model is not exceeded.
    """
    window = min(float(configuration.model.longest_sequence), _MOST)
    answer = float(configuration.strategy.output_length) if phase in ANSWERING else 0.0
    # Ranks of context parallelism share a sequence evenly.
    unit = float(configuration.strategy.cp)
    return _greatest(configuration, phase, "sequence_length", unit, max(window - answer, 0.0))


def _greatest(
    configuration: Configuration, phase: str, name: str, unit: float, limit: float = _MOST
) -> float:
    """The largest multiple of `unit`, up to a limit, of a field of the strategy that fits memory.

    What memory a device lacks grows with the field, and nearly in proportion: from a value that fits and one
    that does not, every other step interpolates, and the steps between halve the interval.
    """

    def excess(units: float) -> float:
        strategy = replace(configuration.strategy, {name: units * unit})
        changed = Configuration(configuration.model, configuration.system, strategy, configuration.relax)
        return float(locate(report_of(changed, phase), "memory.excess")[0])

    most = math.floor(limit / unit)
    if most < 1:
        return 0.0
    low, high = 0.0, max(min(math.floor(float(getattr(configuration.strategy, name)) / unit), most), 1.0)
    above = excess(high)
    below = above
    while above <= 0 and high < most:
        low, below = high, above
        high = min(8 * high, most)
        above = excess(high)
    if above <= 0:
        return high * unit
    interpolates = True
    while high - low > 1:
        share = below / (below - above) if interpolates and low else 0.5
        middle = min(max(math.floor(low + share * (high - low)), low + 1), high - 1)
        interpolates = not interpolates
        if (value := excess(middle)) <= 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return low * unit

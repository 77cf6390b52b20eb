"""Which runs of The ML.ENERGY Benchmark wait for their host: they say nothing of an accelerator."""

from diffperf.explore.measured.statistics import Evaluation

# The flags of runs that seem to wait for their host or their client.
FLAGS = ("not_faster_than_h100", "slow_series", "power_dip")


def waits_for_host(run: Evaluation) -> bool:
    """Returns whether a run has such a flag; runs of other tables have none."""
    return any(flag in run.cells.get("flags", "") for flag in FLAGS)

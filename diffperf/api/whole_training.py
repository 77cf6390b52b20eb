"""Time, energy, cost and interruptions of a whole training."""

import math
from typing import Any

from diffperf import units
from diffperf.errors import ConfigError, counted
from diffperf.estimate.long_run import long_run
from diffperf.quantity import real
from diffperf.report.tables import as_dict
from diffperf.workload.configuration import Configuration


def number_of_tokens(given: str | float, file: str, key: str) -> float:
    """A number of tokens. Raises `ConfigError` that names `file` and `key` for anything else."""
    try:
        tokens = float(given)
    except (TypeError, ValueError):
        tokens = math.nan
    if not (1 <= tokens < math.inf):
        expected, remedy = "a number of tokens, at least one", "write one such as 15e12"
        raise ConfigError(file, key, f'"{given}"', expected, remedy)
    return tokens


def training_totals(inputs: Configuration, report: Any, tokens: float) -> dict[str, float]:
    """Totals of a training on a number of tokens, by the names of `LongRun`, in internal units."""
    return {"tokens": tokens, **as_dict(long_run(inputs, report, real(tokens)))}


def describe_training(totals: dict[str, float]) -> list[str]:
    """Lines about a whole training."""
    show = {name: units.show(totals[name], "s") for name in ("time", "checkpoint_interval")}
    energy = f"{units.show(totals['energy'], 'J')} of the facility"
    amounts = [show["time"], energy, units.show(totals["cost"], "USD")]
    carbon = f"{totals['emissions'] / 1e3:,.3g} t CO2e"
    steps = counted(max(round(totals["steps"]), 1), "step")  # fewer tokens than a step has take one
    tokens = counted(totals["tokens"], "token", f"{totals['tokens']:.3g}")
    # Checkpoints are written between steps, of which the time without interruptions has so many.
    step_time = totals["time"] * totals["goodput"] / totals["steps"]
    between = max(round(totals["checkpoint_interval"] / step_time), 1)
    spare = counted(totals["spare_devices"], "spare device", f"{totals['spare_devices']:,.3g}")
    interruptions = counted(totals["interruptions"], "interruption", f"{totals['interruptions']:,.3g}")
    return [
        f"Training on {tokens}: {steps}, {', '.join([*amounts, carbon])}",
        f"  {totals['goodput']:.1%} of the time is useful: {interruptions}, a "
        f"checkpoint every {show['checkpoint_interval']} ({counted(between, 'step')}), {spare}",
    ]

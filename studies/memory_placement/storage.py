"""High-bandwidth storage (HBS) with the weights of a 13-billion-parameter model, beside or behind DDR."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from reporting import Table, evaluate_cases, read_rows

import diffperf as dp
from diffperf.hardware.memory_level import Holdings
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, replace
from diffperf.report import plots

PUBLISHED = Path(__file__).parent / "published.csv"
MODEL = "llava-1.5-13b"
SYSTEM = "mobile-soc-lpddr6-173-hbs-173"
CONTEXT = 8192  # tokens: an estimate, because we have no context of the published figures
GB = 1e9
LATENCIES = (1e-6, 3e-6, 10e-6, 30e-6, 100e-6)  # s
RATIOS = tuple(np.geomspace(0.4, 4.0, 21))  # bandwidth of HBS over that of DDR

# Where HBS lies: with channels of its own beside DDR, or behind it, so that all that it serves passes DDR.
ARRANGEMENTS = ("beside", "behind")


def systems() -> dict[str, System]:
    """The mobile system by arrangement: HBS as storage, or as device memory whose cache DDR is."""
    beside = replace(dp.load_system(SYSTEM), {"accelerator.power_limit": 100.0})
    levels = list(beside.accelerator.memory)
    levels[2] = dataclasses.replace(levels[2], kind="cache", holds=Holdings())
    levels[3] = dataclasses.replace(levels[3], kind="memory", holds=None)
    accelerator = dataclasses.replace(beside.accelerator, memory=tuple(levels))
    return {"beside": beside, "behind": dataclasses.replace(beside, accelerator=accelerator)}


def token_times(system: System, arrangement: str, cases: np.ndarray) -> np.ndarray:
    """Seconds of a token and their elasticities by both bandwidths, for rows of (DDR byte/s, HBS byte/s,
    latency of HBS in s, share of the KV cache in HBS).
    """
    model = dp.load_model(MODEL)
    strategy = dp.load_strategy({"sequence_length": CONTEXT, "output_length": 2})

    def time(bandwidths: jax.Array, latency: Scalar, kv_share: Scalar) -> Scalar:
        holder, share = ("hbs", kv_share) if arrangement == "beside" else ("lpddr6", 1 - kv_share)
        values = {
            "accelerator.memory.lpddr6.bandwidth": bandwidths[0],
            "accelerator.memory.hbs.bandwidth": bandwidths[1],
            "accelerator.memory.hbs.latency": latency,
            f"accelerator.memory.{holder}.holds.kv_cache": share,
        }
        return dp.decode(model, replace(system, values), strategy).time

    def with_elasticities(case: jax.Array) -> tuple[Scalar, jax.Array]:
        seconds, slopes = jax.value_and_grad(time)(case[:2], case[2], case[3])
        return seconds, -slopes * case[:2] / seconds

    return np.array([[seconds, *shares] for seconds, shares in evaluate_cases(with_elasticities, cases)])


def evaluate_all() -> tuple[Table, Table, dict[str, float]]:
    """The published cases beside ours, the cases by latency, and by arrangement the ratio of bandwidths from
    which on DDR binds more than HBS.
    """
    published = read_rows(PUBLISHED)
    rows = [dict(row) for row in published]
    by_latency = [{"latency": latency * 1e6} for latency in LATENCIES]
    binds = {}
    given = [
        (float(row["ddr_gb_per_s"]) * GB, float(row["hbs_gb_per_s"]) * GB, 10e-6, row["kv_cache_in"] == "HBS")
        for row in published
    ]
    late = [(520 * GB, 520 * GB, latency, 0.0) for latency in LATENCIES]
    scan = [(173 * GB, ratio * 173 * GB, 10e-6, 1.0) for ratio in RATIOS]
    for arrangement, system in systems().items():
        results = token_times(system, arrangement, np.array([*given, *late, *scan], dtype=float))
        for row, result in zip(rows, results, strict=False):
            row[arrangement] = 1 / result[0]
        for row, result in zip(by_latency, results[len(given) :], strict=False):
            row[arrangement] = 1 / result[0]
        ddr, hbs = results[len(given) + len(late) :, 1:].T
        crossed = np.flatnonzero(ddr > hbs)
        binds[arrangement] = float(RATIOS[crossed[0]]) if crossed.size else float("nan")
    columns = {
        "case": ("DDR/HBS in GB/s, KV cache", ""),
        "tokens_per_second": ("published, token/s", ""),
        "beside": ("ours, HBS beside DDR", ".1f"),
        "behind": ("ours, HBS behind DDR", ".1f"),
    }
    late_columns = {
        "latency": ("latency of HBS in µs", ".0f"),
        "beside": ("token/s, HBS beside DDR", ".1f"),
        "behind": ("token/s, HBS behind DDR", ".1f"),
    }
    title = f"{MODEL}, one sequence of {CONTEXT} tokens, weights in HBS"
    return (
        Table("hbs", title, columns, rows),
        Table("hbs_latency", f"{title}, 520/520 GB/s, KV cache in DDR", late_columns, by_latency),
        binds,
    )


def draw_storage(axes: Axes, table: Table) -> None:
    """Draws token rates of the published cases and ours."""
    series = (("tokens_per_second", plots.GREY, "published"), ("beside", plots.BLUE, "ours, beside DDR"),
              ("behind", plots.ORANGE, "ours, behind DDR"))  # fmt: skip
    for index, (key, colour, label) in enumerate(series):
        positions = np.arange(len(table.rows)) + 0.27 * (index - 1)
        axes.bar(positions, [float(row[key]) for row in table.rows], width=0.25, color=colour, label=label)
    axes.set_xticks(range(len(table.rows)), [row["case"].replace(" ", "\n", 1) for row in table.rows])
    axes.set_ylabel("token/s")
    axes.legend(frameon=False)


def storage_finding(table: Table, late: Table, binds: dict[str, float]) -> str:
    """The finding about HBS in sentences."""
    first, last = table.rows[0], table.rows[-1]
    ten = next(row for row in late.rows if round(row["latency"]) == 10)
    gains = {key: float(last[key]) / float(first[key]) for key in ("tokens_per_second", *ARRANGEMENTS)}
    return (
        f"From 173/173 GB/s to 520/520 GB/s with the KV cache in DDR the token rate grows "
        f"{gains['tokens_per_second']:.1f}-fold as published, {gains['beside']:.1f}-fold with HBS beside DDR "
        f"and {gains['behind']:.1f}-fold with HBS behind it. With HBS behind DDR, DDR binds from "
        f"{binds['behind']:.2f} times its bandwidth on (published: 1.4). At 10 µs the rate is "
        f"{ten['beside']:.1f} and {ten['behind']:.1f} token/s (published: 10 still hold). "
    )

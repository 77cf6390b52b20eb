"""The summary of a sweep in single precision, estimated in double precision and ranked again."""

import jax
import numpy as np

from diffperf.explore.sweep.point_estimates import point_tables
from diffperf.explore.sweep.summary import COUNTS, Summary, SummaryRules
from diffperf.explore.sweep.sweep_result import table_rows


def in_double_precision(rules: SummaryRules, summary: Summary) -> tuple[SummaryRules, Summary]:
    """Rules and summary in double precision, of the best rows and the front of one in single precision."""
    double = SummaryRules(rules.space, np.dtype(np.float64))
    kept = np.unique(np.concatenate([rows["number"] for rows in (*summary.best, summary.front)]))
    rows = np.empty(0, double.row_type)
    if len(kept):
        with jax.enable_x64(True):
            table = point_tables(rules.space, np.float64)(kept)
        rows = table_rows(double, table, kept, table["fits"].to_numpy())
    totals = {name: getattr(summary, name) for name in COUNTS}
    sample = summary.sample.astype(double.row_type)
    return double, double.of_candidates(rows, totals, sample, summary.counts)

"""Tables of why the designs are what they are: next-best choices, regret, and how sure the order is."""

from collections.abc import Mapping

import numpy as np
from reporting import Table

from diffperf.api.codesign_answer import CodesignAnswer
from diffperf.api.explanation import condition_text

Answers = Mapping[str, CodesignAnswer]


def runner_up_table(answers: Answers) -> Table:
    """The next-best value of every choice."""
    rows = [
        {
            "case": name,
            "choice": each.variable.path,
            "chosen": each.chosen,
            "other": each.other or "none fits",
            "loss": None if each.loss is None else 100 * np.expm1(each.loss),
            "condition": condition_text(each.conditions[0]) if each.conditions else None,
        }
        for name, answer in answers.items()
        if answer.explanation is not None
        for each in answer.explanation.runners_up
    ]
    columns = {
        "case": ("", ""),
        "choice": ("choice", ""),
        "chosen": ("chosen", ""),
        "other": ("next best", ""),
        "loss": ("loses: %", ".2f"),
        "condition": ("as good with (first order)", ""),
    }
    return Table(
        "runners_up", "Next-best choices, and what would have to be true for them to win", columns, rows
    )


def regret_table(answers: Answers) -> Table:
    """What the workloads of a mix lose to the design for each alone."""
    rows = [
        {
            "case": name,
            "workload": each.workload.name,
            "shared": each.shared,
            "alone": each.alone,
            "loss": 100 * np.expm1(each.loss),
        }
        for name, answer in answers.items()
        if answer.explanation is not None
        for each in answer.explanation.regrets
    ]
    columns = {
        "case": ("", ""),
        "workload": ("workload", ""),
        "shared": ("on the design of the mix", ",.0f"),
        "alone": ("on the design for it alone", ",.0f"),
        "loss": ("loses: %", ".1f"),
    }
    return Table("regret", "Regret: tokens per second of a workload on two designs", columns, rows)


def order_table(answers: Answers) -> Table:
    """In how many samples of the calibrated values a design is better than what is sold."""
    rows = [
        {
            "case": name,
            "other": each.name,
            "share": 100 * each.share,
            "low": each.low,
            "high": each.high,
            "calibrated": "yes" if each.calibrated else "no",
        }
        for name, answer in answers.items()
        if answer.explanation is not None
        for each in answer.explanation.orders
    ]
    columns = {
        "case": ("", ""),
        "other": ("beside", ""),
        "share": ("better in: % of samples", ".0f"),
        "low": ("times as good, 5 %", ".2f"),
        "high": ("95 %", ".2f"),
        "calibrated": ("calibrated itself", ""),
    }
    return Table("orders", "The order over samples of the calibrated values", columns, rows)

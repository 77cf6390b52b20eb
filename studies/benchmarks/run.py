"""How fast diffperf is: estimates and gradients per core-second, compile times, and the command line.

Machines differ and are shared, so the tables have ratios beside the times: to the limits that the project
holds itself to, and to the published speed of Calculon on one core of the same kind of machine. With
`--against`, another checkout of diffperf is measured too, in turns with this one, and every line has both
figures and their ratio.

    python studies/benchmarks/run.py [--quick] [--against CHECKOUT] [--out DIR]
"""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, parse_options, publish

MEASURE = Path(__file__).with_name("measure.py")
THIS = Path(__file__).parents[2]  # the checkout that this study belongs to

# Calculon's configurations per core-second in its strategy search of GPT-3 175B on 4,096 A100, without logs.
CALCULON = 2495

# What is measured of a rate, with the least number a second that the project holds itself to.
RATES = {
    "training": ("exact training estimates", 300_000),
    "training, strategies varied": ("the same, strategies and choices varied too", 300_000),
    "training, smooth": ("smooth training estimates", 300_000),
    "training, gradient": ("exact training estimates with the gradient for every system input", 50_000),
    "training, smooth gradient": ("smooth training estimates with that gradient", 50_000),
    "decode": ("exact estimates of a decode pass", 500_000),
    "generate": ("exact estimates of a generation", 500_000),
    "generate, gradient": ("$/Mtoken of a generation with the gradient for every system input", 40_000),
    "serve": ("steady states of a server", 100_000),
    "serve, gradient": ("$/Mtoken of a server with the gradient for every system input", 40_000),
}
# What is compiled: the line of the table, and the arguments of `measure.py`.
COMPILED = {
    "compile of GPT-3's training step with its gradient": ("training",),
    "the same compile with the defaults of XLA": ("training", "--defaults"),
    "compile of DeepSeek-V3's training step with its gradient": ("training of experts",),
    "compile of $/Mtoken of a generation with its gradient for the hardware": ("generate",),
    "compile of $/Mtoken of a server with its gradient for the hardware": ("serve",),
}
PAGE = "the live page's answer to a changed number, once compiled"
# The lines of a quick run: one of each kind.
QUICK = ("training", "decode", "compile of GPT-3's training step with its gradient")

COMPILE_LIMIT, FIRST_ANSWER_LIMIT, NEXT_ANSWER_LIMIT, PAGE_LIMIT = 15.0, 5.0, 2.0, 0.15  # s

ESTIMATE = "estimate gpt3-175b dgx-a100 --devices 64 --tp 8 --pp 8 --global-batch 64"

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Checkouts:
    """The checkouts to measure: this one, and perhaps another one to compare it with.

    - `turns`: how often each is measured. Of the results, the fastest counts: others were disturbed.
    - `lines`: names of the rates and compilations that are measured.
    """

    other: Path | None
    turns: int
    lines: Collection[str]

    def measured(self, measure: Callable[[Path], Result]) -> list[Result]:
        """Returns the best result of each checkout, measured in turns.

        Of a rate, the best is the greatest; of times, each the smallest.
        """
        folders = [THIS] if self.other is None else [THIS, self.other]
        results: list[list[Result]] = [[] for _ in folders]
        for _ in range(self.turns):
            for folder, found in zip(folders, results, strict=True):
                found.append(measure(folder))
        return [functools.reduce(better, found) for found in results]


def better(first: Result, second: Result) -> Result:
    """Returns the greater of rates, and the smaller of times, of two results."""
    if "lacks" in first:
        return first
    return {
        name: max(value, second[name]) if name == "per_second" else min(value, second[name])
        for name, value in first.items()
    }


def run(command: list[str], checkout: Path, **environment: str) -> str:
    """Runs Python on the library of a checkout and returns its output. Raises `SystemExit` if it fails."""
    environment |= {"PYTHONPATH": str(checkout), "XLA_FLAGS": ""}
    # -P: the folder that the study is run in is not searched for the library.
    line = [sys.executable, "-P", *command]
    result = subprocess.run(line, capture_output=True, text=True, env=os.environ | environment, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(line)} with {checkout} failed:\n{result.stderr}")
    return result.stdout


def measured(checkout: Path, *arguments: str) -> Result:
    """Returns what `measure.py` prints for a checkout."""
    return json.loads(run([str(MEASURE), *arguments], checkout).splitlines()[-1])


def answer_seconds(checkout: Path) -> Result:
    """Returns the seconds of `diffperf estimate` with an empty compile cache, and with a filled one."""
    cache = tempfile.mkdtemp()
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        run(["-m", "diffperf", *ESTIMATE.split()], checkout, DIFFPERF_CACHE=cache)
        seconds.append(time.perf_counter() - start)
    shutil.rmtree(cache)
    return {"first": seconds[0], "following": sorted(seconds[1:])[1]}


def comparison(results: list[Result], name: str, key: str = "") -> dict[str, Any]:
    """Returns the cells of another checkout's figure, and of the ratio of this one's to it; none without
    another checkout.
    """
    if len(results) == 1:
        return {}
    this, other = results
    if "lacks" in other:
        return {f"other{key}": "not there"}
    return {f"other{key}": other[name], f"ratio{key}": this[name] / other[name]}


def speed_table(checkouts: Checkouts, count: int) -> Table:
    """Measures and tabulates estimates and their gradients for `count` configurations."""
    rows = []
    for name, (line, floor) in RATES.items():
        if name not in checkouts.lines:
            continue
        results = checkouts.measured(lambda folder, name=name: measured(folder, "rate", name, str(count)))
        rate = results[0]["per_second"]
        rows.append(
            {
                "benchmark": line,
                "per_second": rate,
                "over_floor": rate / floor,
                "over_calculon": rate / CALCULON if name.startswith("training") else None,
                "compile_s": results[0]["compile_seconds"],
                **comparison(results, "per_second"),
                **comparison(results, "compile_seconds", "_compile"),
            }
        )
    columns = {
        "benchmark": ("", ""),
        "per_second": ("per second", ",.0f"),
        "over_floor": ("/ floor", ".1f"),
        "over_calculon": ("/ Calculon", ".0f"),
        "compile_s": ("compile s", ".1f"),
    }
    if checkouts.other is not None:
        columns |= {
            "other": ("other, per second", ",.0f"),
            "ratio": ("this / other", ".2f"),
            "other_compile": ("other, compile s", ".1f"),
            "ratio_compile": ("this / other", ".2f"),
        }
    return Table("speed", "float32, one core", columns, rows)


def latency_table(checkouts: Checkouts) -> Table:
    """Measures and tabulates compile times, and the time to an answer on the command line and the page."""
    rows = []

    def add(line: str, limit: float, results: list[Result], name: str) -> None:
        seconds = results[0][name]
        row = {"benchmark": line, "seconds": seconds, "over_limit": seconds / limit}
        rows.append(row | comparison(results, name))

    for line, arguments in COMPILED.items():
        if line not in checkouts.lines:
            continue
        results = checkouts.measured(lambda folder, given=arguments: measured(folder, "compile", *given))
        add(line, COMPILE_LIMIT, results, "seconds")
    answers = checkouts.measured(answer_seconds)
    add("diffperf estimate, compile cache empty", FIRST_ANSWER_LIMIT, answers, "first")
    add("diffperf estimate, compile cache filled", NEXT_ANSWER_LIMIT, answers, "following")
    if PAGE in checkouts.lines:
        add(PAGE, PAGE_LIMIT, checkouts.measured(lambda folder: measured(folder, "page")), "seconds")
    columns = {"benchmark": ("", ""), "seconds": ("seconds", ".2f"), "over_limit": ("/ limit", ".2f")}
    if checkouts.other is not None:
        columns |= {"other": ("other, seconds", ".2f"), "ratio": ("this / other", ".2f")}
    return Table("latency", "All cores", columns, rows)


def main() -> None:
    """Runs the study."""
    against = {"type": Path, "metavar": "CHECKOUT", "help": "another checkout of diffperf to compare with"}
    options = parse_options(
        __doc__,
        "benchmarks",
        "fewer lines and configurations, each once",
        float64=False,
        against=against,
    )
    other = options.against and options.against.resolve()
    if other is not None and not (other / "diffperf" / "__init__.py").exists():
        raise SystemExit(f"--against {options.against}: there is no folder diffperf/ in it")
    lines = QUICK if options.quick else (*RATES, *COMPILED, PAGE)
    checkouts = Checkouts(other, turns=1 if options.quick else 3, lines=lines)
    count = 1 << (14 if options.quick else 17)
    publish(options.out, [speed_table(checkouts, count), latency_table(checkouts)])


if __name__ == "__main__":
    main()

"""Runs mutated inputs of every command and endpoint, and lists the faults.

`python tests/mutated_inputs.py --count 10000 --seed 0`

An input is run in this process until all checks that need no estimate have passed, and counts as accepted
then: where it asks for a compiled program, estimates rows of a table, constructs a search of co-design or
begins a sweep (`SEAMS`).
Faults are tracebacks, exit codes that are not documented, errors of several lines, inputs that take over ten
seconds, and inputs that are wrong by construction but accepted.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import quote

import click
from click.testing import CliRunner, Result
from starlette.testclient import TestClient

from diffperf import load
from diffperf.cli import COMMANDS, cli
from diffperf.page.programs import Compiling, Programs
from diffperf.page.server import Backend, application

EXIT_CODES = (0, 1, 2, 3, 130)
MOST_SECONDS = 10.0
ENDPOINTS = ("catalog", "inputs", "answer", "interval", "front", "export")
GEMM = load.config_root() / "measurements" / "gemm.csv"
# A good command line of each command; `explore` is only asked with options that it must refuse.
GOOD = {
    "estimate": "estimate llama-2-7b dgx-a100 --tp 8",
    "plan": "plan llama-2-7b dgx-a100",
    "serve": "serve llama-2-7b dgx-a100",
    "compare": "compare --models llama-2-7b --systems dgx-a100",
    "codesign": "codesign gpt3-175b-under-a100-budget",
    "sensitivity": "sensitivity llama-2-7b dgx-a100",
    "map": "map llama-2-7b dgx-a100 --x hbm.bandwidth=1..8TB/s --y strategy.global_batch=1..512",
    "breakeven": "breakeven llama-2-7b dgx-a100 --against dgx-h100 --x hbm.bandwidth=1..4TB/s",
    "sweep": "sweep gpt3-175b-strategy-sweep",
    "validate": f"validate {GEMM}",
    "calibrate": f"calibrate {GEMM} --hardware a100-sxm4-80gb --parameters accelerator.kernel_latency "
    "--out fitted.toml",
    "cost": "cost dgx-a100",
    "die": "die 600mm2 --nodes n7,n5 --age 2",
    "init": "init model",
    "explore": "explore --port none",
    "list": "list models",
}
# The command that reads a file of a folder of configs/, with FILE in the place of its name.
READERS = {
    "models": "estimate FILE dgx-a100 --tp 8",
    "systems": "estimate llama-2-7b FILE",
    "accelerators": "cost system.toml",
    "prices": "cost system.toml",
    "hosts": "cost system.toml",
    "networks": "cost system.toml",
    "technology": "codesign problem.toml",
    "nodes": "codesign problem.toml",
    "memories": "codesign problem.toml",
    "links": "codesign problem.toml",
    "stacks": "estimate llama-2-7b dgx-a100 --tp 8 --stack FILE",
    "calibrations": "estimate llama-2-7b dgx-a100 --tp 8 --calibration FILE",
    "spaces": "sweep FILE",
    "problems": "codesign FILE",
    "measurements": "validate FILE",
}
PROBLEM = (load.config_root() / "problems" / "gpt3-175b-under-a100-budget.toml").read_text(encoding="utf-8")
# Files beside one of a folder, which name it: FILE is its place in them.
BESIDE = {
    "accelerators": {"system.toml": 'extends = "one-device"\naccelerator = "FILE"\n'},
    "prices": {"system.toml": 'extends = "dgx-h100"\nprices = "FILE"\n'},
    "hosts": {"system.toml": 'extends = "dgx-h100"\nhost = "FILE"\n'},
    "networks": {
        "system.toml": 'extends = "one-device"\naccelerator = "l40s"\n[[network]]\nextends = "FILE"\n'
    },
    "technology": {"problem.toml": PROBLEM.replace('"n7-hbm2e"', '"FILE"')},
} | {
    folder: {
        "own.toml": f'extends = "n4-hbm3"\n{key} = "FILE"\n',
        "problem.toml": PROBLEM.replace('"n7-hbm2e"', '"own.toml"'),
    }
    for folder, key in {"nodes": "node", "memories": "memory", "links": "link"}.items()
}
# What is called once the checks of a command have passed.
SEAMS = {
    "codesign": ("diffperf.explore.codesign.search.Search.__init__",),
    "sweep": ("diffperf.cli.sweep_command.run_sweep", "diffperf.api.sweep_answer.run_sweep"),
    "others": (
        "diffperf.compiler.StoredFunction.__call__",
        "diffperf.explore.measured.predictions._predict_block",
    ),
}
_NUMBER = r'[\w.]+ = ("\$?-?[\d.,e+-]+( [^"]*)?"|-?[\d.])'  # a key with a number, or a number with a unit
WRONG_NUMBERS = ("nan", "inf", '"3 bananas"', "{ nested = { deep = 1 } }")
ODD_NUMBERS = ("0", "-1", "1e308", "true", '""', "[]", '"text"')
WORDS = ("", "nan", "inf", "-1", "0", "1e308", "3 bananas", "missing.toml", "é", "9" * 400, "=", "..", "a=b")
NOT_FUZZED = ("workers", "scheduler", "help", "version")  # the first two start processes and connections


class Input(NamedTuple):
    """A mutated input: a command line, or the address of a question; with the contents of files by name."""

    group: str
    line: tuple[str, ...]
    files: Mapping[str, bytes] = {}
    wrong: bool = False  # by construction: it must be refused
    change: str = ""  # of the file


class Outcome(NamedTuple):
    """Whether an input was refused, and what is at fault; empty where nothing is."""

    refused: bool
    fault: str


class Reached(BaseException):
    """The checks are over: a compiled program is asked for."""


class NeverCompiled(Programs):
    """Programs of the page that stay uncompiled."""

    def run(self, *_: Any) -> Any:
        raise Compiling("no program")


class Checks(Backend):
    """The server's part that checks states, and no more."""

    def programs(self) -> Programs:
        return NeverCompiled()


def _reached(*_: Any, **__: Any) -> Any:
    raise Reached


@functools.cache
def shipped(folder: str) -> tuple[Path, ...]:
    """The files of a folder of configs/."""
    return tuple(sorted(p for p in (load.config_root() / folder).iterdir() if p.suffix in (".toml", ".csv")))


def draw_file(draw: random.Random) -> Input:
    """A shipped file with one mutation."""
    folder = draw.choice(list(READERS))
    path = draw.choice(shipped(folder))
    name = f"mutated{path.suffix}"
    lines = path.read_text(encoding="utf-8").splitlines()
    line = tuple(READERS[folder].replace("FILE", name).split())
    group = f"{line[0]} ({folder})"
    # What calibrations were fitted to, and their errors, stand at their ends for people only.
    end = next((i for i, text in enumerate(lines) if text.startswith(("[errors", "[[files"))), len(lines))
    read = range(end)
    numbers = [i for i in read if re.match(_NUMBER, lines[i])]
    keys = [i for i in read if re.match(r"[\w.]+ = [^\[{]*$", lines[i])]
    kind = draw.choice(("number", "odd", "typo", "delete", "duplicate", "encoding", "truncated", "extends"))
    wrong = kind in ("encoding", "extends")
    if path.suffix == ".csv":
        wrong = kind == "encoding"
        row = draw.randrange(len(lines))
        cells = lines[row].split(",")
        cells[draw.randrange(len(cells))] = draw.choice(WORDS)
        lines[row] = ",".join(cells)
    elif kind in ("number", "odd") and numbers:
        at = draw.choice(numbers)
        wrong = kind == "number"
        key = lines[at].split(" = ")[0]
        lines[at] = f"{key} = {draw.choice(WRONG_NUMBERS if wrong else ODD_NUMBERS)}"
    elif kind in ("typo", "delete", "duplicate") and keys:
        at, wrong = draw.choice(keys), kind != "delete"
        changed = {"typo": [re.sub(r"^([\w.]+)", r"\1_x", lines[at])], "delete": []}
        lines[at : at + 1] = changed.get(kind, [lines[at]] * 2)
    elif kind == "extends":
        target = draw.choice(("missing.toml", "mutated.toml"))
        lines = [f'extends = "{target}"', *(text for text in lines if not text.startswith("extends"))]
    before = set(path.read_text(encoding="utf-8").splitlines())
    change = f"{path.name}, {kind}: {[text for text in lines if text not in before]}"
    content = "\n".join(lines).encode()
    if kind == "encoding":
        content = b"\xff\xfe" + content
    elif kind == "truncated":
        content = content[: draw.randrange(len(content))]
    return Input(group, line, {name: content, **beside(folder, name)}, wrong, change)


def beside(folder: str, name: str) -> dict[str, bytes]:
    """The files that name a file of a folder."""
    return {other: text.replace("FILE", name).encode() for other, text in BESIDE.get(folder, {}).items()}


def draw_command(draw: random.Random) -> Input:
    """A good command line of any command with a word replaced, or one more option."""
    name = draw.choice(list(COMMANDS))
    words = GOOD[name].split()
    if draw.random() < 0.2:
        return Input(name, (*words, "--no-such-option", draw.choice(WORDS)), wrong=True)
    if name != "explore" and len(words) > 1 and draw.random() < 0.4:
        words[draw.randrange(1, len(words))] = draw.choice(WORDS)
        return Input(name, tuple(words))
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [o for o in command.params if isinstance(o, click.Option) and o.name not in NOT_FUZZED]
    option = draw.choice(options)
    flag = draw.choice(option.opts)
    added = (flag,) if option.is_flag else (flag, draw.choice(WORDS))
    if name == "explore":
        return Input(name, (words[0], *added, *words[1:]), wrong=True)
    return Input(name, (*words, *added))


def draw_query(draw: random.Random) -> Input:
    """A state of the page with one value or key that is odd."""
    key, text = draw.choice(("model", "system", "tp", "devices", "set", "tokens", "zz")), draw.choice(WORDS)
    wrong = key == "zz" and text != ""
    if draw.random() < 0.3:
        key, text, wrong = "set", "hbm.bandwidth=" + draw.choice(("nan", "-2 TB/s", "3 bananas")), True
    endpoint = draw.choice(ENDPOINTS)
    # The catalog reads no state, and the list of inputs does not read values: they are checked by the others.
    address = f"/api/{endpoint}?phase=training&{key}={quote(text)}"
    return Input(f"/api/{endpoint}", (address,), wrong=wrong and endpoint not in ("catalog", "inputs"))


def draws(count: int, seed: int) -> Iterator[Input]:
    """Mutated inputs, the same for the same seed."""
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.choices((draw_file, draw_command, draw_query), (4, 4, 2))[0](draw)


def run_one(entry: Input, client: TestClient) -> Outcome:
    """Runs an input in the working directory, which should be one of its own."""
    start = time.process_time()  # a machine that is busy with other work is no fault
    outcome = _asked(entry, client) if entry.line[0].startswith("/") else _commanded(entry)
    took = time.process_time() - start
    if not outcome.fault and took > MOST_SECONDS:
        return Outcome(outcome.refused, f"took {took:.0f} s")
    if not outcome.fault and entry.wrong and not outcome.refused:
        return Outcome(False, "wrong success")
    return outcome


def _asked(entry: Input, client: TestClient) -> Outcome:
    reply = client.get(entry.line[0])
    fault = "" if reply.status_code in (200, 422) else f"status {reply.status_code}: {reply.text[:200]}"
    return Outcome(reply.status_code == 422, fault)


def _commanded(entry: Input) -> Outcome:
    for name, content in entry.files.items():
        Path(name).write_bytes(content)
    result = commanded(entry.line)
    if result is None:
        return Outcome(False, "")
    refused = result.exit_code != 0
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return Outcome(refused, f"traceback: {result.exception!r}"[:300])
    if result.exit_code not in EXIT_CODES:
        return Outcome(refused, f"exit code {result.exit_code}")
    # Rows of a table that are wrong are named with their lines, and are no error where others are left.
    named = ("Error:", "mutated.csv line ")
    errors = [text for text in result.stderr.splitlines() if text.startswith(named)]
    if refused and len(errors) != 1 and result.exit_code != 3:
        return Outcome(refused, f"not one line: {result.stderr[:200]!r}")
    return Outcome(refused, "")


def commanded(line: tuple[str, ...]) -> Result | None:
    """What a command line answers without an estimate, None where its checks have passed before."""
    # Problems are read with estimates of the baseline, and searches of designs begin after that.
    seams = SEAMS["codesign"] if line[0] == "codesign" else SEAMS["sweep"] + SEAMS["others"]
    try:
        with contextlib.ExitStack() as patches:
            for seam in seams:
                patches.enter_context(mock.patch(seam, _reached))
            return CliRunner().invoke(cli, list(line))
    except Reached:
        return None


def run_all(
    count: int, seed: int, most_seconds: float = float("inf"), worker: int = 0, workers: int = 1
) -> tuple[dict[str, list[int]], list]:
    """By group the numbers of inputs, refused, accepted and faults; and each fault with its input.

    Of several workers each runs one input in so many.
    """
    assert set(GOOD) == set(COMMANDS), "every command has a good command line here"
    counts: dict[str, list[int]] = collections.defaultdict(_no_inputs)
    faults, start = [], time.monotonic()
    client = TestClient(
        application(Checks(lambda: None)), base_url="http://127.0.0.1", raise_server_exceptions=False
    )
    for number, entry in enumerate(draws(count, seed)):
        if number % workers != worker:
            continue
        if number // workers % 500 == 0:
            print(f"worker {worker}: input {number:,} of {count:,}", file=sys.stderr, flush=True)
        if time.monotonic() - start > most_seconds:
            print(f"stopped after {most_seconds:g} s")
            break
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            outcome = run_one(entry, client)
        row = counts[entry.group]
        row[0] += 1
        row[1 if outcome.refused else 2] += 1
        if outcome.fault:
            row[3] += 1
            faults.append((outcome.fault, entry))
            print(f"- {outcome.fault}: {entry.line} {entry.change[:300]}", flush=True)
    return counts, faults


def _no_inputs() -> list[int]:
    return [0, 0, 0, 0]


def main() -> None:
    """Prints the table and the faults; exits with 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the inputs")
    chosen = parser.parse_args()
    counts: dict[str, list[int]] = collections.defaultdict(_no_inputs)
    # Problems are read with an estimate of the baseline, which is compiled once and not for every mutation.
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, DIFFPERF_CACHE=cache):
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(chosen.workers, context) as pool:
            asked = (chosen.count, chosen.seed, chosen.seconds)
            parts = [pool.submit(run_all, *asked, worker, chosen.workers) for worker in range(chosen.workers)]
            results = [part.result() for part in parts]
    for of_worker, _ in results:
        for name, row in of_worker.items():
            counts[name] = [a + b for a, b in zip(counts[name], row, strict=True)]
    print(f"{'command/endpoint':28}{'inputs':>8}{'refused':>9}{'accepted':>9}{'faults':>8}")
    for name, row in sorted(counts.items()):
        print(f"{name:28}{row[0]:8}{row[1]:9}{row[2]:9}{row[3]:8}")
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    print("{:28}{:8}{:9}{:9}{:8}".format("total", *totals))
    sys.exit(any(faults for _, faults in results))


if __name__ == "__main__":
    main()

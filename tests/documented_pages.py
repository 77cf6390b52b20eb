"""Pages of the documentation whose commands and programs are run, and whose printed answers are checked.

A page is run from its top in one empty folder. Blocks of `toml`, `csv` and `python` with a title are files,
which are written; blocks of `sh`, and of `python` without a title, are run. A block of `text` holds what the
block before it prints: its lines stand in the output in this order, "…" in place of those that are left out,
and their numbers agree within `TOLERANCE`. After a change of the figures,

    python tests/documented_pages.py .docs/pages/tutorials/*.md

runs the pages and writes the new numbers. A line "~words" becomes the output's next line with these words.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOLERANCE = 0.01  # of a number: a figure in the last of three digits may round otherwise on another machine
LEFT_OUT = "…"
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_BARS = re.compile(r"[█▉▊▋▌▍▎▏]+")


@dataclass
class Block:
    """A block of a page: its language, the file it is (or ""), its text, and where the text begins."""

    language: str
    title: str
    text: str
    start: int
    answers: list["Block"] = field(default_factory=list)


def blocks(page: str) -> list[Block]:
    """The blocks of a page that are run or written, each with the blocks of text that follow it."""
    found: list[Block] = []
    for match in _FENCE.finditer(page):
        block = Block(match[1], match[2] or "", match[3], match.start(3))
        if block.language == "text" and found:
            found[-1].answers.append(block)
        elif block.language in ("sh", "python", "toml", "csv"):
            found.append(block)
    return found


def run_block(block: Block, folder: Path, environment: dict[str, str]) -> str:
    """What a block prints; "" of a file, which is written. Raises `AssertionError` where it fails."""
    if block.title:
        (folder / block.title).write_text(block.text, encoding="utf-8")
        return ""
    if block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", block.text]
    else:
        command = [sys.executable, "-c", block.text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{block.text}\nexit code {done.returncode}: {done.stderr}\n{done.stdout}"
    return done.stdout


def environment_of(folder: Path) -> dict[str, str]:
    """An environment whose `diffperf` is what PYTHONPATH leads to, or this checkout's, run by this Python."""
    programs = folder / ".bin"
    programs.mkdir()
    for name, call in {"diffperf": f"{sys.executable} -m diffperf", "python": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    sources = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    return os.environ | {"PATH": path, "PYTHONPATH": sources, "PYTHONIOENCODING": "utf-8", "COLUMNS": "120"}


def plain(line: str) -> str:
    """A line without bars, and with single spaces."""
    return " ".join(_BARS.sub("", line).split())


def shape(line: str) -> str:
    """A line without its numbers."""
    return _NUMBER.sub("#", plain(line))


def numbers(line: str) -> list[float]:
    return [float(text.replace(",", "").replace("−", "-")) for text in _NUMBER.findall(plain(line))]


def agrees(shown: str, printed: str) -> bool:
    """Whether a line of the documentation is a line of the output."""
    return shape(shown) == shape(printed) and all(
        abs(first - second) <= TOLERANCE * abs(second)
        for first, second in zip(numbers(shown), numbers(printed), strict=True)
    )


def missing(answer: str, output: str) -> str:
    """The first line of an answer that the output lacks, or has earlier than the line before it; else ""."""
    remaining = iter(output.splitlines())
    for shown in filter(str.strip, answer.splitlines()):
        if shown.strip() != LEFT_OUT and not any(agrees(shown, printed) for printed in remaining):
            return shown
    return ""


def check_page(page: Path, folder: Path) -> None:
    """Runs a page, and raises `AssertionError` where a block fails or an answer is not what it prints."""
    environment = environment_of(folder)
    for block in blocks(page.read_text(encoding="utf-8")):
        output = run_block(block, folder, environment)
        for answer in block.answers:
            lost = missing(answer.text, output)
            assert not lost, f"{page.name}: {block.text}\ndoes not print\n{lost}\nbut\n{output}"


def renewed(answer: str, output: str) -> str:
    """An answer with the numbers of the output, line by line; a line that has no counterpart stays."""
    remaining, lines = output.splitlines(), []
    for shown in answer.splitlines():
        wanted = shown.removeprefix("~").strip()
        for place, printed in enumerate(remaining):
            same = wanted in plain(printed) if shown.startswith("~") else shape(shown) == shape(printed)
            if same and plain(shown) != LEFT_OUT:
                shown, remaining = _BARS.sub("", printed).rstrip(), remaining[place + 1 :]
                break
        lines.append(shown)
    return "\n".join(lines) + "\n"


def renew_page(page: Path, folder: Path) -> None:
    """Runs a page, prints what its blocks print, and writes their numbers into it."""
    environment, text = environment_of(folder), page.read_text(encoding="utf-8")
    changes = []
    for block in blocks(text):
        output = run_block(block, folder, environment)
        print(f"---- {page.name}: {block.text.strip()}\n{output}", flush=True)
        changes += [(answer, renewed(answer.text, output)) for answer in block.answers]
    for answer, new in reversed(changes):
        text = text[: answer.start] + new + text[answer.start + len(answer.text) :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs pages, and writes the figures that they print.")
    parser.add_argument("pages", nargs="+", type=Path)
    for page in parser.parse_args().pages:
        with tempfile.TemporaryDirectory() as empty:
            renew_page(page.resolve(), Path(empty))

"""README and documentation hold: their Python runs, their commands parse, CI runs their test command."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from diffperf.cli import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / ".docs" / "pages").glob("*.md"))]
BLOCK = r"```{}\n(.*?)```"


def blocks(language: str) -> list[str]:
    """The code of a language in the README and in the pages of the documentation, each block once."""
    pattern = BLOCK.format(language)
    found = [block for text in (README, *PAGES) for block in re.findall(pattern, text, flags=re.DOTALL)]
    return list(dict.fromkeys(found))


LINES = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
COMMANDS = list(dict.fromkeys(line for line in LINES if line.startswith("diffperf ")))


@pytest.mark.parametrize(
    ("place", "words"),
    [(0, "step time"), *(pytest.param(place, "", marks=pytest.mark.slow) for place in (1, 2, 3))],
)
def test_python_runs_as_printed(place, words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[place]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert words in done.stdout
    number = float(done.stdout.splitlines()[-1].removesuffix(" s"))
    # The second block prints a derivative: more bandwidth, less time.
    assert number < 0 if place == 1 else number > 0


def test_every_python_block_is_run():
    assert len(blocks("python")) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    """Names and options exist; a space or a problem of the user's own need not."""
    _, name, *arguments = shlex.split(command)
    command_object = cli.get_command(click.Context(cli), name)
    assert command_object is not None, name
    command_object.make_context(name, arguments)


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 120
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    assert not [link for link in links if "://" not in link and not (ROOT / link).is_file()]


def test_an_unknown_option_would_be_noticed():
    command_object = cli.get_command(click.Context(cli), "estimate")
    with pytest.raises(click.UsageError):
        command_object.make_context("estimate", ["gpt3-175b", "dgx-a100", "--no-such-option"])


def test_ci_runs_the_test_command_of_the_readme():
    test_command = next(line for block in blocks("sh") for line in block.splitlines() if "pytest" in line)
    tail = test_command[test_command.index("-m pytest") :]
    assert any(
        line.strip().endswith(tail) for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    )


def test_the_recipes_name_what_exists():
    """Every path of CONTRIBUTING.md leads to a file or folder, and every identifier is in the sources."""
    text = re.sub(r"```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {name for name in re.findall(r"`([^`\n]+)`", text) if " " not in name and "NAME" not in name}
    paths = {name for name in names if "/" in name}
    assert {path for path in paths if not any(ROOT.glob(path))} == set()
    identifiers = {name for name in names - paths if re.fullmatch(r"\w{3,}", name)}
    folders = [ROOT / folder for folder in ("diffperf", "studies", "tests", "configs")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".toml")]
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "pyproject.toml", *files)]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    assert identifiers - words == set()
    assert len(paths) > 20
    assert len(identifiers) > 30

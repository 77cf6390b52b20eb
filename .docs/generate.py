"""Pages of the documentation that follow from the code: formulas, commands, Python, configs, measurements."""

import ast
import csv
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import mkdocs_gen_files

import diffperf as dp
from diffperf.cli import COMMANDS, cli
from diffperf.load import available, config_root

ROOT = Path(__file__).parents[1]
# Where the physics is, and what each room holds.
ROOMS = {
    "workload": "What has to be computed, sent and stored",
    "estimate": "How long it takes",
    "hardware": "What the hardware is, from silicon to systems",
    "cost": "What it costs",
    "relax.py": "How max, min, ceil and choices are evaluated",
    "staircase.py": "Smooth staircases in place of ceil",
}
SHOWN = 4  # sources of a table of measurements that are named
# A publication in a docstring: arXiv numbers, venues with years, repositories, files of other programs.
SOURCE = re.compile(
    r"arXiv \d{4}\.\d{5}(?: §[\d.]+\d| Table \d+|, Table \d+|, Eq\. \d+)?"
    r"|(?:[A-Z][\w-]+(?: (?:et al\.|and [A-Z][\w-]+)))?,? ?\(?"
    r"(?:[A-Z]{3,}\w*|ISCA|Parallel Computing|IEEE [A-Z]\w+) (?:19|20)\d\d\)?"
    r"|github\.com/[\w./-]+[\w]"
)


def write(name: str, text: str) -> None:
    with mkdocs_gen_files.open(name, "w") as page:
        page.write(text)


def functions(path: Path) -> Iterator[tuple[str, str]]:
    """The names and docstrings of a module, whose name is empty, and of its functions and classes."""

    def of(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if text := ast.get_docstring(child):
                    yield prefix + child.name, text
                if isinstance(child, ast.ClassDef):
                    yield from of(child, f"{prefix}{child.name}.")

    tree = ast.parse(path.read_text(encoding="utf-8"))
    if text := ast.get_docstring(tree):
        yield "", text
    yield from of(tree, "")


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0].replace("|", "\\|")


def physics() -> str:
    """Every formula: what it says, the function that is it, and the publications that its docstring names."""
    lines = [
        "# The physics",
        "",
        "Every function of the estimator that follows a publication, by room: what it computes, where it",
        "stands, and its sources. The docstrings give shapes, units and the reasons for each choice.",
    ]
    for room, title in ROOMS.items():
        place = ROOT / "diffperf" / room
        files = [place] if place.suffix else sorted(place.rglob("*.py"))
        rows = [
            (
                first_sentence(text),
                f"`{name}` " * bool(name) + f"`{path.relative_to(ROOT / 'diffperf')}`",
                sources,
            )
            for path in files
            for name, text in functions(path)
            if (sources := sorted({found.strip(" ,(") for found in SOURCE.findall(" ".join(text.split()))}))
        ]
        if rows:
            lines += ["", f"## {title}", "", "| what | function | sources |", "|---|---|---|"]
            lines += [f"| {what} | {where} | {'; '.join(sources)} |" for what, where, sources in rows]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The help of every command."""
    lines = ["# Commands", ""]
    parent = click.Context(cli, info_name="diffperf")
    for name in COMMANDS:
        command = cli.get_command(parent, name)
        assert command is not None  # of a command that the group lists
        text = command.get_help(click.Context(command, info_name=name, parent=parent, max_content_width=100))
        lines += [f"## diffperf {name}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def reference() -> str:
    """The public names of the package, with their signatures and docstrings."""
    lines = ["# Python", "", "```python", "import diffperf as dp", "```", ""]
    for name in dp.__all__:
        value = getattr(dp, name)
        if not (inspect.isclass(value) or callable(value)):
            continue
        try:
            signature = str(inspect.signature(value))
        except (TypeError, ValueError):
            signature = "(...)"
        lines += [
            f"## dp.{name}",
            "",
            "```text",
            f"dp.{name}{signature}",
            "",
            inspect.getdoc(value) or "",
            "```",
            "",
        ]
    return "\n".join(lines)


def configs() -> str:
    """All shipped configs whole: every number stands beside its source."""
    lines = [
        "# Configs",
        "",
        "Every number stands beside its source; what nobody publishes is called an estimate.",
        "",
    ]
    for folder in sorted(path.name for path in config_root().iterdir() if path.is_dir()):
        names = available(folder)
        if not names:
            continue
        lines += [f"## {folder}", ""]
        for name in names:
            text = (config_root() / folder / f"{name}.toml").read_text(encoding="utf-8")
            lines += [f"### {name}", "", "```toml", text.rstrip(), "```", ""]
    return "\n".join(lines)


def measurements() -> str:
    """The tables of measurements in the repository: how many rows, from which sources."""
    lines = [
        "# Measurements and their sources",
        "",
        "Tables of measurements that calibrations, stacks and tests rest on. Every row names its source; the",
        "licences are those of the sources.",
        "",
        "| table | rows | sources |",
        "|---|---:|---|",
    ]
    for path in sorted(ROOT.glob("studies/*/data/*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        sources = sorted(
            {re.split(r"@| \(| full text| id ", row.get("source", ""))[0] for row in rows} - {""}
        )
        shown = "; ".join(source.replace("|", "/") for source in sources[:SHOWN])
        more = f"; and {len(sources) - SHOWN} more" if len(sources) > SHOWN else ""
        lines.append(f"| `{path.relative_to(ROOT)}` | {len(rows):,} | {shown}{more} |")
    return "\n".join(lines) + "\n"


for page, make in {
    "physics": physics,
    "commands": commands,
    "reference": reference,
    "configs": configs,
    "measurements": measurements,
}.items():
    write(f"{page}.md", make())

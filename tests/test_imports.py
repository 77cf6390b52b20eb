"""The architecture as a test: imports point down only, and importing the library changes nothing."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffperf

PACKAGE = Path(diffperf.__file__).parent
# Every module may import from the layers before its own, and from its own.
LAYERS = (
    ("errors", "units", "quantity", "relax", "compiler"),
    ("report",),
    ("software",),
    ("hardware",),
    ("workload",),
    ("cost",),
    ("estimate",),
    ("load",),
    ("explore",),
    ("cli",),
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.parent != PACKAGE or path.name not in ("__init__.py", "__main__.py")
)


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported_rooms(source: str) -> Iterator[tuple[int, str]]:
    """(line, room) of every import from the package, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "diffperf":
                yield node.lineno, rest.partition(".")[0]


def _upward(source: str, room: str) -> list[str]:
    return [
        f"line {line}: {room} imports {other}"
        for line, other in _imported_rooms(source)
        if RANK.get(other, 99) > RANK[room]
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    assert _room(path) in RANK, "a room that LAYERS does not know"
    assert _upward(path.read_text(encoding="utf-8"), _room(path)) == []


def test_an_upward_import_is_found():
    assert _upward("from diffperf.load import load", "cost") == ["line 1: cost imports load"]
    assert _upward("import diffperf.cli", "explore") == ["line 1: explore imports cli"]
    assert _upward("def f():\n    from diffperf import estimate", "workload") == [
        "line 2: workload imports estimate"
    ]
    assert _upward("from diffperf import nowhere", "cli") == ["line 1: cli imports nowhere"]
    assert _upward("from diffperf.relax import Exact\nimport jax", "workload") == []


def _touches_jax_config(source: str) -> list[int]:
    """Lines that set a global JAX flag."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("config.update")
    ]


@pytest.mark.parametrize(
    "path", [p for p in MODULES if _room(p) != "cli"], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_module_sets_global_jax_flags(path):
    assert _touches_jax_config(path.read_text(encoding="utf-8")) == []


def test_a_global_flag_is_found():
    assert _touches_jax_config("import jax\njax.config.update('jax_enable_x64', True)") == [2]


def test_importing_the_library_changes_nothing():
    """Neither a flag, nor the choice of a device: a caller may still set both."""
    program = (
        "import jax\n"
        "import os\n"
        "before, environment = dict(jax.config.values), dict(os.environ)\n"
        "from diffperf import *\n"
        "from jax._src import xla_bridge\n"
        "assert dict(jax.config.values) == before and dict(os.environ) == environment\n"
        "assert not xla_bridge._backends, 'a device was chosen'\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

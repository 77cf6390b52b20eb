"""The architecture as a test: imports point down only, and importing the library changes nothing."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import diffperf

PACKAGE = Path(diffperf.__file__).parent
# Every room may import from the layers before its own, and from its own.
LAYERS = (
    ("errors", "units", "quantity", "trees", "staircase", "relax", "interrupts", "tracing"),
    ("numpy_operations",),
    ("operation",),
    ("flat_program",),
    ("interpreter", "batch_last", "shared_values", "traced_once"),
    ("compiler",),
    ("stored_derivatives",),
    ("report",),
    ("software",),
    ("hardware",),
    ("workload",),
    ("cost",),
    ("estimate",),
    ("load",),
    ("explore",),
    ("api",),
    ("page",),
    ("cli",),
)
# The same inside the estimator: a kernel or a link knows nothing of layers and steps.
ESTIMATE_LAYERS = (
    ("kernels", "network"),
    ("energy", "exposure", "phase_tables"),
    ("stage_time", "pass_time"),
    ("drafting",),
    ("training", "inference"),
    ("serving", "long_run"),
    ("phases",),
)
MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.parent != PACKAGE or path.name not in ("__init__.py", "__main__.py")
)
ESTIMATE = sorted(
    path for path in (PACKAGE / "estimate").rglob("*.py") if path != PACKAGE / "estimate" / "__init__.py"
)


def _room(path: Path, inside: Path = PACKAGE) -> str:
    return path.relative_to(inside).parts[0].removesuffix(".py")


def _imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import from the package, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "diffperf":
                yield node.lineno, name


def _upward(
    source: str, room: str, layers: tuple[tuple[str, ...], ...] = LAYERS, inside: str = "diffperf"
) -> list[str]:
    """The imports of a module of a room that point up, or to a room that the layers inside a package do
    not know."""
    rank = {name: rank for rank, names in enumerate(layers) for name in names}
    imported = [
        (line, name.removeprefix(f"{inside}.").partition(".")[0])
        for line, name in _imports(source)
        if f"{name}.".startswith(f"{inside}.")
    ]
    return [
        f"line {line}: {room} imports {other}"
        for line, other in imported
        if rank.get(other, len(layers)) > rank[room]
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_point_down(path):
    assert any(_room(path) in rooms for rooms in LAYERS), "a room that LAYERS does not know"
    assert _upward(path.read_text(encoding="utf-8"), _room(path)) == []


@pytest.mark.parametrize("path", ESTIMATE, ids=_name)
def test_imports_inside_the_estimator_point_down(path):
    room = _room(path, PACKAGE / "estimate")
    assert any(room in rooms for rooms in ESTIMATE_LAYERS), "a room that ESTIMATE_LAYERS does not know"
    source = path.read_text(encoding="utf-8")
    assert _upward(source, room, ESTIMATE_LAYERS, "diffperf.estimate") == []


def test_an_upward_import_is_found():
    assert _upward("from diffperf.load import load", "cost") == ["line 1: cost imports load"]
    assert _upward("import diffperf.cli", "explore") == ["line 1: explore imports cli"]
    assert _upward("def f():\n    from diffperf import estimate", "workload") == [
        "line 2: workload imports estimate"
    ]
    assert _upward("from diffperf import nowhere", "cli") == ["line 1: cli imports nowhere"]
    assert _upward("from diffperf.relax import Exact\nimport jax", "workload") == []


@pytest.mark.parametrize(
    ("source", "room", "upward"),
    [
        ("from diffperf.estimate.energy import energy", "kernels", "energy"),
        ("from diffperf.estimate import training", "network", "training"),
        ("import diffperf.estimate.phases", "training", "phases"),
        ("from diffperf.estimate.nowhere import x", "phases", "nowhere"),
        ("from diffperf.estimate.kernels.gemm import gemm_work", "network", None),
        ("from diffperf.workload.model import Model", "kernels", None),
    ],
)
def test_an_upward_import_inside_the_estimator_is_found(source, room, upward):
    expected = [] if upward is None else [f"line 1: {room} imports {upward}"]
    assert _upward(source, room, ESTIMATE_LAYERS, "diffperf.estimate") == expected


def _repeated(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Names of several files, packages' `__init__.py` aside, with their folders."""
    folders = defaultdict(list)
    for path in paths:
        if path.name != "__init__.py":
            folders[path.name].append(str(path.parent))
    return {name: sorted(places) for name, places in folders.items() if len(places) > 1}


def test_no_file_name_occurs_twice():
    """A file is found by its name, and a traceback or an editor's tab says which file it is."""
    assert _repeated(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")) == {}


def test_a_repeated_file_name_is_found():
    paths = ["a/tables.py", "b/tables.py", "a/__init__.py", "b/__init__.py", "b/other.py"]
    assert _repeated(map(Path, paths)) == {"tables.py": ["a", "b"]}


def _touches_jax_config(source: str) -> list[int]:
    """Lines that set a global JAX flag."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("config.update")
    ]


@pytest.mark.parametrize("path", [path for path in MODULES if _room(path) != "cli"], ids=_name)
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

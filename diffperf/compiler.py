"""How XLA compiles the estimator, and programs that stay compiled from one process to the next."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import logging
import os
import pickle
import platform
import secrets
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import serialize_executable

from diffperf.quantity import Label, is_traced

# XLA ends the process over a flag that it does not know, so flags are set only for releases of JAX that were
# seen to know them.
_KNOWN_TO = ((0, 10),)
_QUICK_FLAGS = {
    # XLA's newer CPU emitter sets up a compiler of its own for each of the hundreds of small fusions of an
    # estimate.
    "xla_cpu_use_fusion_emitters": "false",
    # XLA hands sums over an axis to a library (YNNPACK) that is made for large arrays. On the short axes of
    # estimates it takes longer to start than to add, and nothing is fused with it.
    "xla_cpu_experimental_ynn_fusion_type": "",
}

# The folder of stored programs for calls in a `storing_in` block.
_CHOSEN_FOLDER: ContextVar[Path | None] = ContextVar("folder of stored programs", default=None)
# Compiler options of programs that somebody waits for, and that then run a few times only.
_UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

_KEPT = 64  # stored programs, of about half a megabyte each; older ones are deleted

_LOG = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compile_quickly() -> None:
    """Halves the time that CPUs take to compile estimates, and makes the programs up to twice as fast.

    It holds for programs compiled after the call. Call it before the first computation: XLA reads its flags
    once, from `XLA_FLAGS`. A choice already made there stays.
    """
    if jax.__version_info__[:2] in _KNOWN_TO:
        chosen = os.environ.get("XLA_FLAGS", "")
        added = [f"--{flag}={value}" for flag, value in _QUICK_FLAGS.items() if flag not in chosen]
        os.environ["XLA_FLAGS"] = " ".join([*chosen.split(), *added])


def user_folder() -> Path | None:
    """The user's folder of compiled programs: $DIFFPERF_CACHE ("off" for none), by default in their cache.

    The folder is created; None where that is impossible or it cannot be written.
    """
    chosen = os.environ.get("DIFFPERF_CACHE")
    if chosen in ("", "off"):
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffperf"
    folder = cache if chosen is None else Path(chosen)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def storing_in(folder: Path | None) -> Iterator[None]:
    """Programs of calls inside the block are stored in a folder, where JAX has none of its own."""
    token = _CHOSEN_FOLDER.set(folder)
    try:
        yield
    finally:
        _CHOSEN_FOLDER.reset(token)


def stored(
    *static: str, optimized: bool = True
) -> Callable[[Callable[Parameters, Result]], "StoredFunction[Parameters, Result]"]:
    """A decorator that jits a function and stores its programs (see `StoredFunction`).

    `static` names the arguments that a program is compiled for, as `static_argnames` does for `jax.jit`.
    Programs that are not `optimized` take half as long to compile, and up to three times as long to run.
    """
    return lambda function: StoredFunction(function, static, {} if optimized else _UNOPTIMIZED)


def stored_closure(
    function: Callable[Parameters, Result], constants: str, *, optimized: bool = True
) -> "StoredFunction[Parameters, Result]":
    """A function jitted and stored (see `StoredFunction`) that is made from more than its arguments.

    `constants` is a digest of everything that the function has from around it, such as `digest_of` a tree: a
    program is used again only where it is the same. Constants make programs faster than arguments do, because
    alternatives that have no weight are left out.
    """
    return StoredFunction(function, (), {} if optimized else _UNOPTIMIZED, constants)


def digest_of(*parts: Any) -> str:
    """A digest of trees and texts: equal where all numbers, texts and structures are."""
    content = hashlib.sha256()
    for part in parts:
        for text in [part] if isinstance(part, str) else _describe(part):
            content.update(text.encode() + b"\n")
        for leaf in [] if isinstance(part, str) else jax.tree.leaves(part):
            content.update(np.asarray(leaf).tobytes())
    return content.hexdigest()


class StoredFunction(Generic[Parameters, Result]):
    """A jitted function whose programs are stored: in JAX's folder of compiled programs, if it has one, else
    in that of `storing_in`.

    JAX stores programs too, but has to trace the function to know which program it needs, which takes a
    second for an estimate. Here the program is known by what it is made from: the function, the sources of
    this package and the structure of the arguments. Where no program can be stored (no folder, not a CPU,
    arguments that are traced) the function is jitted as usual.
    """

    def __init__(
        self,
        function: Callable[Parameters, Result],
        static: tuple[str, ...],
        options: dict[str, Any] | None = None,
        constants: str = "",
    ):
        functools.update_wrapper(self, function)
        self.function, self.static, self.options = function, static, options or {}
        self.constants = constants
        self.jitted = jax.jit(function, static_argnames=static, compiler_options=self.options or None)
        self.programs: dict[Any, _Program | None] = {}  # None: jitted, because the stored program failed

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        arguments = inspect.signature(self.function).bind(*args, **kwargs).arguments
        static = {name: arguments.pop(name) for name in self.static}
        leaves, structure = jax.tree.flatten(arguments)
        folder = _folder()
        if folder is None or any(map(is_traced, leaves)):
            return self.jitted(*args, **kwargs)
        key = (folder, *static.values(), structure, *map(jax.typeof, leaves))
        if key not in self.programs:
            self.programs[key] = self._first_run(self._file(folder, static, arguments), static, arguments)
        program = self.programs[key]
        return self.jitted(*args, **kwargs) if program is None else program(leaves)

    def _first_run(self, file: Path, static: dict[str, Any], arguments: dict[str, Any]) -> "_Program | None":
        """The program of a file, written first if need be; `None` if it cannot be written, read or run."""
        leaves, start = jax.tree.leaves(arguments), time.perf_counter()
        with contextlib.suppress(Exception):  # whatever is wrong with the file, a new one may mend it
            program = _Program.read(file).tried(leaves)
            _LOG.debug("%s: stored program %s, first run after %.2f s", *self._called(file, start))
            return program
        if file.exists() and file.stat().st_size == 0:
            return None
        with contextlib.suppress(Exception):  # errors of the function itself come again when it is jitted
            _LOG.debug("%s: compiles a program", self.function.__qualname__)
            _write(file, functools.partial(self.function, **static), arguments, self.options)
            program = _Program.read(file).tried(leaves)
            _LOG.debug("%s: compiled and stored %s, first run after %.2f s", *self._called(file, start))
            return program
        with contextlib.suppress(OSError):  # an empty file spares other processes the attempt
            file.write_bytes(b"")
        return None

    def _called(self, file: Path, start: float) -> tuple[str, Path, float]:
        """What messages say of a program: its function, its file and the seconds since `start`."""
        return self.function.__qualname__, file, time.perf_counter() - start

    def _file(self, folder: Path, static: dict[str, Any], arguments: dict[str, Any]) -> Path:
        """The file of the program for these static arguments and for arguments of this structure."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        precision = "float64" if _setting("jax_enable_x64") else "float32"
        options = repr(self.options)
        parts = [
            *_environment(),
            precision,
            name,
            options,
            self.constants,
            repr(static),
            *_describe(arguments),
        ]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return folder / f"{digest}.program"


@dataclasses.dataclass(frozen=True)
class _Program:
    """A compiled function of flat arguments.

    - `skeleton`: a result whose leaves are their places among the flat results. The structure of a tree
      cannot be pickled itself: equinox's holds sentinels, which are compared by identity.
    """

    compiled: jax.stages.Compiled
    skeleton: Any

    @classmethod
    def read(cls, file: Path) -> "_Program":
        # Unpickling runs what the file says, as does a compiled program: the folder is the user's own.
        executable, inputs, outputs, skeleton = pickle.loads(zlib.decompress(file.read_bytes()))
        devices = jax.local_devices()[:1]
        loaded = serialize_executable.deserialize_and_load(
            executable, inputs, outputs, execution_devices=devices
        )
        return cls(loaded, skeleton)

    def tried(self, leaves: list[Any]) -> "_Program":
        """The program itself, after it has run; raises an error if it does not."""
        jax.block_until_ready(self(leaves))
        return self

    def __call__(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.skeleton), self.compiled(*leaves))


def _write(
    file: Path, function: Callable[..., Any], arguments: dict[str, Any], options: dict[str, Any]
) -> None:
    """Compiles a function for arguments of a structure, and writes the program for `_Program.read`."""
    leaves, structure = jax.tree.flatten(arguments)
    made = []

    def flat(*leaves: Any) -> list[Any]:
        results, result_structure = jax.tree.flatten(function(**jax.tree.unflatten(structure, leaves)))
        made.append(result_structure)
        return results

    # XLA serializes a program that JAX read from its own store without its machine code. Under a name that
    # is new, JAX finds none there; the one that it stores in turn is of no use to anybody.
    flat.__name__ = f"stored_{secrets.token_hex(16)}"
    compiled = jax.jit(flat).lower(*leaves).compile(compiler_options=options or None)
    for useless in file.parent.glob(f"*{flat.__name__}*"):
        useless.unlink(missing_ok=True)
    skeleton = jax.tree.unflatten(made[0], range(made[0].num_leaves))
    content = pickle.dumps((*serialize_executable.serialize(compiled), skeleton))
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:  # no process finds half a file
        part = Path(folder) / file.name
        part.write_bytes(zlib.compress(content, level=1))
        part.replace(file)
    newest_first = sorted(file.parent.glob("*.program"), key=os.path.getmtime, reverse=True)
    for old in newest_first[_KEPT:]:
        old.unlink(missing_ok=True)


def _folder() -> Path | None:
    """The folder of compiled programs, where programs can be stored as JAX is configured."""
    folder, device = _setting("jax_compilation_cache_dir"), _setting("jax_default_device")
    folder = folder or _CHOSEN_FOLDER.get()
    checked = _setting("jax_disable_jit") or _setting("jax_debug_nans")
    if not folder or device is not None or checked or jax.default_backend() != "cpu":
        return None
    return Path(folder)


def _setting(name: str) -> Any:
    """How JAX is configured; type checkers do not know the names of its settings."""
    return getattr(jax.config, name)


@functools.cache
def _environment() -> tuple[str, ...]:
    """What a program depends on beside its function and arguments: sources, releases, flags, the machine."""
    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        sources.update(path.read_bytes())
    releases = (importlib.metadata.version(name) for name in ("jax", "jaxlib", "equinox"))
    return sources.hexdigest(), *releases, os.environ.get("XLA_FLAGS", ""), _processor()


def _processor() -> str:
    """The architecture of this machine, and the instruction sets that code compiled for it may use."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
        return " ".join([platform.machine(), *sorted(features)])
    return f"{platform.machine()} {platform.processor()}"


def _describe(node: Any) -> Iterator[str]:
    """The structure of a tree of arguments: all that a program is compiled for, without the numbers."""
    if isinstance(node, eqx.Module):
        yield f"{type(node).__module__}.{type(node).__qualname__}"
        for field in dataclasses.fields(node):
            value = getattr(node, field.name)
            static = field.metadata.get("static") and not isinstance(value, Label)
            yield from [field.name, repr(value)] if static else [field.name, *_describe(value)]
    elif isinstance(node, dict):
        for name, value in sorted(node.items()):
            yield from [str(name), *_describe(value)]
    elif isinstance(node, tuple | list):
        yield f"{type(node).__name__} of {len(node)}"
        for member in node:
            yield from _describe(member)
    elif isinstance(node, Label) or node is None:
        yield type(node).__name__
    else:
        kind = jax.typeof(node)
        yield f"{kind} {kind.weak_type}"

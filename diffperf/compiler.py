"""Computation of estimates that somebody waits for: by NumPy at first, by programs that XLA compiles
where that pays, both kept from one process to the next.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import logging
import math
import os
import pickle
import platform
import secrets
import tempfile
import threading
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

from diffperf.interpreter import InterpretedProgram
from diffperf.quantity import Label, is_traced
from diffperf.tracing import without_garbage_collection

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
# Seconds of evaluation by NumPy, for each operation of a program, after which the program is compiled: about
# as long as compiling it takes, so that it takes no more than twice as long as whatever would have been best.
PATIENCE = 5e-4

# XLA compiles without optimizing the code of the processor.
_LEAST_EFFORT = {"xla_backend_optimization_level": 0}

# XLA's pass that takes optimization barriers out, before loops are fused.
_TAKES_BARRIERS_OUT = "cse_barrier_expander"

# Threads trace one after the other. Python runs one of them at a time anyway, and a program that is traced
# without the others in between is compiled while they are traced.
_ONE_AT_A_TIME = threading.RLock()

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


def barrier_options() -> dict[str, Any]:
    """Compiler options (of `jax.jit`) for programs of `compute_once` and `vmap_last`, on CPUs: XLA keeps
    optimization barriers until loops are fused, so that it computes what is behind them once. None elsewhere.
    """
    known = jax.default_backend() == "cpu" and jax.__version_info__[:2] in _KNOWN_TO
    return {"xla_disable_hlo_passes": _TAKES_BARRIERS_OUT} if known else {}


def throughput_options() -> dict[str, Any]:
    """Compiler options (of `jax.jit`) for programs that evaluate many configurations at once, on CPUs.

    Values of `compute_once` and `vmap_last` are computed once (`barrier_options`). On processors with
    AVX-512, vectors have 512 bits: XLA takes 256 by default, because some processors lower their clock for
    wider ones. Exact estimates were 5 to 25 % faster on an AMD EPYC. No options on other devices.
    """
    options = barrier_options()
    wide = options and "avx512f" in _processor().split()
    return options | ({"xla_cpu_prefer_vector_width": 512} if wide else {})


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
    *static: str, often: bool = False, by_numpy: bool = False
) -> Callable[[Callable[Parameters, Result]], "StoredFunction[Parameters, Result]"]:
    """A decorator that makes a function a `StoredFunction`.

    `static` names the arguments that a program is made for, as `static_argnames` does for `jax.jit`.
    `often` says that the function runs many times, or for many configurations at once. What NumPy always
    evaluates (`by_numpy`) has the same digits however often it has run.
    """
    return lambda function: StoredFunction(function, static, often=often, by_numpy=by_numpy)


def stored_closure(
    function: Callable[Parameters, Result],
    constants: str,
    *,
    static: tuple[str, ...] = (),
    often: bool = False,
    by_numpy: bool = False,
    least_effort: bool = False,
) -> "StoredFunction[Parameters, Result]":
    """A `StoredFunction` that is made from more than its arguments.

    `constants` is a digest of everything that the function has from around it, such as `digest_of` a tree: a
    program is used again only where it is the same. Constants make programs faster than arguments do, because
    alternatives that have no weight are left out. With the `least_effort`, XLA compiles in two thirds of the
    time and does not optimize the code of the processor.
    """
    return StoredFunction(
        function, static, often=often, constants=constants, by_numpy=by_numpy, least_effort=least_effort
    )


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
    """A function that is traced once, and whose programs are stored.

    A function that does not run `often` is evaluated by NumPy (`diffperf.interpreter`) until that has taken
    as long as compiling it would (`PATIENCE`); then it is compiled, unless NumPy always evaluates it
    (`by_numpy`). One that does is compiled at once.

    JAX stores programs too, but has to trace the function to know which program it needs, which takes a
    second for an estimate. Here the program is known by what it is made from: the function, the sources of
    this package and the structure of the arguments. Programs are stored in JAX's folder of compiled programs,
    if it has one, else in that of `storing_in`; where there is none, they last as long as the process. Where
    arguments are traced, or JAX looks for NaNs, the function is jitted as usual.
    """

    def __init__(
        self,
        function: Callable[Parameters, Result],
        static: tuple[str, ...],
        *,
        often: bool = False,
        constants: str = "",
        by_numpy: bool = False,
        least_effort: bool = False,
    ):
        functools.update_wrapper(self, function)
        self.function, self.static, self.signature = function, static, inspect.signature(function)
        self.often, self.constants, self.by_numpy = often, constants, by_numpy
        self.least_effort = least_effort
        self.programs: dict[Any, _Compiled | _Interpreted | None] = {}  # None: jitted

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """The compiler options. They depend on the machine, which JAX looks at when it is first asked."""
        options = throughput_options() if self.often else barrier_options()
        return options | _LEAST_EFFORT if options and self.least_effort else options

    @functools.cached_property
    def jitted(self) -> Callable[Parameters, Result]:
        """The function as JAX compiles it by itself."""
        return jax.jit(self.function, static_argnames=self.static, compiler_options=self.options or None)

    @functools.cached_property
    def nested(self) -> Callable[Parameters, Result]:
        """The function as a part of programs that JAX traces, which have compiler options of their own."""
        return jax.jit(self.function, static_argnames=self.static)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        arguments = self.signature.bind(*args, **kwargs).arguments
        static = {name: arguments.pop(name) for name in self.static}
        leaves, structure = jax.tree.flatten(arguments)
        if any(map(is_traced, leaves)) or _setting("jax_disable_jit") or _setting("jax_debug_nans"):
            return self.nested(*args, **kwargs)
        folder = _folder()
        key = (folder, _setting("jax_enable_x64"), *static.values(), structure, *map(jax.typeof, leaves))
        if key not in self.programs:
            if len(self.programs) >= _KEPT:
                self.programs.pop(next(iter(self.programs)))
            self.programs[key] = self._found(folder, static, arguments)
        program = self.programs[key]
        if isinstance(program, _Interpreted) and program.is_worth_compiling and not self.by_numpy:
            program = self.programs[key] = self._compiled(folder, static, arguments)
        return self.jitted(*args, **kwargs) if program is None else program(leaves)

    def is_stored(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> bool:
        """Whether a program for such arguments lies in the folder, so that nothing has to be compiled."""
        arguments = self.signature.bind(*args, **kwargs).arguments
        static = {name: arguments.pop(name) for name in self.static}
        folder = _folder()
        if folder is None:
            return False
        file = self._file(folder, static, arguments)
        return file.exists() and file.stat().st_size > 0

    def _found(
        self, folder: Path | None, static: dict[str, Any], arguments: dict[str, Any]
    ) -> "_Compiled | _Interpreted | None":
        """The program for arguments of this structure: stored, or else made."""
        if self.often:
            return self._compiled(folder, static, arguments)
        if folder is None:
            return self._interpreted(static, arguments)
        file, start = self._file(folder, static, arguments), time.perf_counter()
        if file.exists() and file.stat().st_size:
            return self._compiled(folder, static, arguments)
        file = file.with_suffix(".interpreted")
        with contextlib.suppress(Exception):  # whatever is wrong with the file, a new one may mend it
            program = _Interpreted.read(file)
            _LOG.debug("%s: program for NumPy %s, read in %.2f s", *self._called(file, start))
            return program
        program = self._interpreted(static, arguments)
        try:
            _store(file, program.stored)
        except Exception as problem:  # it is of use without being stored
            _LOG.debug("%s: not stored: %s", self.function.__qualname__, problem)
        return program

    def _interpreted(self, static: dict[str, Any], arguments: dict[str, Any]) -> "_Interpreted":
        """A program that NumPy evaluates."""
        leaves, (flat, made) = jax.tree.leaves(arguments), self._flat(static, arguments)
        with _ONE_AT_A_TIME, without_garbage_collection():
            start = time.perf_counter()
            program = InterpretedProgram(jax.make_jaxpr(flat)(*leaves))
        _LOG.debug("%s: traced in %.2f s", self.function.__qualname__, time.perf_counter() - start)
        return _Interpreted(program, _skeleton(made[0]))

    def _compiled(
        self, folder: Path | None, static: dict[str, Any], arguments: dict[str, Any]
    ) -> "_Compiled | None":
        """The program of a file, written first if need be; `None` if it cannot be written, read or run."""
        if folder is None or _setting("jax_default_device") is not None or jax.default_backend() != "cpu":
            return None
        file, leaves, start = (
            self._file(folder, static, arguments),
            jax.tree.leaves(arguments),
            time.perf_counter(),
        )
        with contextlib.suppress(Exception):  # whatever is wrong with the file, a new one may mend it
            program = _Compiled.read(file).tried(leaves)
            _LOG.debug("%s: stored program %s, first run after %.2f s", *self._called(file, start))
            return program
        if file.exists() and file.stat().st_size == 0:
            return None
        with contextlib.suppress(Exception):  # errors of the function itself come again when it is jitted
            _LOG.debug("%s: compiles a program", self.function.__qualname__)
            flat, made = self._flat(static, arguments)
            program = _compiled_and_stored(file, flat, leaves, made, self.options).tried(leaves)
            _LOG.debug("%s: compiled and stored %s, first run after %.2f s", *self._called(file, start))
            return program
        with contextlib.suppress(OSError):  # an empty file spares other processes the attempt
            file.write_bytes(b"")
        return None

    def _flat(self, static: dict[str, Any], arguments: dict[str, Any]) -> tuple[Callable[..., list], list]:
        """The function from the leaves of its arguments to those of its result, and the list to which it
        appends the structure of the result when it is traced.
        """
        return flattened(functools.partial(self.function, **static), jax.tree.structure(arguments))

    def _called(self, file: Path, start: float) -> tuple[str, Path, float]:
        """Description of a program in messages: its function, its file and the seconds since `start`."""
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


def flattened(function: Callable[..., Any], structure: Any) -> tuple[Callable[..., list], list]:
    """A function of named arguments, whose tree has a structure, as one from the leaves of that tree to the
    leaves of its result; and the list to which it appends the structure of the result when it is traced.
    """
    made: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        results, result_structure = jax.tree.flatten(function(**jax.tree.unflatten(structure, leaves)))
        made.append(result_structure)
        return results

    return flat, made


def _skeleton(structure: Any) -> Any:
    """A result whose leaves are their places among the flat results. The structure of a tree cannot be
    pickled itself: equinox's holds sentinels, which are compared by identity.
    """
    return jax.tree.unflatten(structure, range(structure.num_leaves))


@dataclasses.dataclass
class _Interpreted:
    """A function of flat arguments that NumPy evaluates.

    - `seconds`: for how long it has kept its caller waiting, less the time for which nobody called it. Who
      asks now and then, as the page does when a person changes a number, never waits for a compilation.
    """

    program: InterpretedProgram
    skeleton: Any
    seconds: float = 0.0
    ended: float = math.inf  # of the last call

    @classmethod
    def read(cls, file: Path) -> "_Interpreted":
        # Unpickling runs what the file says: the folder is the user's own.
        program, skeleton = pickle.loads(zlib.decompress(file.read_bytes()))
        return cls(program=program, skeleton=skeleton)

    @property
    def stored(self) -> bytes:
        return pickle.dumps((self.program, self.skeleton))

    @property
    def is_worth_compiling(self) -> bool:
        operations = len(self.program.steps)  # none where a result is the same for all numbers
        return operations > 0 and self.seconds > PATIENCE * operations

    def __call__(self, leaves: list[Any]) -> Any:
        start = time.perf_counter()
        results = self.program(*leaves)
        idle, self.ended = max(start - self.ended, 0.0), time.perf_counter()
        self.seconds = max(self.seconds - idle, 0.0) + self.ended - start
        return jax.tree.unflatten(jax.tree.structure(self.skeleton), jax.device_put(results))


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A compiled function of flat arguments."""

    compiled: jax.stages.Compiled
    skeleton: Any

    @classmethod
    def read(cls, file: Path) -> "_Compiled":
        # Unpickling runs what the file says, as does a compiled program: the folder is the user's own.
        executable, inputs, outputs, skeleton = pickle.loads(zlib.decompress(file.read_bytes()))
        devices = jax.local_devices()[:1]
        loaded = serialize_executable.deserialize_and_load(
            executable, inputs, outputs, execution_devices=devices
        )
        return cls(loaded, skeleton)

    def tried(self, leaves: list[Any]) -> "_Compiled":
        """The program itself, after it has run; raises an error if it does not."""
        jax.block_until_ready(self(leaves))
        return self

    def __call__(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.skeleton), self.compiled(*leaves))


def _compiled_and_stored(
    file: Path, flat: Callable[..., list], leaves: list[Any], made: list[Any], options: dict[str, Any]
) -> _Compiled:
    """The compiled program of a function for leaves of these types, in a file that `_Compiled.read` reads."""
    # XLA serializes a program that JAX read from its own store without its machine code. Under a name that
    # is new, JAX finds none there; the one that it stores in turn is of no use to anybody.
    flat.__name__ = f"stored_{secrets.token_hex(16)}"
    with _ONE_AT_A_TIME, without_garbage_collection():
        lowered = jax.jit(flat).lower(*leaves)
    compiled = lowered.compile(compiler_options=options or None)
    for useless in file.parent.glob(f"*{flat.__name__}*"):
        useless.unlink(missing_ok=True)
    skeleton = _skeleton(made[0])
    _store(file, pickle.dumps((*serialize_executable.serialize(compiled), skeleton)))
    return _Compiled(compiled, skeleton)


def _store(file: Path, content: bytes) -> None:
    """Writes a program, and deletes the oldest of too many."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:  # no process finds half a file
        part = Path(folder) / file.name
        part.write_bytes(zlib.compress(content, level=1))
        part.replace(file)
    kept = file.parent.glob(f"*{file.suffix}")
    for old in sorted(kept, key=os.path.getmtime, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)


def _folder() -> Path | None:
    """The folder of stored programs."""
    folder = _setting("jax_compilation_cache_dir") or _CHOSEN_FOLDER.get()
    return Path(folder) if folder else None


def _setting(name: str) -> Any:
    """A setting of JAX; type checkers do not know the names of its settings."""
    return getattr(jax.config, name)


@functools.cache
def _environment() -> tuple[str, ...]:
    """Dependencies of a program beside its function and arguments: sources, releases, flags, the machine."""
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

"""The compiler: flags are set when asked for, never over a choice made; programs are stored and found."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreted_jit import compiled_jit

import diffperf as dp
from diffperf.compiler import _KNOWN_TO, StoredFunction
from diffperf.quantity import Label, label

PROGRAM = (
    "import os, diffperf as dp; dp.compile_quickly(); dp.compile_quickly(); print(os.environ['XLA_FLAGS'])"
)

EMITTER, LIBRARY = "--xla_cpu_use_fusion_emitters", "--xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.skipif(jax.__version_info__[:2] not in _KNOWN_TO, reason="a release whose flags are not set")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{EMITTER}=false {LIBRARY}="),
        ("--xla_cpu_enable_fast_math=false", f"--xla_cpu_enable_fast_math=false {EMITTER}=false {LIBRARY}="),
        (f"{EMITTER}=true", f"{EMITTER}=true {LIBRARY}="),
        (f"{LIBRARY}=x {EMITTER}=true", f"{LIBRARY}=x {EMITTER}=true"),
    ],
)
def test_flags_are_added_once(before, after, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", before)
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == after


def test_xla_knows_the_flags():
    """It ends a process over one that it does not."""
    program = "import jax, diffperf as dp; dp.compile_quickly(); print(jax.jit(lambda x: 2 * x)(21))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "42"


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """`jax.jit` compiles, as it does outside the tests."""
    monkeypatch.setattr("jax.jit", compiled_jit)


class Point(eqx.Module):
    """Arguments and results of the functions that are stored here."""

    name: Label = label("name of the point")
    x: jax.Array = eqx.field(converter=jnp.asarray)


@pytest.fixture
def folder(tmp_path):
    """A folder of compiled programs, as the command line sets it."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    return tmp_path


def scaling(often: bool = True) -> tuple[StoredFunction, list[str]]:
    """A function as a new process would have it, and the list it writes to when it is traced."""
    traced: list[str] = []

    def scaled(point: Point, factors: dict[str, jax.Array], power: str) -> dict[str, Point]:
        traced.append(power)
        product = point.x * factors["a"] * factors["b"]
        return {"result": Point(point.name, product**2 if power == "square" else product)}

    return StoredFunction(scaled, ("power",), often=often), traced


def arguments(x: float, name: str = "one") -> tuple[Point, dict[str, np.ndarray]]:
    return Point(name, jnp.asarray(x)), {"a": np.asarray(2.0), "b": np.asarray(5.0)}


def test_a_stored_program_is_not_traced_again(folder):
    """Numbers and labels may differ; results have the structure that the function gives them."""
    first, traced = scaling()
    assert float(first(*arguments(3.0), "square")["result"].x) == 900.0
    assert traced == ["square"]
    assert len(list(folder.glob("*.program"))) == 1
    second, traced = scaling()
    result = second(*arguments(4.0, "another"), power="square")
    assert isinstance(result["result"], Point)
    assert float(result["result"].x) == 1600.0
    assert traced == []


def test_other_structures_have_programs_of_their_own(folder):
    function, traced = scaling()
    point, factors = arguments(3.0)
    assert float(function(point, factors, "one")["result"].x) == 30.0
    assert float(function(point, factors, "square")["result"].x) == 900.0
    assert function(Point("pair", jnp.ones(2)), factors, "one")["result"].x.shape == (2,)
    assert traced == ["one", "square", "one"]
    assert len(list(folder.glob("*.program"))) == 3


def test_a_damaged_file_is_mended(folder):
    scaling()[0](*arguments(3.0), "one")
    (file,) = folder.glob("*.program")
    file.write_bytes(file.read_bytes()[:1000])
    function, traced = scaling()
    assert float(function(*arguments(3.0), "one")["result"].x) == 30.0
    assert traced == ["one"]
    function, traced = scaling()
    assert float(function(*arguments(3.0), "one")["result"].x) == 30.0
    assert traced == []


def test_a_program_that_cannot_be_stored_is_jitted(folder, monkeypatch):
    """Once it has failed, an empty file spares other processes the attempt."""

    def fail(*_):
        raise ValueError("not on this machine")

    monkeypatch.setattr("diffperf.compiler.serialize_executable.serialize", fail)
    for _ in range(2):
        function, _ = scaling()
        assert float(function(*arguments(3.0), "one")["result"].x) == 30.0
        assert list(function.programs.values()) == [None]
    (file,) = folder.glob("*.program")
    assert file.stat().st_size == 0


def test_errors_of_the_function_are_its_own(folder):
    def refuse(x):
        raise KeyError("no such input")

    with pytest.raises(KeyError, match="no such input"):
        StoredFunction(refuse, ())(1.0)


def test_without_a_folder_nothing_is_stored():
    jax.config.update("jax_compilation_cache_dir", None)
    function, traced = scaling()
    assert float(function(*arguments(3.0), "one")["result"].x) == 30.0
    assert traced == ["one"]
    assert list(function.programs.values()) == [None]


@pytest.mark.parametrize("options", [{"often": False}, {"often": True}])
def test_traced_arguments_become_part_of_the_caller_s_program(folder, options):
    """Whatever the compiler options of the function by itself are: JAX refuses them inside a program."""
    function, _ = scaling(**options)
    point, factors = arguments(3.0)
    slope = jax.grad(lambda x: function(Point("one", x), factors, "square")["result"].x)(point.x)
    assert float(slope) == 600.0
    assert list(folder.glob("*.program")) == []


def test_wide_vectors_change_no_result():
    """Programs for many configurations give the numbers that others do, to rounding."""
    x = jnp.linspace(0.1, 9.0, 1001)
    function = jax.jit(lambda x: jnp.log(x) / (1 + x) - jnp.sqrt(x))
    wide = jax.jit(function.__wrapped__, compiler_options=dp.throughput_options() or None)
    np.testing.assert_allclose(wide(x), function(x), rtol=1e-14)


def test_few_programs_are_kept(folder, monkeypatch):
    monkeypatch.setattr("diffperf.compiler._KEPT", 2)
    function, _ = scaling()
    for size in range(1, 5):
        function(Point("one", jnp.ones(size)), arguments(1.0)[1], "one")
    assert len(list(folder.glob("*.program"))) == 2


def test_what_runs_a_few_times_is_evaluated_by_numpy(folder):
    """Its program is stored too, and not traced again by the next process."""
    first, traced = scaling(often=False)
    assert float(first(*arguments(3.0), "square")["result"].x) == 900.0
    assert traced == ["square"]
    assert [file.suffix for file in folder.iterdir()] == [".interpreted"]
    second, traced = scaling(often=False)
    assert float(second(*arguments(4.0), "square")["result"].x) == 1600.0
    assert traced == []


def test_what_runs_long_is_compiled(folder, monkeypatch):
    monkeypatch.setattr("diffperf.compiler.PATIENCE", 0.0)
    function, _ = scaling(often=False)
    assert float(function(*arguments(3.0), "square")["result"].x) == 900.0
    assert list(folder.glob("*.program")) == []
    assert float(function(*arguments(4.0), "square")["result"].x) == 1600.0
    assert len(list(folder.glob("*.program"))) == 1
    next_process, traced = scaling(often=False)
    assert float(next_process(*arguments(5.0), "square")["result"].x) == 2500.0
    assert traced == []


def test_what_numpy_always_evaluates_keeps_its_digits(folder, monkeypatch):
    monkeypatch.setattr("diffperf.compiler.PATIENCE", 0.0)
    function = StoredFunction(lambda x: jnp.exp(x) / 3, (), by_numpy=True)
    assert len({float(function(jnp.asarray(0.7))) for _ in range(4)}) == 1
    assert [file.suffix for file in folder.iterdir()] == [".interpreted"]


class Described(eqx.Module):
    """A result without numbers."""

    text: str = eqx.field(static=True)


@pytest.mark.parametrize("stores", [True, False])
def test_what_has_no_operations_is_never_compiled(folder, stores):
    """Compiling traces it anew, and no result comes sooner."""
    traced = []

    def described(x: jax.Array) -> Described:
        traced.append(x)
        return Described(f"of {x.ndim} dimensions")

    if not stores:
        jax.config.update("jax_compilation_cache_dir", None)
    function = StoredFunction(described, ())
    assert [function(jnp.ones(3)).text for _ in range(5)] == ["of 1 dimensions"] * 5
    assert len(traced) == 1
    assert len(list(folder.iterdir())) == (1 if stores else 0)


def test_without_a_folder_numpy_evaluates_as_well():
    function, traced = scaling(often=False)
    for x in (3.0, 4.0):
        assert float(function(*arguments(x), "one")["result"].x) == 10 * x
    assert traced == ["one"]


def test_a_damaged_file_for_numpy_is_mended(folder):
    scaling(often=False)[0](*arguments(3.0), "one")
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert float(scaling(often=False)[0](*arguments(3.0), "one")["result"].x) == 30.0
    function, traced = scaling(often=False)
    assert float(function(*arguments(3.0), "one")["result"].x) == 30.0
    assert traced == []


def test_who_asks_now_and_then_never_waits_for_a_compilation(folder, monkeypatch):
    """Time for which nobody asks makes up for time that NumPy has taken."""
    now = iter(range(1000))  # every look at the clock is a second later
    monkeypatch.setattr("diffperf.compiler.time.perf_counter", lambda: 1.0 * next(now))
    monkeypatch.setattr("diffperf.compiler.PATIENCE", 1.0)
    function, traced = scaling(often=False)
    point, factors = arguments(3.0)
    for _ in range(20):
        assert float(function(point, factors, "one")["result"].x) == 30.0
        (program,) = function.programs.values()
        assert program.seconds == 1.0
        program.ended -= 100.0
    assert list(folder.glob("*.program")) == []
    assert traced == ["one"]

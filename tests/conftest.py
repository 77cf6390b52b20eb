"""What all tests share: checked annotations, float64, few hypothesis examples, a compile cache, inputs."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import jax
import pytest

# Every function of diffperf checks its arguments and its result against its annotations, shapes of arrays
# included; an int passes for a float, as in PEP 484. The hook has to be in place before diffperf is imported.
# `DIFFPERF_CHECK_TYPES=0` leaves it out, to see what the checks cost.
if os.environ.get("DIFFPERF_CHECK_TYPES", "1") != "0":
    import annotation_checks

    annotation_checks.check_annotations_of("diffperf")

# NumPy evaluates what the tests run a few times only. `DIFFPERF_INTERPRET=0` compiles everything with XLA.
# Before any module of diffperf asks for `jax.jit`.
if os.environ.get("DIFFPERF_INTERPRET", "1") != "0":
    import interpreted_jit

    jax.jit = interpreted_jit.interpreted_jit

import diffperf as dp
from diffperf.hardware.system import System
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

# Most programs of the tests run a few times only, and XLA takes longer to optimize them than to run them as
# they are. XLA reads its flags before its first computation; processes that the tests start inherit them.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1",
)
dp.compile_quickly()
# Tracing makes many objects that live long, which the collector's defaults look through too often.
gc.set_threshold(50_000, 20, 50)
jax.config.update("jax_enable_x64", True)

# Programs that one worker of pytest-xdist has compiled are loaded by the others. The cache lasts for one run
# of the tests; `DIFFPERF_TEST_CACHE=FOLDER` keeps it for later runs.
if "DIFFPERF_TEST_CACHE" not in os.environ:
    folder = os.environ["DIFFPERF_TEST_CACHE"] = tempfile.mkdtemp(prefix="diffperf-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", os.environ["DIFFPERF_TEST_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

# The examples are the same on every run; `HYPOTHESIS_PROFILE=thorough` draws new and many more.
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """A worker that has grown beyond its share of memory forgets its compiled programs, which takes seconds.
    It reads them from the compile cache when it needs them. All tests together would fill 12 GB a worker.

    Workers share half of the memory of the machine: the processes that they start need the rest.
    """
    yield
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return
    page, workers = os.sysconf("SC_PAGE_SIZE"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = 0.5 * os.sysconf("SC_PHYS_PAGES") * page / workers
    if int(statm.read_text().split()[1]) * page > min(share, 6e9):
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def shared_compile_cache():
    """The command line sets where JAX keeps its programs: the next test finds those of the tests again."""
    yield
    if jax.config.values["jax_compilation_cache_dir"] != os.environ["DIFFPERF_TEST_CACHE"]:
        jax.config.update("jax_compilation_cache_dir", os.environ["DIFFPERF_TEST_CACHE"])


@pytest.fixture
def float32():
    """The test runs as most users do: without x64 mode."""
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="session")
def gpt() -> Model:
    return dp.load_model("gpt3-175b")


@pytest.fixture(scope="session")
def llama() -> Model:
    return dp.load_model("llama-2-7b")


@pytest.fixture(scope="session")
def system() -> System:
    return dp.load_system("dgx-a100", n_devices=64)


@pytest.fixture(scope="session")
def strategy() -> Strategy:
    """Every feature at work: tensor, pipeline and data parallelism, interleaving, sequence parallelism."""
    return dp.load_strategy({"tp": 8, "pp": 4, "virtual_stages": 2, "global_batch": 64}, n_devices=64)

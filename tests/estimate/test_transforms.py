"""One function under every transform: the same numbers compiled and mapped, and one compilation for whatever
changes.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import cast, draw, generate, leaves, outputs, traces, training, with_leaves

import diffperf as dp
from diffperf.flat_program import FlatProgram
from diffperf.quantity import Weights, replace
from diffperf.relax import Exact, Smooth

CHOICES = {
    "none": {},
    "full": {"recompute": "full", "sequence_parallel": False},
    "selective": {"recompute": "selective", "attention": "standard", "zero": "1"},
    "fp8": {"precision": "fp8", "kv_precision": "int8", "overlap_gradients": False},
    "mixed": {"recompute": {"none": 0.5, "full": 0.5}, "zero": {"0": 0.1, "1": 0.9}},
    "sharded": {
        "zero": "3",
        "zero_ranks": 2,
        "virtual_stages": 1,
        "schedule": "zero_bubble",
        "weight_precision": "fp32",
    },
    "split": {
        "cp": 2,
        "dp": 1,
        "context_parallel": "all_to_all",
        "order": "dp-tp-cp-pp",
        "overlap_tensor": True,
    },
    "experts": {
        "ep": 8,
        "expert_tp": 2,
        "capacity_factor": 1.5,
        "virtual_stages": 1,
        "schedule": "dualpipe",
        "zero": "2",
    },
}


def _strategy(**choices):
    return dp.load_strategy(
        {"tp": 8, "pp": 4, "virtual_stages": 2, "global_batch": 64, **choices}, n_devices=64
    )


@pytest.fixture(scope="module")
def deepseek():
    """Dense layers and experts, shared ones, latent attention, a module that predicts further tokens."""
    return dp.load_model("deepseek-v3")


def _same(a, b, rtol):
    a, b = outputs(a), outputs(b)
    assert a.keys() == b.keys()
    for path in a:
        np.testing.assert_allclose(
            np.asarray(a[path]), np.asarray(b[path]), rtol=rtol, atol=1e-12, err_msg=path
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt", "none"),
        ("gpt", "mixed"),
        ("deepseek", "sharded"),
        ("deepseek", "split"),
        ("deepseek", "experts"),
    ],
)
def test_compiled_is_eager(request, system, model, name):
    """Eager, choices are concrete and only those with weight are evaluated; compiled, all are, and
    weighed.
    """
    inputs = request.getfixturevalue(model), system, _strategy(**CHOICES[name])
    _same(training(*inputs, Exact()), dp.training_step(*inputs), rtol=1e-12)


def _mapped_is_looped(phase, models, system, relax):
    strategies = [_strategy(**choices) for choices in CHOICES.values()]
    models = [models[i % len(models)] for i in range(len(strategies))]
    paths, _ = leaves(system)
    drawn = draw(system, np.random.default_rng(0), len(strategies), shrink=0.9)
    systems = [with_leaves(system, paths, values) for values in drawn]
    stacked = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *group) for group in (models, systems, strategies)
    ]
    together = jax.vmap(phase, in_axes=(0, 0, 0, None))(*stacked, relax)
    for i, inputs in enumerate(zip(models, systems, strategies, strict=True)):
        _same(jax.tree.map(lambda leaf: leaf[i], together), phase(*inputs, relax), rtol=1e-9)  # noqa: B023


@pytest.mark.slow
@pytest.mark.parametrize("phase", [training, generate], ids=["training", "generate"])
def test_mapped_is_looped(gpt, llama, system, phase):
    _mapped_is_looped(phase, [gpt, llama], system, Smooth(30.0))


@pytest.mark.slow
def test_mapped_is_looped_with_experts(deepseek, system):
    other = replace(
        deepseek, {"layers.1.mixture.experts": 64, "layers.1.latent.kv_rank": 256, "mtp_layers": 0.0}
    )
    _mapped_is_looped(training, [deepseek, other], system, Exact())


def _results_in_double_precision(program):
    """The operations of a program that have a result in float64, but for numbers of Python."""
    variables = [
        (step.equation, v.aval) for step in FlatProgram(program).steps for v in step.equation.outvars
    ]
    return [equation for equation, aval in variables if aval.dtype == np.float64 and not aval.weak_type]


@pytest.mark.parametrize("concrete", [True, False], ids=["concrete choices", "traced choices"])
@pytest.mark.parametrize("relax", [Exact(), Smooth(50.0, band=0.1)], ids=["exact", "smooth"])
@pytest.mark.parametrize("phase", ["training", "generate"])
def test_inputs_in_single_precision_are_computed_in_it(deepseek, system, phase, relax, concrete):
    """In the x64 mode of JAX too, in which large sweeps and programs on a GPU run."""
    inputs = cast((deepseek, system, _strategy(**CHOICES["experts"]), relax), jnp.float32)

    def is_choice(leaf):
        return isinstance(leaf, Weights)

    numbers, choices = eqx.partition(
        inputs, lambda leaf: not (concrete and is_choice(leaf)), is_leaf=is_choice
    )

    def evaluate(numbers):
        return jax.tree.leaves(dp.PHASES[phase](*eqx.combine(numbers, choices, is_leaf=is_choice)))

    assert _results_in_double_precision(jax.make_jaxpr(evaluate)(numbers)) == []
    wider = jax.make_jaxpr(lambda x: jnp.sqrt(x) * np.float64(2))(jnp.float32(1))
    assert _results_in_double_precision(wider)


@pytest.mark.parametrize("phase", ["training", "generate"])
def test_whatever_changes_is_traced_once(gpt, llama, system, phase):
    """Numbers, names, choices, sharpness: none of them compiles again."""
    program = {"training": training, "generate": generate}[phase]
    program(gpt, system, _strategy(), Smooth(30.0))
    before = traces[phase]
    other = dp.load_system("dgx-h100", n_devices=64)
    times = {
        float(program(model, on, _strategy(**choices), Smooth(sharpness)).time)
        for model, on, choices, sharpness in [
            (gpt, system, CHOICES["none"], 20.0),
            (gpt, system, CHOICES["none"], 100),
            (
                gpt,
                replace(system, {"n_devices": 128, "accelerator.memory.hbm.bandwidth": 3e12}),
                CHOICES["full"],
                20.0,
            ),
            (gpt, other, CHOICES["selective"], np.float32(20.0)),
            (llama, other, CHOICES["fp8"], jnp.asarray(20.0)),
            (llama, system, CHOICES["mixed"], 500),
            *((gpt, system, CHOICES[name], 20.0) for name in ("sharded", "split")),
        ]
    }
    assert traces[phase] == before
    assert len(times) == 8


@pytest.mark.slow
def test_experts_and_their_choices_are_traced_once(deepseek, system):
    """ZeRO's stage, schedule, order, context parallelism, experts, schedules of either structure: none
    compiles again.
    """

    def time(model, strategy):
        return float(training(model, system, strategy, Exact()).time)

    time(deepseek, _strategy(tp=4))
    before = traces["training"]
    changes = [
        {},
        {"layers.1.mixture.shared_ffn": 0.0},
        {"layers.0.latent.query_rank": 0.0, "layers.1.latent.query_rank": 0.0},
    ]
    times = [time(replace(deepseek, change), _strategy()) for change in changes]
    times += [time(deepseek, _strategy(**choices)) for choices in CHOICES.values() if choices]
    assert traces["training"] == before
    assert len(set(times)) == len(times) == 10


def test_another_type_of_numbers_is_traced_again(gpt, system):
    """So that a count of traces that stays the same says something."""
    before = traces["training"]
    training.eval_shape(cast(gpt, jnp.float32), system, _strategy(), Exact())
    assert traces["training"] == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("relax", [Exact(), Smooth(20.0)], ids=["exact", "smooth"])
@pytest.mark.parametrize("name", ["none", "selective", "sharded", "split"])
def test_float32_is_float64_to_four_digits(gpt, system, relax, name):
    _narrow_is_wide((training, generate), gpt, system, relax, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sharded", "split", "experts"])
def test_float32_is_float64_to_four_digits_with_experts(deepseek, system, name):
    _narrow_is_wide((training,), deepseek, system, Exact(), name)


# Parts of a breakdown that are what no computation hides, and their tolerance as a share of the whole time.
EXPOSED = {"data_parallel": 1e-4, "tensor_parallel": 1e-6, "context_parallel": 1e-6}


# Float32 cannot tell a number of tiles or waves that is whole from one that is a little more: it has to agree
# with float64 at the same length of sequences, or at one that it cannot tell from it.
ROUNDING = 2e-6


def _different(narrow, wide) -> list[str]:
    """The outputs in float32 that are not those in float64 to four digits."""
    wrong = []
    for path, value in outputs(wide).items():
        rounded, expected = float(outputs(narrow)[path]), float(value)
        # What is exposed of a communication is a difference of two times, and good to their digits.
        small = EXPOSED.get(path.rpartition(".")[2], 0.0) * float(wide.time) + 1e-12
        # The use of memory over its capacity, less 1, is good to the digits of 1.
        small = 1e-6 if path == "memory.excess" else small
        if rounded != pytest.approx(expected, rel=1e-4, abs=small):
            wrong.append(f"{path}: {rounded:.8g}, not {expected:.8g}")
    return wrong


def _narrow_is_wide(phases, model, system, relax, name):
    paths, here = leaves(system)
    for values in [here, *draw(system, np.random.default_rng(1), 3, shrink=0.9)]:
        inputs = model, with_leaves(system, paths, values), _strategy(**CHOICES[name])
        for phase in phases:
            wide = phase(*inputs, relax)
            with jax.enable_x64(False):
                narrow = phase(*cast((*inputs, relax), jnp.float32))
            assert narrow.time.dtype == jnp.float32
            different = _different(narrow, wide)
            for share in (-ROUNDING, ROUNDING) if different else ():
                length = inputs[2].sequence_length * (1 + share)
                beside = replace(inputs[2], {"sequence_length": length})
                different = different and _different(narrow, phase(model, inputs[1], beside, relax))
            assert different == []

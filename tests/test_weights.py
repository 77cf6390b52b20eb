"""Weights over named alternatives: read by name, transformed by JAX as one array."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffperf.quantity import Weights, is_traced

NAMES = ("none", "full", "3")


@pytest.fixture
def weights():
    return Weights(jnp.array([0.25, 0.0, 0.75]), NAMES)


@pytest.fixture
def batch():
    return Weights(jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), NAMES)


def test_a_weight_is_read_by_its_name(weights):
    assert [float(weights[name]) for name in NAMES] == [0.25, 0.0, 0.75]
    assert (float(weights.none), float(weights.full)) == (0.25, 0.0)
    assert {name: float(weight) for name, weight in weights.by_name().items()} == {
        "none": 0.25,
        "full": 0.0,
        "3": 0.75,
    }


@pytest.mark.parametrize("name", ["half", "", "None", "0", "-1"])
def test_an_unknown_name_is_an_error_that_lists_the_names(weights, name):
    with pytest.raises(KeyError, match="is not one of none, full, 3"):
        weights[name]
    with pytest.raises(AttributeError, match="is not one of none, full, 3"):
        getattr(weights, name)
    with pytest.raises(KeyError, match=repr(name)):
        weights.possible[name]


@pytest.mark.parametrize(
    "name", ["tolist", "shape", "dtype", "T", "name", "total", "__jax_array__", "_missing"]
)
def test_weights_have_no_attributes_of_arrays(weights, name):
    """What asks an object whether it is an array, a label or a report gets a clear no."""
    assert not hasattr(weights, name)


def test_positions_are_not_names(weights):
    with pytest.raises((KeyError, TypeError)):  # the latter where annotations are checked
        weights[0]
    with pytest.raises(TypeError):
        weights + 1


def test_means_are_weighted(weights, batch):
    values = {"none": 4.0, "full": 100.0, "3": 8.0, "other": 1e9}
    assert float(weights.mean(values)) == 7.0
    np.testing.assert_array_equal(batch.mean(values), [4.0, 8.0])
    assert weights.mean({"none": 1, "full": 2, "3": 3}).dtype == weights.array.dtype
    with pytest.raises(KeyError, match="3"):
        weights.mean({"none": 4.0, "full": 100.0})


def test_what_may_have_weight(weights, batch):
    assert weights.possible == {"none": True, "full": False, "3": True}
    assert batch.possible == {"none": True, "full": False, "3": True}  # in any of the batch


def test_traced_weights_may_be_anything(weights):
    answers = []

    def ask(traced):
        answers.append((is_traced(traced.array), traced.possible["full"]))
        answers.append((is_traced(weights.array), weights.possible["full"]))  # closed over, not traced
        return traced

    jax.jit(ask)(weights)
    assert answers == [(True, True), (False, False)]


def test_numpy_reads_weights(weights, batch):
    assert np.asarray(weights).tolist() == [0.25, 0.0, 0.75]
    assert np.shape(batch) == (2, 3)
    assert np.asarray(weights, np.float32).dtype == np.float32
    own = np.array(weights)
    own[0] = 7  # a copy, which may be written to
    assert float(weights.none) == 0.25


def test_a_batch_keeps_its_axes(batch):
    np.testing.assert_array_equal(batch["3"], [0, 1])
    np.testing.assert_array_equal(batch.none, [1, 0])
    np.testing.assert_array_equal(batch.by_name()["none"], [1, 0])


def test_weights_are_one_array_in_a_tree(weights):
    leaves, structure = jax.tree.flatten(weights)
    assert [leaf.shape for leaf in leaves] == [(3,)]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, weights)
    assert (doubled.alternatives, float(doubled["3"])) == (NAMES, 1.5)
    assert jax.tree.structure(Weights(jnp.zeros(3), NAMES)) == structure
    assert jax.tree.structure(Weights(jnp.zeros(3), ("a", "b", "c"))) != structure


def test_weights_can_be_copied_and_pickled(weights):
    for twin in (copy.copy(weights), copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
        assert twin.alternatives == NAMES
        np.testing.assert_array_equal(twin.array, weights.array)


def test_jit_traces_once_for_other_weights_and_again_for_other_names(weights):
    traces = []

    @jax.jit
    def first(weights):
        traces.append(weights.alternatives)
        return weights[weights.alternatives[0]] * 2

    assert float(first(weights)) == 0.5
    assert float(first(Weights(jnp.array([0.5, 0.5, 0.0]), NAMES))) == 1.0
    assert traces == [NAMES]
    assert float(first(Weights(jnp.array([0.5, 0.5, 0.0]), ("a", "b", "c")))) == 1.0
    assert traces == [NAMES, ("a", "b", "c")]


def test_vmap_maps_over_the_batch(batch):
    np.testing.assert_array_equal(jax.vmap(lambda weights: weights["3"])(batch), [0, 1])
    np.testing.assert_array_equal(jax.vmap(lambda weights: weights.by_name()["none"])(batch), [1, 0])


@pytest.mark.parametrize(
    "read",
    [
        lambda weights: 2 * weights["none"] + 5 * weights["3"],
        lambda weights: 2 * weights.by_name()["none"] + 5 * weights.by_name()["3"],
        lambda weights: weights.mean({"none": 2, "full": 0, "3": 5}),
    ],
    ids=["by item", "by name", "mean"],
)
def test_gradients_are_weights_too(weights, read):
    gradient = jax.grad(read)(weights)
    assert isinstance(gradient, Weights)
    assert (float(gradient.none), float(gradient.full), float(gradient["3"])) == (2, 0, 5)

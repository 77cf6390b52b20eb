"""One declaration a field: what it converts, and what walks, locates and replaces by it."""

import dataclasses
import re
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreted_jit import compiled_jit

from diffperf.cost.ownership import Cost
from diffperf.hardware.chip import Chip, ChipDesign
from diffperf.hardware.system import System
from diffperf.hardware.technology import Technology
from diffperf.quantity import (
    Choice,
    Label,
    Quantity,
    Scalar,
    Weights,
    choice,
    declaration,
    label,
    locate,
    numeric,
    output,
    quantity,
    real,
    replace,
    segment,
    switch,
    walk,
)
from diffperf.trees import split_tree, unstack_tree
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


class Wheel(eqx.Module):
    name: Label = label("which wheel")
    radius: Scalar = quantity("m", "to the tread", bounds=(0.1, 10))
    price: Scalar = quantity("USD", "each", bounds=(0, 1e3), default=5, kind="price")


class Cart(eqx.Module):
    wheels: tuple[Wheel, ...]
    axle: Wheel
    color: Weights = choice("red", "green", "blue", doc="paint", default="green")
    loaded: Weights = switch("carries anything", default=False)
    weight: Scalar = quantity("kg", "empty", bounds=(1, 100), default=20, integer=True, log=False)


class Bike(eqx.Module):
    front: Wheel
    spare: Wheel | None = None


class Ride(eqx.Module):
    time: Scalar = output("s", "from start to end")


@pytest.fixture
def cart():
    return Cart((Wheel("left", 1), Wheel("right", 2.5)), Wheel("axle", 3, 7))


def test_a_declaration_holds_everything():
    fields = {field.name: declaration(field) for field in dataclasses.fields(Cart)}
    assert fields["weight"] == Quantity("kg", "empty", (1, 100), log=False, integer=True, kind="input")
    assert fields["color"] == Choice(("red", "green", "blue"), "paint")
    assert fields["axle"] is None
    price, radius = (declaration(Wheel.__dataclass_fields__[name]) for name in ("price", "radius"))
    assert price.kind == "price"
    assert (price.log, radius.log) == (False, True)  # by default logarithmic where bounds exclude zero
    assert declaration(Ride.__dataclass_fields__["time"]).kind == "output"


def test_numbers_become_strongly_typed_floats(cart):
    for value in (3, 2.5, np.float32(1.5), np.int64(7), jnp.asarray(3), True):
        array = Wheel("", value).radius
        assert array.dtype == jnp.float64
        assert not array.weak_type
    assert jax.tree.leaves(cart)[0].shape == ()


def test_equal_numbers_share_an_array():
    """But not where JAX traces, or their precision or their sign differs."""
    assert real(3) is real(3.0)
    assert real(np.eye(2)[0]) is real(np.array([1, 0]))
    assert real(np.zeros(2)) is not real(np.zeros(3))
    assert np.copysign(1, real(-0.0)) == -1
    assert np.copysign(1, real(0.0)) == 1
    single = real(np.array(3, np.float32))
    assert single.dtype == np.float32
    with jax.enable_x64(False):
        assert real(3.0).dtype == np.float32
    assert real(3.0).dtype == np.float64

    def traced(x):
        assert isinstance(real(17.5), jax.core.Tracer)
        return x * real(17.5)

    assert compiled_jit(traced)(2.0) == 35
    assert not isinstance(real(17.5), jax.core.Tracer)


@pytest.mark.usefixtures("float32")
def test_numbers_follow_the_mode_of_jax():
    assert real(1.0).dtype == jnp.float32
    assert Wheel("", 3).radius.dtype == jnp.float32


@pytest.mark.parametrize(
    ("value", "weights"),
    [("red", [1, 0, 0]), ({"red": 0.25, "blue": 0.75}, [0.25, 0, 0.75]), ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5])],
)
def test_choices_become_weights(cart, value, weights):
    color = Cart(cart.wheels, cart.axle, color=value).color
    assert color.alternatives == ("red", "green", "blue")
    np.testing.assert_array_equal(color.array, weights)
    np.testing.assert_array_equal(Cart(cart.wheels, cart.axle, color=color).color, weights)
    np.testing.assert_array_equal(replace(cart, {"color": value}).color, weights)
    assert color.array.dtype == jnp.float64
    assert not color.array.weak_type


def test_weights_over_other_alternatives_are_an_error(cart):
    for use in (lambda w: Cart(cart.wheels, cart.axle, color=w), lambda w: replace(cart, {"color": w})):
        with pytest.raises(ValueError, match="expected weights over"):
            use(cart.loaded)


@pytest.mark.parametrize("name", ["mean", "array", "possible", "by_name", "alternatives"])
def test_an_alternative_that_an_attribute_would_hide_is_an_error(name):
    with pytest.raises(ValueError, match=f"an alternative cannot be called {name}"):
        choice("none", name, doc="any")


def test_switches_become_weights(cart):
    np.testing.assert_array_equal(cart.loaded, [1, 0])
    for value in (True, "on"):
        np.testing.assert_array_equal(Cart(cart.wheels, cart.axle, loaded=value).loaded, [0, 1])


def test_an_unknown_alternative_is_an_error(cart):
    with pytest.raises(ValueError, match="not in"):
        Cart(cart.wheels, cart.axle, color="pink")


def test_walk_visits_every_declared_leaf_in_order(cart):
    paths = [path for path, _, _ in walk(cart)]
    assert paths == [
        "wheels.left.radius",
        "wheels.left.price",
        "wheels.right.radius",
        "wheels.right.price",
        "axle.radius",
        "axle.price",
        "color",
        "loaded",
        "weight",
    ]
    assert all(declared is not None for _, declared, _ in walk(cart))
    assert [float(value) for _, value in numeric(cart).values()] == [1, 5, 2.5, 5, 3, 7, 20]
    assert list(numeric(cart, kind="price")) == ["wheels.left.price", "wheels.right.price", "axle.price"]


def test_an_optional_part_has_paths_where_it_is():
    light, laden = Bike(Wheel("front", 1)), Bike(Wheel("front", 1), Wheel("spare", 2))
    assert list(numeric(light)) == ["front.radius", "front.price"]
    assert list(numeric(laden)) == ["front.radius", "front.price", "spare.radius", "spare.price"]
    assert locate(light, "spare") == (None, None)
    with pytest.raises(KeyError) as caught:
        locate(light, "spare.radius")
    assert caught.value.args[0] == ([], "radius")
    changed = replace(laden, {"spare.radius": 5, "front.radius": 4})
    assert [float(value) for _, value in numeric(changed).values()] == [4, 5, 5, 5]
    assert replace(light, {"front.radius": 4}).spare is None


def test_locate_finds_what_walk_visits(cart):
    for path, declared, value in walk(cart):
        assert locate(cart, path) == (value, declared) or (locate(cart, path)[0] is value)
    assert locate(cart, "wheels.right")[0] is cart.wheels[1]
    assert locate(cart, "axle")[1] is None
    assert segment(cart.wheels[1], 1) == "right"


@pytest.mark.parametrize(
    ("path", "known", "missing"),
    [
        ("wheel", ["wheels", "axle", "color", "loaded", "weight"], "wheel"),
        ("wheels.rear.radius", ["left", "right"], "rear"),
        ("axle.height", ["name", "radius", "price"], "height"),
        ("axle.radius.more", [], "more"),
        ("", ["wheels", "axle", "color", "loaded", "weight"], ""),
    ],
)
def test_a_wrong_path_says_what_is_there(cart, path, known, missing):
    for use in (lambda: locate(cart, path), lambda: replace(cart, {path: 1.0})):
        with pytest.raises(KeyError) as caught:
            use()
        assert caught.value.args[0] == (known, missing)


def test_replace_changes_what_it_names_and_nothing_else(cart):
    changed = replace(cart, {"wheels.left.radius": 9, "color": [0, 0, 1]})
    assert float(changed.wheels[0].radius) == 9
    assert float(cart.wheels[0].radius) == 1
    before, after = numeric(cart), numeric(changed)
    assert [path for path in before if before[path][1] != after[path][1]] == ["wheels.left.radius"]
    np.testing.assert_array_equal(changed.color, [0, 0, 1])


def test_replace_takes_traced_values(cart):
    radius = jax.grad(lambda r: replace(cart, {"axle.radius": r}).axle.radius ** 2)(3.0)
    assert float(radius) == 6.0


def test_labels_do_not_tell_programs_apart(cart):
    assert str(Label("x")) == "x"
    assert Label("x") == Label("y")
    assert hash(Label("x")) == hash(Label("y"))
    assert Label("x") != "x"
    traces = []

    @compiled_jit  # the test is about the programs that JAX keeps
    def f(cart):
        traces.append(1)
        return cart.axle.radius * cart.weight

    f(cart)
    f(Cart((Wheel("front", 3), Wheel("back", 4)), Wheel("other", 4), weight=7, color="red"))
    f(replace(cart, {"weight": 3, "loaded": [0, 1]}))
    assert len(traces) == 1


def test_modules_are_differentiated_directly(cart):
    gradient = jax.grad(
        lambda cart: cart.axle.radius**2 + cart.weight * cart.wheels[0].price + cart.color.green
    )(cart)
    assert isinstance(gradient, Cart)
    assert float(gradient.axle.radius) == 6
    assert float(gradient.wheels[0].price) == 20
    assert float(gradient.wheels[1].price) == 0
    np.testing.assert_array_equal(gradient.color, [0, 1, 0])


def test_stacked_modules_are_mapped_over(cart):
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), cart, replace(cart, {"axle.radius": 10, "weight": 4})
    )
    result = jax.vmap(lambda cart: cart.axle.radius * cart.weight)(stacked)
    np.testing.assert_array_equal(result, [60, 40])


@pytest.mark.parametrize("cls", [System, Model, Strategy])
def test_every_numeric_field_is_declared(cls):
    """No array of an input escapes the declarations: each has a unit, a sentence and an interval."""
    for field in dataclasses.fields(cls):
        kind = declaration(field)
        if field.type in (Scalar, Weights):
            assert kind is not None, f"{cls.__name__}.{field.name}"
        if isinstance(kind, Quantity):
            low, high = kind.bounds
            assert low < high
            assert kind.doc
            assert not kind.log or low > 0


def _declared_texts(*classes: type) -> dict[str, str]:
    """The texts of all fields of these classes, and of the classes that their fields are of, by class and
    field."""
    texts = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            if (declared := declaration(field)) is not None:
                texts[f"{cls.__name__}.{field.name}"] = declared.doc
            elif "label" in field.metadata:
                texts[f"{cls.__name__}.{field.name}"] = field.metadata["label"]
            else:
                parts = typing.get_args(field.type) or (field.type,)
                texts |= _declared_texts(*(part for part in parts if dataclasses.is_dataclass(part)))
    return texts


def _stands_alone(text: str) -> bool:
    """Whether a text may be a noun phrase, or of a yes/no choice a clause with "whether", that is clear
    without its neighbours: no reference to another text, no other clause."""
    dangling = r"^(it|they|that|those|this|these|what|how|where|when|which|from|per|between|all that)\b"
    reference = r"\b(the same|likewise|as above|ditto|such a|of that (efficiency|share|time|size))\b"
    return " " in text and not re.search(f"{dangling}|{reference}", text) and text[-1] not in ".,;:"


TEXTS = _declared_texts(System, Model, Strategy, Technology, ChipDesign, Chip, Cost)


@pytest.mark.parametrize("path", TEXTS)
def test_declared_texts_stand_alone(path):
    """Help, tables and errors show the text of a field without those around it."""
    assert _stands_alone(TEXTS[path]), TEXTS[path]


def test_no_two_fields_of_a_class_have_one_text():
    seen = {}
    for path, text in TEXTS.items():
        assert seen.setdefault((path.partition(".")[0], text), path) == path


@pytest.mark.parametrize(
    "text",
    [
        "the same, on the innermost tier",
        "the backward kernel's share of that efficiency",
        "what the dies are bonded on",
        "how the members of a domain are linked",
        "per parameter, gradients kept beside the accumulated ones",
        "identifier",
        "devices of the system.",
    ],
)
def test_a_text_that_needs_its_neighbours_is_found(text):
    assert not _stands_alone(text)


def test_shipped_inputs_lie_in_their_documented_ranges(gpt, llama, system, strategy):
    for module in (gpt, llama, system, strategy):
        for path, (declared, value) in numeric(module).items():
            assert declared.bounds[0] <= float(value) <= declared.bounds[1], path
        count = sum(leaf.size for leaf in jax.tree.leaves(module))
        assert count == sum(np.size(value) for _, _, value in walk(module))  # walk misses nothing


def test_split_and_unstack_give_back_the_parts():
    tree = {"a": jnp.arange(12.0).reshape(6, 2), "b": jnp.arange(6.0)}
    parts = split_tree(tree, (1, 3, 2))
    assert [part["a"].shape for part in parts] == [(1, 2), (3, 2), (2, 2)]
    np.testing.assert_array_equal(jnp.concatenate([part["b"] for part in parts]), tree["b"])
    np.testing.assert_array_equal(split_tree(tree["a"], (1, 1), axis=-1)[1], tree["a"][:, 1:])
    np.testing.assert_array_equal(unstack_tree(tree)[4]["a"], [8, 9])
    assert len(unstack_tree(tree)) == 6

"""Values and derivatives of a function from programs that are stored, where JAX differentiates a call.

`jax.grad` of an estimate, outside of `jax.jit`, would have JAX trace the estimate, split it into a value
and a linear part, and compile both: half a minute in each process, for a gradient that is then computed in
a millisecond. Here the value, the change of the results with changes of the inputs and its transpose are
functions of their own (`diffperf.compiler.StoredFunction`): NumPy evaluates each at first, and each is read
from the user's folder of programs where any process has traced it before, for whatever numbers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.interpreters import ad, batching, mlir

from diffperf.compiler import stored_closure, storing_in, user_folder
from diffperf.quantity import is_traced

Leaves = Sequence[Any]


def only_differentiated(tree: Any) -> bool:
    """Whether JAX differentiates all arrays of a tree and does nothing else with them: it knows the numbers
    of each, which are floating-point numbers.

    It does not where it also maps over an axis, writes a program, or differentiates twice.
    """
    for leaf in jax.tree.leaves(tree):
        known = getattr(leaf, "primal", None)  # of JAX's tracers of derivatives
        if known is None or is_traced(known) or not _is_floating(known):
            return False
    return True


class StoredDerivatives:
    """A function of two trees of numbers, whose derivatives by those of the first are stored programs.

    - `value`: the same function, for values.
    - `name`: what no other function has whose programs lie in the same folder.

    Second derivatives, `jax.vmap` and `jax.jit` of a derivative take the function itself, as JAX traces it.
    """

    def __init__(self, function: Callable[[Any, Any], Any], value: Callable[[Any, Any], Any], name: str):
        self.function, self.value = function, value
        self._pushed = stored_closure(self.pushed, name)
        self._pulled = stored_closure(self.pulled, name, static=("places",))

    def __call__(self, inputs: Any, known: Any) -> Any:
        """The results. JAX asks the stored programs for their derivatives by `inputs`."""
        differentiable = jax.custom_jvp(lambda inputs: self.value(inputs, known))
        differentiable.defjvp(lambda primals, tangents: self._rule(primals[0], tangents[0], known))
        return differentiable(inputs)

    def pushed(self, inputs: Any, known: Any, changes: Leaves) -> list[Any]:
        """The changes of all floating-point results with changes of the leaves of `inputs`."""
        leaves, structure = jax.tree.flatten(inputs)
        return list(jax.jvp(self._from_leaves(structure, known), tuple(leaves), tuple(changes))[1])

    def pulled(self, inputs: Any, known: Any, slopes: Leaves, places: tuple[int, ...]) -> list[Any]:
        """The slopes by the leaves of `inputs` of whatever has these slopes by the results at some places."""
        leaves, structure = jax.tree.flatten(inputs)
        function = self._from_leaves(structure, known)
        _, pull = jax.vjp(lambda *leaves: [function(*leaves)[place] for place in places], *leaves)
        return list(pull(list(slopes)))

    def run(self, inputs: Any, known: Any, vector: Leaves, places: tuple[int, ...] | None) -> list[Any]:
        """`pushed` without places, else `pulled`: of numbers, by a stored program."""
        with storing_in(user_folder()):  # JAX asks for gradients when the call is long over
            if places is None:
                return self._pushed(inputs=inputs, known=known, changes=tuple(vector))
            return self._pulled(inputs=inputs, known=known, slopes=tuple(vector), places=places)

    def _from_leaves(self, structure: Any, known: Any) -> Callable[..., list[Any]]:
        """The function from the leaves of `inputs` to the floating-point leaves of the result."""
        return lambda *leaves: _floating(self.function(jax.tree.unflatten(structure, leaves), known))

    def _rule(self, inputs: Any, changes: Any, known: Any) -> tuple[Any, Any]:
        """The results and their changes with changes of `inputs`, as `jax.custom_jvp` asks for them."""
        with storing_in(user_folder()):
            results = self.value(inputs, known)
        leaves, structure = jax.tree.flatten(results)
        linear = Linear(self, inputs, known, results)
        made = iter(linear.bind(*jax.tree.leaves(inputs), *jax.tree.leaves(changes)))
        all_changes = [next(made) if _is_floating(leaf) else _no_change(leaf) for leaf in leaves]
        return results, jax.tree.unflatten(structure, all_changes)


def _is_floating(leaf: Any) -> bool:
    return np.issubdtype(jax.typeof(leaf).dtype, np.floating)


def _floating(tree: Any) -> list[Any]:
    """The floating-point leaves of a tree."""
    return [leaf for leaf in jax.tree.leaves(tree) if _is_floating(leaf)]


def _no_change(leaf: Any) -> np.ndarray:
    """The change of a result that is no floating-point number, in the type that JAX has for it."""
    return np.zeros(np.shape(leaf), jax.dtypes.float0)


class Linear:
    """The linear part of a function at some inputs, which JAX transposes for gradients.

    JAX keeps it as one operation of the inputs' leaves and of a vector. Without `places` the vector has a
    change for each input, and the results are the changes of the function's results; with `places` it has a
    slope for each result at these places, and the results are the slopes by the inputs: the transpose.
    """

    def __init__(self, derivatives: StoredDerivatives, inputs: Any, known: Any, results: Any):
        self.derivatives, self.known, self.structure = derivatives, known, jax.tree.structure(inputs)
        self.inputs = [jax.typeof(leaf) for leaf in jax.tree.leaves(inputs)]
        self.results = [jax.typeof(leaf) for leaf in _floating(results)]

    def bind(self, *operands: Any, places: tuple[int, ...] | None = None) -> list[Any]:
        """The results, as an operation of JAX."""
        return _linear.bind(*operands, linear=self, places=places)

    def split(self, operands: Leaves) -> tuple[Leaves, Leaves]:
        """The leaves of the inputs, and the vector."""
        return operands[: len(self.inputs)], operands[len(self.inputs) :]

    def run(self, *operands: Any, places: tuple[int, ...] | None) -> list[Any]:
        """The results for numbers."""
        leaves, vector = self.split(operands)
        return self.derivatives.run(jax.tree.unflatten(self.structure, leaves), self.known, vector, places)

    def traced(self, *operands: Any, places: tuple[int, ...] | None) -> list[Any]:
        """The results as JAX traces them."""
        leaves, vector = self.split(operands)
        inputs = jax.tree.unflatten(self.structure, leaves)
        if places is None:
            return self.derivatives.pushed(inputs, self.known, vector)
        return self.derivatives.pulled(inputs, self.known, vector, places)


_linear = jax.extend.core.Primitive("stored_linear_part")
_linear.multiple_results = True


@_linear.def_impl
def _run(*operands: Any, linear: Linear, places: tuple[int, ...] | None) -> list[Any]:
    return linear.run(*operands, places=places)


@_linear.def_abstract_eval
def _kinds(*_: Any, linear: Linear, places: tuple[int, ...] | None) -> list[Any]:
    return linear.results if places is None else linear.inputs


def _traced(*operands: Any, linear: Linear, places: tuple[int, ...] | None) -> list[Any]:
    return linear.traced(*operands, places=places)


def _batched(operands: Leaves, axes: Sequence[int | None], **parameters: Any) -> tuple[list[Any], list[int]]:
    """The rule of `jax.vmap`."""
    made = jax.vmap(lambda *members: _traced(*members, **parameters), in_axes=tuple(axes))(*operands)
    return made, [0] * len(made)


def _differentiated(primals: Leaves, tangents: Leaves, linear: Linear, places: Any) -> tuple[Any, Any]:
    """The rule of derivatives. By the vector alone the operation is its own derivative, being linear."""
    leaves, vector = linear.split(primals)
    of_inputs, changes = linear.split(tangents)
    if all(type(change) is ad.Zero for change in of_inputs):
        dense = map(ad.instantiate_zeros, changes)
        return linear.bind(*leaves, *vector, places=places), linear.bind(*leaves, *dense, places=places)
    function = functools.partial(linear.traced, places=places)
    return jax.jvp(function, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _transposed(slopes: Leaves, *operands: Any, linear: Linear, places: Any) -> list[Any]:
    """The rule of transposes: slopes by the vector, of whatever has these slopes by the results.

    Results without a slope are left out: where a result has no finite derivative, 0 times it is not 0.
    """
    leaves, vector = linear.split(operands)
    given = tuple(place for place, slope in enumerate(slopes) if type(slope) is not ad.Zero)
    if not given:
        made = [ad.Zero(one.aval) for one in vector]
    elif places is None:
        made = linear.bind(*leaves, *(slopes[place] for place in given), places=given)
    else:
        changed = linear.bind(*leaves, *map(ad.instantiate_zeros, slopes))
        made = [changed[place] for place in places]
    return [*[None] * len(leaves), *made]


ad.primitive_jvps[_linear] = _differentiated
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _batched
mlir.register_lowering(_linear, mlir.lower_fun(_traced, multiple_results=True))

"""Basis of the figures of a sweep: of one system, of several, or of accelerators that it designs."""

from diffperf.api.basis import basis, basis_of_design, describe_basis_of_design, describe_systems
from diffperf.explore.codesign.variables import Candidate
from diffperf.explore.sweep.axis import ConfigAxis
from diffperf.explore.sweep.space import Space
from diffperf.hardware.system import System


def space_basis(space: Space) -> dict[str, str]:
    """Basis of the figures of every system of a space, by the name of the system."""
    systems = systems_of(space)
    if isinstance(space.inputs, Candidate):
        return {str(system.name): basis_of_design(_technology(space)) for system in systems}
    return {str(system.name): basis(system, space.phase) for system in systems}


def describe_space_basis(space: Space) -> str:
    """Basis of the figures of a space, in a line."""
    systems = systems_of(space)
    if isinstance(space.inputs, Candidate):
        return describe_basis_of_design(_technology(space), systems[0], space.phase)
    return describe_systems(systems, space.phase)


def systems_of(space: Space) -> list[System]:
    """The systems of a space: those of an axis, or the one that all points have."""
    for axis in space.axes:
        if isinstance(axis, ConfigAxis) and axis.part == "system":
            return [system for system in axis.configs if isinstance(system, System)]
    return [space.inputs.system]


def _technology(space: Space) -> str:
    """The technology of a space with designs, or the names that an axis gives its parts."""
    assert isinstance(space.inputs, Candidate)
    for axis in space.axes:
        if isinstance(axis, ConfigAxis) and axis.part == "technology":
            return f"{space.inputs.technology.name} with each of {', '.join(axis.labels)}"
    return str(space.inputs.technology.name)

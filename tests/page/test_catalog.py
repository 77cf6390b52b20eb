"""Every control shows a value that is read back as the same value."""

import numpy as np
import pytest

from diffperf import load
from diffperf.page.catalog import catalog, inputs
from diffperf.page.state import State
from diffperf.quantity import walk
from diffperf.workload.configuration import Configuration
from diffperf.workload.strategy import Strategy


@pytest.mark.parametrize("system", load.available("systems"))
def test_the_texts_of_controls_are_the_configured_values(system):
    state = State(system=system)
    configuration = Configuration(state.read_model(), state.read_system()[0], Strategy())
    values = {path: value for path, _, value in walk(configuration)}
    listed = inputs(state)
    assert len(listed) > 300
    for row in listed:
        path = row["path"]
        declared = load.declared_at(configuration, path, "test")
        read = load.checked(declared, load.literal(row["text"]), "test", path)
        np.testing.assert_allclose(read, np.asarray(values[path]), rtol=1e-6, err_msg=path)
        assert row["doc"]
        assert row.get("alternatives") or row["bounds"]


def test_the_fields_of_a_layout_have_descriptions_and_defaults():
    fields = {field["name"]: field for field in catalog()["strategy"]}
    assert fields["tp"]["searched"]
    assert not fields["cp"]["searched"]
    assert fields["recompute"]["alternatives"] == ["none", "selective", "full"]
    assert fields["recompute"]["default"] == "none"
    assert fields["overlap_gradients"]["default"] == "on"
    assert fields["optimizer_bytes"]["default"] == "12 B"
    assert all(field["doc"] for field in fields.values())

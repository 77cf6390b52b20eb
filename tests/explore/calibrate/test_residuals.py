"""Which programs of residuals are compiled."""

from pathlib import Path

import pytest

from diffperf.explore.calibrate.residuals import is_worth_compiling
from diffperf.explore.measured.predictions import BLOCK
from diffperf.explore.measured.table import read_measurements

DATA = Path(__file__).parents[3] / "studies"
TRAINED = DATA / "stacks" / "data" / "vtrain.csv"
STATIC = DATA / "serving_stacks" / "data" / "argonne.csv"
SERVED = DATA / "serving_stacks" / "data" / "aic-silicon.csv"
OF_POWER = DATA / "power" / "data" / "ml-energy.csv"


@pytest.mark.parametrize(
    ("file", "compiled"), [(TRAINED, True), (STATIC, True), (SERVED, False), (OF_POWER, False)]
)
def test_many_rows_are_compiled_unless_they_have_clients(file, compiled):
    """XLA takes more than twenty minutes, and 16 GB, for the slopes of a closed loop."""
    rows = read_measurements(file).rows
    assert len(rows) > BLOCK
    assert is_worth_compiling(rows) == compiled
    assert not is_worth_compiling(rows[:BLOCK])

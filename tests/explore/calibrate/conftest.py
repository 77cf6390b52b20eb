"""One table of made-up measurements and its fit, for all tests of calibration."""

from pathlib import Path

import pytest
from calibration_cases import gemms, measured, noise, truth

from diffperf.explore.calibrate.calibrate import calibrate
from diffperf.explore.calibrate.calibrated import Calibrated


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """GEMMs in two number formats, with noise."""
    rows = gemms()
    return measured(tmp_path_factory.mktemp("clean"), rows, truth(), noise(len(rows)))


@pytest.fixture(scope="session")
def found(table) -> Calibrated:
    """The calibration to the table."""
    return calibrate([table])

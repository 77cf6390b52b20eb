"""Ranges of the numbers of a smooth relaxation."""

import jax
import pytest

from diffperf.errors import ConfigError
from diffperf.relax import Smooth


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0.0,), "sharpness: found 0.0; expected a number of at least 1"),
        ((-1.0,), "sharpness: found -1.0"),
        ((float("nan"),), "sharpness: found nan"),
        ((float("inf"),), "sharpness: found inf"),
        ((50.0, 2.0), "band: found 2.0; expected a share from 0 to below 1"),
        ((50.0, -0.1), "band: found -0.1"),
        ((50.0, 1.0), "band: found 1.0"),
    ],
)
def test_numbers_out_of_range_are_refused_where_they_are_known(numbers, words):
    with pytest.raises(ConfigError, match=words):
        Smooth(*numbers)
    jax.jit(Smooth)(*numbers)  # traced numbers are not checked

"""Slots find the listed row that is nearest to any other."""

import numpy as np
import pytest

from diffperf.explore.codesign.slots import ListedSlot


@pytest.mark.parametrize("by_rank", [False, True])
def test_the_coordinate_of_a_listed_row_leads_back_to_it(by_rank):
    rows = np.array([[tp, pp, 64 / tp / pp] for tp in (1.0, 2.0, 4.0, 8.0) for pp in (1.0, 2.0, 4.0)])
    slot = ListedSlot("layout", [0, 1, 2], rows, by_rank)
    np.testing.assert_array_equal(slot.at(slot.share(rows)), rows)


def test_other_rows_go_to_the_nearest_in_ratios():
    """By all distances at once, which for many layouts would not fit into memory."""
    random = np.random.default_rng(0)
    rows, others = random.integers(1, 100, (300, 3)).astype(float), random.uniform(1, 100, (50, 3))
    slot = ListedSlot("layout", [0, 1, 2], rows)
    distances = np.abs(np.log1p(others)[:, None] - np.log1p(rows)[None]).sum(axis=2)
    np.testing.assert_array_equal(slot.at(slot.share(others)), rows[np.argmin(distances, axis=1)])


def test_many_layouts_need_no_table_of_all_distances():
    """200,000 layouts and 8,192 designs: a table of distances would take 13 GB."""
    rows = np.arange(200_000.0)[:, None] * np.ones(2)
    slot = ListedSlot("layout", [0, 1], rows)
    designs = rows[:: len(rows) // 8192][:8192]
    np.testing.assert_array_equal(slot.at(slot.share(designs)), designs)

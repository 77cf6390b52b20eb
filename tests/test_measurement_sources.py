"""The file of sources and licences lists every shipped table of measurements and every source of its rows."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LICENCES = (ROOT / "configs" / "measurements" / "SOURCES.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| `([^`]+\.csv)` \| (.+) \| (.+) \|$", LICENCES, flags=re.MULTILINE)
SHIPPED = sorted([*ROOT.glob("studies/*/data/*.csv"), *ROOT.glob("configs/measurements/*.csv")])


def unlisted(table: Path, sources: list[str]) -> list[str]:
    """The sources of rows that begin with none of the listed ones, nor hold the repository of one."""
    with table.open(encoding="utf-8", newline="") as file:
        found = [row["source"].replace("|", "/") for row in csv.DictReader(file) if row["source"]]
    return sorted({source for source in found if not any(listed in source for listed in sources)})


def test_the_shipped_tables_are_the_listed_ones():
    assert {str(path.relative_to(ROOT)) for path in SHIPPED} == {table for table, _, _ in LISTED}


@pytest.mark.parametrize("table", SHIPPED, ids=lambda path: path.stem)
def test_every_source_of_a_table_is_listed_with_a_licence(table):
    rows = [row for row in LISTED if row[0] == str(table.relative_to(ROOT))]
    assert unlisted(table, [source for _, source, _ in rows]) == []
    assert all(licence.strip() for _, _, licence in rows)


def test_a_source_that_is_not_listed_would_be_noticed():
    assert unlisted(SHIPPED[0], ["github:nobody/nothing"])

"""A comparison as a file: a CSV table."""

import csv
import io
from typing import Any


def csv_text(rows: list[dict[str, Any]]) -> str:
    """Rows of the same keys as a CSV table with a header; None becomes an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()

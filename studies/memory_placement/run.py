"""Where tensors should live on a constrained platform: high-bandwidth storage, and a bonded SRAM buffer.

A mobile system on a chip with 35 TFLOP/s generates tokens with a model of 13 billion parameters, whose
weights live in high-bandwidth storage (HBS) and whose KV cache lives there or in DDR, against the figures of
Kundu et al. (arXiv 2604.11128, `published.csv`); and with a model of one billion parameters, of which a
bonded buffer keeps one class of tensors after the other.

    python studies/memory_placement/run.py [--quick] [--out DIR]
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1]))
from buffer import buffer_finding, buffer_table, draw_buffer
from reporting import Table, figure_style, parse_options, publish
from storage import draw_storage, evaluate_all, storage_finding


def draw(hbs: Table, buffer: Table) -> Figure:
    """Draws the figure of the study."""
    with figure_style():
        figure = Figure(figsize=(12, 4.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_storage(left, hbs)
        draw_buffer(right, buffer)
    return figure


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "memory_placement", "changes nothing: all cases take seconds")
    hbs, late, binds = evaluate_all()
    buffer = buffer_table()
    finding = storage_finding(hbs, late, binds) + buffer_finding(buffer)
    publish(options.out, [hbs, late, buffer], finding, {"figure": draw(hbs, buffer)})


if __name__ == "__main__":
    main()

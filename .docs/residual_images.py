"""Draws the residual figures of the accuracy page.

    python .docs/residual_images.py [NAME …]

It evaluates tables of the studies, which takes some minutes; images/residuals-NAME.png are its files.
"""

import argparse
import io
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from PIL import Image

import diffperf as dp

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / ".docs" / "pages" / "images"
PANELS = 6  # of a figure: the columns that explain most
DOTS, COLOURS = 90, 48  # per inch, and of the palette: figures of a page stay below 150 kB


class Table(NamedTuple):
    """A table of measurements, the measured column that is drawn, and conditions on its rows."""

    file: str
    column: str
    where: tuple[str, ...] = ()


TABLES = {
    "megatron-bridge": Table("studies/stacks/data/nemo.csv", "step_time_s"),
    "nanotron": Table("studies/stacks/data/hf-ultrascale.csv", "step_time_s", ("mfu>0.02",)),
    "vtrain": Table("studies/stacks/data/vtrain.csv", "step_time_s"),
    "serving": Table("studies/serving_stacks/data/aic-silicon.csv", "tpot_s"),
    "inference": Table("studies/serving_stacks/data/argonne.csv", "latency_s"),
    "power": Table("studies/power/data/ml-energy.csv", "power_per_device_w"),
    "gemm": Table("studies/calibration/data/aic-gemm.csv", "latency_s"),
    "attention": Table("studies/calibration/data/aic-attention.csv", "latency_s"),
    "collectives": Table("studies/calibration/data/aic-nccl.csv", "latency_s"),
}


def write(figure: Figure, path: Path) -> None:
    """Writes a figure as a PNG file of few colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS, bbox_inches="tight", facecolor="white")
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    """Draws the figures of the tables that the command line names, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TABLES)} [all]")
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(TABLES)):
        parser.error(f"found {unknown[0]}; expected some of {', '.join(TABLES)}")
    for name in names or TABLES:
        table = TABLES[name]
        answer = dp.validate(ROOT / table.file, where=table.where)
        path = IMAGES / f"residuals-{name}.png"
        write(answer.residual_figure(table.column, PANELS), path)
        shares = ((each.column, each.share) for each in answer.residuals(table.column).explained[:PANELS])
        explained = ", ".join(f"{column} {share:.0%}" for column, share in shares)
        print(f"{path.relative_to(ROOT)} ({path.stat().st_size / 1e3:.0f} kB): {explained}", flush=True)


if __name__ == "__main__":
    main()

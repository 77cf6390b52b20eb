"""What bounds each matrix product of Llama-2-13B in inference: compute, caches, device memory or launches.

Optimus (arXiv 2407.14645) asks this for every product of prefill and decode on several GPUs. Here a prompt of
200 tokens is continued by 200 tokens in fp16, at batch 1 and 16, on one A100, H100, H200 or B200 with
TensorRT-LLM. What bounds a kernel is read off derivatives of its time by every resource; beside it stands
the verdict of a plain roofline: FLOP per byte against the ratio of the data sheet's peaks. `published.csv`
has what we know of the paper's finding.

    python studies/gemm_boundedness/run.py [--quick] [--out DIR]
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import diffperf as dp
from diffperf.explore.bottlenecks import OVERHEAD, Operator, listing
from diffperf.hardware.system import System
from diffperf.report.plots import BLUE, GREY, ORANGE, PALETTE, RED, bare
from diffperf.workload.assembly import inference_operators
from diffperf.workload.configuration import Configuration
from diffperf.workload.operators import Gemms
from diffperf.workload.passes import prompt_pass, token_pass

sys.path.append(str(Path(__file__).parents[1]))
from reporting import Table, figure_style, parse_options, publish, read_rows

PUBLISHED = Path(__file__).parent / "published.csv"
MODEL = "llama-2-13b"
SYSTEMS = {"A100": "dgx-a100", "H100": "dgx-h100", "H200": "hgx-h200", "B200": "hgx-b200"}
PHASES = {"prefill": prompt_pass, "decode": token_pass}
BATCHES = (1, 16)
INPUT_LENGTH, OUTPUT_LENGTH = 200, 200  # tokens
ELEMENT = 2.0  # bytes of fp16

# The products in the order of a layer. FlashAttention computes both products of attention in one kernel.
PRODUCTS = ("qkv", "attention core", "attention output", "mlp up", "mlp down", "vocabulary projection")

# What binds, and the resources of the derivatives that belong to it.
BOUNDS = {
    "compute": ("matrix units", "vector units"),
    "power": ("power",),
    "L2": ("l2 bandwidth",),
    "HBM": ("hbm bandwidth",),
    "latency": (OVERHEAD,),  # launches, and latencies of kernels that no rate shortens
}
COLOURS = dict(zip(BOUNDS, (BLUE, PALETTE[9], ORANGE, RED, GREY), strict=True))


@dataclasses.dataclass(frozen=True)
class Product:
    """One matrix product of a phase on an accelerator: what it takes and what bounds it.

    `intensity` is in FLOP per byte of the operands and the result, each moved once; `ridge` is the FLOP per
    byte of the data sheet's peaks. The attention core has no intensity here.
    """

    phase: str
    batch: int
    accelerator: str
    operator: Operator
    intensity: float | None
    ridge: float

    @property
    def milliseconds(self) -> float:
        """The time of one run in ms."""
        return 1e3 * self.operator.time / self.operator.count

    @property
    def shares(self) -> dict[str, float]:
        """The share of a per cent of the time that one per cent more of a resource saves, by what binds."""
        return {
            bound: sum(self.operator.bounds[resource] for resource in resources)
            for bound, resources in BOUNDS.items()
        }

    @property
    def bound(self) -> str:
        """What binds most."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def roofline(self) -> str | None:
        """What the roofline of the data sheet says: compute or HBM."""
        if self.intensity is None:
            return None
        return "compute" if self.intensity > self.ridge else "HBM"

    @property
    def differs(self) -> bool:
        """Whether something else binds than the roofline says; power binds through compute."""
        bound = "compute" if self.bound == "power" else self.bound
        return self.roofline is not None and bound != self.roofline


def configuration_of(system: System, batch: int) -> Configuration:
    """Returns the configuration of one device and a batch."""
    strategy = {
        "global_batch": batch,
        "sequence_length": INPUT_LENGTH,
        "output_length": OUTPUT_LENGTH,
        "precision": "fp16",
    }
    return Configuration(dp.load_model(MODEL), system, dp.load_strategy(strategy))


def intensities(configuration: Configuration, phase: str) -> dict[str, float]:
    """Returns the FLOP per byte of every matrix product of a phase by its name."""
    c = configuration.for_inference()
    result = {}
    for group in inference_operators(c, PHASES[phase](c)):
        table = group.table
        if isinstance(table, Gemms):
            moved = ELEMENT * table.batch * (table.m * table.k + table.k * table.n + table.m * table.n)
            ratios = np.ravel(np.asarray(table.flops) / np.maximum(np.asarray(moved), 1.0))
            result |= dict(zip(group.names, map(float, ratios), strict=True))
    return result


def estimate_products() -> list[Product]:
    """Estimates all products of both phases and both batches on all accelerators."""
    products = []
    for accelerator, name in SYSTEMS.items():
        system = dp.load_system(name, 1)
        ridge = float(system.accelerator.matrix.bf16.rate / system.accelerator.memory[-1].bandwidth)
        for batch in BATCHES:
            configuration = configuration_of(system, batch)
            for phase in PHASES:
                by_name = {row.name: row for row in listing(configuration, phase).operators}
                intensity = intensities(configuration, phase)
                products += [
                    Product(
                        phase=phase,
                        batch=batch,
                        accelerator=accelerator,
                        operator=by_name[name],
                        intensity=intensity.get(name),
                        ridge=ridge,
                    )
                    for name in PRODUCTS
                ]
    return products


def cases_of(products: list[Product]) -> list[tuple[str, int]]:
    """Returns the phases and batches of the products, prefill first."""
    return list(dict.fromkeys((p.phase, p.batch) for phase in PHASES for p in products if p.phase == phase))


def bounds_table(products: list[Product]) -> Table:
    """Tabulates time and bound of every product, by accelerator."""
    columns = {
        "phase": ("phase", ""),
        "batch": ("batch", ".0f"),
        "product": ("product", ""),
        "intensity": ("FLOP/byte", ".0f"),
    }
    for name in SYSTEMS:
        columns |= {f"{name}_ms": (f"{name} ms", ".3f"), f"{name}_bound": ("bound", "")}
    rows = []
    for phase, batch in cases_of(products):
        for name in PRODUCTS:
            row: dict[str, Any] = {"phase": phase, "batch": batch, "product": name}
            for product in products:
                if (product.phase, product.batch, product.operator.name) == (phase, batch, name):
                    text = f"{product.bound} {product.shares[product.bound]:.0%}"
                    row["intensity"] = product.intensity
                    row[f"{product.accelerator}_ms"] = product.milliseconds
                    row[f"{product.accelerator}_bound"] = text + (" *" if product.differs else "")
            rows.append(row)
    title = (
        f"{MODEL}, {INPUT_LENGTH} tokens in and {OUTPUT_LENGTH} out, one device: time of one run, and what"
        " binds most with its share (* where the data sheet's roofline says otherwise)"
    )
    return Table("bounds", title, columns, rows)


def shares_table(products: list[Product]) -> Table:
    """Tabulates the share of the products' time that each resource binds."""
    columns = {
        "phase": ("phase", ""),
        "batch": ("batch", ".0f"),
        "accelerator": ("accelerator", ""),
        "ridge": ("peak FLOP/byte", ".0f"),
        "milliseconds": ("all products ms", ".2f"),
    } | {bound: (bound, ".0%") for bound in BOUNDS}
    rows = []
    for phase, batch in cases_of(products):
        for accelerator in SYSTEMS:
            case = [p for p in products if (p.phase, p.batch, p.accelerator) == (phase, batch, accelerator)]
            total = sum(product.operator.time for product in case)
            shares = {
                bound: sum(product.operator.time * product.shares[bound] for product in case) / total
                for bound in BOUNDS
            }
            first = {"phase": phase, "batch": batch, "accelerator": accelerator, "ridge": case[0].ridge}
            rows.append(first | {"milliseconds": 1e3 * total} | shares)
    return Table("shares", "What binds the products of a pass, by time", columns, rows)


def draw(products: list[Product]) -> Figure:
    """Draws what binds every product as shares of its time, a panel for each phase and batch."""
    cases = cases_of(products)
    accelerators = list(SYSTEMS)
    with figure_style():
        figure = Figure(figsize=(14, 7.5), layout="constrained")
        panels = figure.subplots(1, len(cases), sharey=True)
        for axes, (phase, batch) in zip(panels, cases, strict=True):
            chosen = [p for p in products if (p.phase, p.batch) == (phase, batch)]
            chosen.sort(key=lambda p: (PRODUCTS.index(p.operator.name), accelerators.index(p.accelerator)))
            positions = [index + index // len(accelerators) for index in range(len(chosen))]
            left = np.zeros(len(chosen))
            for bound, colour in COLOURS.items():
                shares = np.array([product.shares[bound] for product in chosen])
                axes.barh(positions, shares, left=left, height=0.85, color=colour, label=bound)
                left += shares
            for position, product in zip(positions, chosen, strict=True):
                text = f"{product.milliseconds:.3g} ms"
                axes.annotate(
                    text, (1.0, position), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8
                )
            axes.set_xlim(0, 1.22)
            axes.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"])
            axes.set_title(f"{phase}, batch {batch}")
            bare(axes, keep="bottom")
        labels = [f"{p.operator.name}, {p.accelerator}" for p in chosen]
        panels[0].set_yticks(positions, labels, fontsize=9)
        panels[0].invert_yaxis()
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
    return figure


def prefill_counts(products: list[Product], batch: int) -> str:
    """Writes how many linear layers of prefill compute binds by derivatives and by the roofline."""
    texts = []
    for accelerator in SYSTEMS:
        case = [
            product
            for product in products
            if (product.phase, product.batch, product.accelerator) == ("prefill", batch, accelerator)
            and product.intensity is not None
        ]
        ours = sum(product.bound in ("compute", "power") for product in case)
        roofline = sum(product.roofline == "compute" for product in case)
        texts.append(f"{ours} and {roofline} of {len(case)} on {accelerator}")
    return ", ".join(texts)


def finding(products: list[Product]) -> str:
    """Writes what the tables show."""
    decode = [product for product in products if product.phase == "decode"]
    linear = [product for product in decode if product.intensity is not None]
    memory = sum(product.bound == "HBM" for product in linear)
    attention = {p.bound for p in decode if p.intensity is None and p.batch == BATCHES[0]}
    statement = read_rows(PUBLISHED)[0]
    return (
        f"In decode {memory} of {len(linear)} linear layers are bound by HBM; at batch 1 the attention core"
        f" is bound by {' or '.join(sorted(attention))}, because a context of {INPUT_LENGTH} to"
        f" {INPUT_LENGTH + OUTPUT_LENGTH} tokens is little to read. In prefill, compute binds so many linear"
        " layers, the vocabulary projection included, by our derivatives and by the data sheet's roofline:"
        f" at batch 1 {prefill_counts(products, 1)}; at batch 16 {prefill_counts(products, 16)}. We have not"
        f" read the paper's table. What others cite of it, that on {statement['accelerator']}"
        f" {statement['statement']}, agrees with the roofline and with ours for decode and for the prefill of"
        " one prompt, and with neither for the prefill of 16 prompts. Ours differ from the roofline because"
        " kernels stay below both peaks, tiles fill the compute units in whole waves, and L2 serves every"
        " operand several times: near the ridge several resources bind at a time."
    )


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "gemm_boundedness", "changes nothing: all products take seconds")
    products = estimate_products()
    tables = [bounds_table(products), shares_table(products)]
    publish(options.out, tables, finding(products), {"figure": draw(products)})


if __name__ == "__main__":
    main()

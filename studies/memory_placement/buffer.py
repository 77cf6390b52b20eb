"""A bonded SRAM buffer for a model of one billion parameters: which tensors it should keep."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from reporting import Table, choice_weights, evaluate_cases

import diffperf as dp
from diffperf.hardware.memory_level import TENSOR_CLASSES, Holdings
from diffperf.quantity import Scalar, replace
from diffperf.report import plots
from diffperf.workload.configuration import Configuration
from diffperf.workload.memory import tensor_bytes

MODEL = "llama-3.2-1b"
SYSTEM = "mobile-soc-lpddr6-173-bonded-buffer"
CONTEXT = 8192  # tokens
MB = 1e6
CAPACITIES = (32 * MB, 128 * MB, 512 * MB)  # of the buffer
KEPT = tuple(name for name in TENSOR_CLASSES if name != "expert_weights")


def buffer_table() -> Table:
    """Token rates with a buffer full of one class of tensors, for every class, and filled by heat."""
    model, system = dp.load_model(MODEL), dp.load_system(SYSTEM)
    strategy = dp.load_strategy({"sequence_length": CONTEXT, "output_length": 2})
    c = Configuration(model, system, strategy).for_inference()
    bytes_ = {name: float(size) for name, size in tensor_bytes(c).items()}
    base = "accelerator.memory.buffer."

    def time(capacity: Scalar, shares: jax.Array, fill: jax.Array) -> Scalar:
        values = {f"{base}holds.{name}": shares[index] for index, name in enumerate(KEPT)}
        changed = replace(system, values | {f"{base}capacity": capacity, f"{base}holds.fill": fill})
        return dp.decode(model, changed, strategy).time

    cases: list[tuple[float, np.ndarray, np.ndarray]] = []
    names: list[tuple[float, str]] = []
    for capacity in CAPACITIES:
        for kept in ("nothing", *KEPT, "by heat"):
            shares = [min(1.0, capacity / bytes_[name]) * (name == kept) for name in KEPT]
            fill = choice_weights(Holdings, "fill", "heat" if kept == "by heat" else "shares")
            cases.append((capacity, np.array(shares), fill))
            names.append((capacity, kept))
    columns = [jnp.stack([jnp.asarray(case[index]) for case in cases]) for index in range(3)]
    rates = [1 / float(seconds) for seconds in evaluate_cases(time, *columns)]
    rows = [
        {
            "capacity": capacity / MB,
            "kept": kept.replace("_", " "),
            "bytes": min(capacity, bytes_.get(kept, capacity)) / MB if kept != "nothing" else 0.0,
            "rate": rate,
            "gain": rate / rates[names.index((capacity, "nothing"))] - 1,
        }
        for (capacity, kept), rate in zip(names, rates, strict=True)
    ]
    headings = {
        "capacity": ("buffer, MB", ".0f"),
        "kept": ("tensors in the buffer", ""),
        "bytes": ("of them, MB", ".0f"),
        "rate": ("token/s", ".1f"),
        "gain": ("gain", ".1%"),
    }
    return Table("buffer", f"{MODEL}, one sequence of {CONTEXT} tokens, bonded buffer", headings, rows)


def draw_buffer(axes: Axes, table: Table) -> None:
    """Draws the gain of each class of tensors in the buffer by the buffer's capacity."""
    kinds = [row["kept"] for row in table.rows if row["kept"] != "nothing"]
    for index, kept in enumerate(dict.fromkeys(kinds)):
        rows = [row for row in table.rows if row["kept"] == kept]
        gains = [100 * row["gain"] for row in rows]
        axes.plot([row["capacity"] for row in rows], gains, "o-", color=plots.PALETTE[index + 1], label=kept)
    axes.set_xscale("log")
    axes.set_xlabel("capacity of the buffer in MB")
    axes.set_ylabel("gain in token/s in %")
    axes.legend(frameon=False)


def buffer_finding(table: Table) -> str:
    """The finding about the buffer in sentences: for the capacity of the config or the nearest, and for the
    largest.
    """
    capacities = sorted({row["capacity"] for row in table.rows})
    shipped = min(capacities, key=lambda capacity: abs(capacity - 128))
    return " ".join(_best_at(table, capacity) for capacity in dict.fromkeys((shipped, capacities[-1])))


def _best_at(table: Table, capacity: float) -> str:
    """A sentence about the class of tensors, or the classes, with which a buffer of a capacity gains most."""
    rows = [row for row in table.rows if row["capacity"] == capacity]
    single = [row for row in rows if row["kept"] not in ("nothing", "by heat")]
    most = max(row["gain"] for row in single)
    # The gains of classes that fill the buffer alike differ by rounding.
    best = [row["kept"] for row in single if row["gain"] > most - 5e-4]
    heat = next(row for row in rows if row["kept"] == "by heat")
    which = best[0] if len(best) == 1 else f"{', '.join(best[:-1])} or {best[-1]} alike"
    gains = f"({most:.1%}); filled by heat it gains {heat['gain']:.1%}."
    return f"A buffer of {capacity:.0f} MB gains most with {which} {gains}"

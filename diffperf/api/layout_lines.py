"""Lines about a layout: its choice and the reasons, whether it fits, and the certainty of its time."""

from typing import Any

import jax

from diffperf import units
from diffperf.api.question import COMMAND_LINE, Question
from diffperf.errors import counted
from diffperf.explore.plan.best_layout import Layout
from diffperf.explore.plan.candidates import DEGREES, LAYOUT
from diffperf.explore.plan.greatest import ANSWERING
from diffperf.hardware.accelerator import MatrixFormat
from diffperf.hardware.formats import PRECISION_BYTES, STORED, width
from diffperf.quantity import locate
from diffperf.workload.configuration import Configuration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

_SHORT_OF_LIMIT = 1e-3  # share by which a device at its power limit may be estimated above it
_SLOWEST = 0.101  # just above the least clock that a power limit forces, over that of the peak rates
_HALF = 0.5  # weight above which a switch is on
_ROUNDING = 1e-6  # by which a clock may differ from the one that is allowed, in float32 too


def describe_choice(layout: Layout) -> list[str]:
    """Lines about what was chosen for the user, and why."""
    shown = {name: value for name, value in layout.chosen.items() if name in LAYOUT}
    if not shown.get("expert_tp"):
        shown.pop("expert_tp", None)  # the degree of all other layers
    degrees = [f"{name.replace('_', ' ')} {units.plain(value)}" for name, value in shown.items()]
    if layout.candidates == 1:
        why = "the only layout possible" if len(degrees) > 1 else "what the other degrees leave"
    else:
        best = "the fastest that fits memory" if layout.fits else "the least too large"
        why = f"{best} of {layout.candidates} layouts"
    lines = [f"Chosen: {', '.join(degrees)} ({why})"] if degrees else []
    if "global_batch" in layout.chosen:
        batch = units.plain(layout.chosen["global_batch"])
        lines.append(f"Chosen: global batch {batch} (one micro-batch per device)")
    return lines


def describe_search_hint(question: Question, phase: str) -> list[str]:
    """A line about the command that searches more than the degrees, where none of them is given."""
    if any(name in question.table for name in DEGREES):
        return []
    command, more = {
        "training": ("plan", "micro-batches, virtual stages, recomputation and ZeRO stages too"),
    }.get(phase, ("serve", "the batch, the tokens of a step and replicas too, under targets for latencies"))
    name = f"diffperf {command}" if question.asker == COMMAND_LINE else f"dp.{command}"
    return [f"{name} searches {more}"]


def describe_utilization(report: Any) -> list[str]:
    """A line about MFU and HFU of a training step: what they count."""
    mfu, hfu = float(report.mfu), float(report.hfu)
    return [
        f"MFU {mfu:.1%}: the FLOP/s that the model needs, over the devices' peak; "
        f"HFU {hfu:.1%}: with those of recomputed activations"
    ]


def describe_clock(question: Question, report: Any) -> list[str]:
    """A line for the slowest clock of a report, where the power limit pushes it below the base clock that the
    maker guarantees, and below the clock to which the user limits it; or where even the least clock draws
    more than the limit.
    """
    accelerator = question.system.accelerator
    drawn, limit = float(report.power), float(accelerator.power_limit)
    if drawn > limit * (1 + _SHORT_OF_LIMIT) and _least_clock(report) < _SLOWEST:
        least = "even at the least clock, a tenth of that of the peak rates"
        over = f"[bold yellow]Above the power limit[/bold yellow] of {units.show(limit, 'W')}"
        return [f"{over}: {least}, a device draws {units.show(drawn, 'W')} on average"]
    allowed = float(accelerator.boost_clock * accelerator.clock_limit)
    base = float(accelerator.base_clock)
    names = ("frequency", "prefill_frequency", "decode_frequency")
    clocks = [float(getattr(report, name)) for name in names if hasattr(report, name)]
    if not clocks or not 0 < min(clocks) < min(base, allowed * (1 - _ROUNDING)):
        return []
    return [
        f"[bold yellow]Below the base clock[/bold yellow]: the power limit leaves {min(clocks) / 1e6:,.0f} "
        f"MHz of {accelerator.name}'s {base / 1e6:,.0f} MHz; its energies may be estimated too high"
    ]


def smaller_weights(model: Model, strategy: Strategy) -> str:
    """The option that stores weights in the format in which they are published, or else in any smaller one;
    empty where they are stored in less than 16 bits, or in a format that the strategy names.
    """
    experts = any(layers.mixture is not None for layers in model.layers)
    names = ("weight_precision", *(("expert_weight_precision",) if experts else ()))
    if any(getattr(strategy, name).likeliest() != "operands" for name in names):
        return ""
    if float(width(strategy.precision)) < PRECISION_BYTES["bf16"]:
        return ""
    stored = str(model.quantization).rpartition(" ")[2]
    # Checkpoints in mxfp4 (gpt-oss) leave all but the experts in 16 bits.
    option = "--expert-weight-precision" if experts and stored == "mxfp4" else "--weight-precision"
    return f"{option} {stored}" if stored in STORED else f"{option} FORMAT"


def _least_clock(report: Any) -> float:
    """The slowest clock of the phases of a report, over that of the peak rates; 1 where it has none."""
    names = ("clock", "prefill_clock", "decode_clock")
    return min((float(getattr(report, name)) for name in names if hasattr(report, name)), default=1.0)


def describe_conversion(question: Question, strategy: Strategy) -> list[str]:
    """A line about operands that the accelerator has no matrix units for, where there are any."""
    accelerator, name = question.system.accelerator, strategy.precision.likeliest()
    units_of = accelerator.multiplied_in(name)
    if units_of == name:
        return []
    # Where both are the same, the maker may name bf16 alone, as Google does.
    if units_of == "fp16" and _same(accelerator.matrix.fp16, accelerator.matrix.bf16):
        units_of = "bf16"
    return [f"{accelerator.name} has no matrix units for {name}: products are computed in {units_of}"]


def describe_quantization(question: Question, strategy: Strategy, phase: str) -> list[str]:
    """A line in inference about weights that are published in a smaller format than they are counted in."""
    published = str(question.model.quantization)
    smaller = smaller_weights(question.model, strategy)
    if phase == "training" or not published or not smaller:
        return []
    option, _, stored = smaller.partition(" ")
    if question.asker != COMMAND_LINE:
        option, stored = option.removeprefix("--").replace("-", "_"), f'"{stored}"'
    advice = f"{option} takes other formats" if "FORMAT" in stored else f"{option} {stored} counts them so"
    counted = strategy.precision.likeliest()
    return [f"Weights are counted in {counted}, where the model's config says {published}: {advice}"]


# What may hide communication, by field of a strategy: what is hidden, the degree that there must be more than
# one of, and the field of a stack that says whether its measured runs do so.
_OVERLAPS = {
    "overlap_gradients": ("the reduction of gradients under the backward pass", "dp", "gradient_overlap"),
    "overlap_tensor": ("tensor-parallel communication under matrix products", "tp", "tensor_overlap"),
    "overlap_experts": ("the dispatch to experts under other work", "ep", "expert_overlap"),
}


def describe_overlap(question: Question, strategy: Strategy, phase: str) -> list[str]:
    """A line in training for each kind of communication that measured runs of the software hide where the
    layout does not, or the other way round, and nobody gives which.
    """
    stack, lines = question.system.stack, []
    for field, (what, degree, of_stack) in _OVERLAPS.items():
        hidden, hides = float(getattr(strategy, field).on) > _HALF, float(getattr(stack, of_stack).on) > _HALF
        several = float(getattr(strategy, degree)) > 1
        if phase != "training" or not several or hidden == hides or field in question.table:
            continue
        if question.asker == COMMAND_LINE:
            option = f"--{'' if hides else 'no-'}{field.replace('_', '-')}"
        else:
            option = f"{field}={hides}"
        state, runs = ("off", "hide it") if hides else ("on", "do not")
        lines.append(
            f"{field} is {state} ({what}): measured runs of {stack.name} {runs}; {option} counts it so"
        )
    return lines


def _same(one: MatrixFormat, other: MatrixFormat) -> bool:
    """Whether matrix units run two formats alike."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(float(first) == float(second) for first, second in pairs)


def describe_fit(layout: Layout) -> str:
    """A line about whether the configuration fits memory, and by how much it does not."""
    peak, capacity = (float(locate(layout.report, f"memory.{name}")[0]) for name in ("peak", "capacity"))
    if layout.fits:
        return f"Fits memory: {units.show(peak, 'byte')} of {units.show(capacity, 'byte')} per device"
    needs = f"needs {units.show(peak, 'byte')} of the {units.show(capacity, 'byte')} of a device"
    over = f"{units.show(peak - capacity, 'byte')} ({peak / capacity - 1:.1%}) too much"
    return f"[bold red]Does not fit memory[/bold red]: {needs}, {over}"


def describe_greatest(configuration: Configuration, phase: str, batch: float, length: float) -> str:
    """A line about the largest batch that memory holds in a phase of inference, and the longest prompts.

    - `batch`: sequences, 0 where not even one a replica fits; `length`: tokens of a prompt, 0 for none.
    """
    strategy, longest = configuration.strategy, float(configuration.model.longest_sequence)
    answer = float(strategy.output_length) if phase in ANSWERING else 0.0
    lengths = f"{float(strategy.sequence_length):,.0f}" + (f" + {answer:,.0f}" if answer else "")
    if not batch:
        return f"Memory holds no batch: one sequence of {lengths} tokens a replica is too much"
    line = f"Memory holds up to {counted(batch, 'sequence')} of {lengths} tokens"
    if not length:
        return line
    all_of_it = ", the longest of the model" if longest <= length + answer else ""
    return f"{line}, or this batch with prompts of up to {counted(length, 'token')}{all_of_it}"

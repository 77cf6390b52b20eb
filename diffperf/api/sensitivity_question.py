"""dp.sensitivity: what an output depends on, at a point, over ranges, or on the way to another system."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffperf.api.answer import Answer
from diffperf.api.attribution_answer import AttributionAnswer
from diffperf.api.boundary import answering, asker_of
from diffperf.api.from_python import asked, phase_of, relaxation, whole_number
from diffperf.api.question import Question
from diffperf.api.ranges_answer import RangesAnswer
from diffperf.api.sensitivity_answer import SensitivityAnswer
from diffperf.api.sobol_answer import SobolAnswer
from diffperf.errors import ConfigError
from diffperf.relax import Relaxation

SAMPLES = 1024  # of the variance, by default


@answering("sensitivity")
def sensitivity(
    model: Any,
    system: Any,
    phase: str = "training",
    *,
    output: str = "time",
    of: str | Sequence[str] = ("system",),
    top: int = 20,
    ranges: Mapping[str, Any] | None = None,
    sobol: bool = False,
    samples: int | None = None,
    interactions: bool = False,
    to: Any = None,
    devices: float | None = None,
    stack: Any = None,
    calibration: Any = None,
    set: Mapping[str, Any] | None = None,
    smooth: float | None = None,
    band: float | None = None,
    **strategy: Any,
) -> Answer:
    """Inputs on which an output depends, and how strongly.

    By itself: the exact elasticities, the percentage that 1 % more of each input adds to it; of whole numbers
    what one more and one less does. With `ranges`, the output at both ends of each; with `sobol`, the shares
    of its variance over them. With `to`, what each change on the way to another configuration contributes.

        dp.sensitivity("llama-3-8b", "dgx-h100", ranges={"hbm.bandwidth": "2..5 TB/s"}, sobol=True)

    **Arguments:** as of `dp.estimate`, and

    - `output`: its path in the report, such as "cost.run".
    - `of`: some of "system", "strategy" and "model": whose inputs have elasticities.
    - `top`: how many inputs are printed.
    - `ranges`: "2..5 TB/s", "±20%" or two values by the input's path.
    - `samples`, `interactions`: of the variance: samples, a power of two (by default 1024), and whether those
      of pairs are wanted.
    - `to`: another system, or other values of inputs by path.

    **Raises:** `ConfigError`, in one line.
    """
    asker = asker_of("sensitivity")
    whole_number(asker, "top", top, 1, 100_000)
    if samples is not None:
        whole_number(asker, "samples", samples, 2, 2**20)
    own = ("phase", "output", "of", "top", "ranges", "sobol", "samples", "interactions", "to")
    question = asked(
        "sensitivity",
        model,
        system,
        devices=devices,
        stack=stack,
        calibration=calibration,
        set=set,
        strategy=strategy,
        others=(*own, "devices", "stack", "calibration", "set", "smooth", "band"),
    )
    groups = (of,) if isinstance(of, str) else tuple(of)
    if ranges is not None and not isinstance(ranges, Mapping):
        remedy = 'write ranges={"hbm.bandwidth": "2..5 TB/s"}'
        raise ConfigError(asker, "ranges", repr(ranges)[:80], "ranges of inputs by their paths", remedy)
    return sensitivity_answer(
        question,
        phase=phase_of(asker, phase),
        output=output,
        groups=groups,
        relax=relaxation(asker, smooth, band),
        top=top,
        ranges=dict(ranges or {}),
        sobol=sobol,
        samples=samples,
        interactions=interactions,
        to=to,
    )


def sensitivity_answer(
    question: Question,
    phase: str,
    output: str,
    groups: Sequence[str],
    relax: Relaxation,
    top: int,
    *,
    ranges: Mapping[str, Any],
    sobol: bool,
    samples: int | None,
    interactions: bool,
    to: Any,
) -> Answer:
    """The answer to what is asked: at a point, over ranges, or on the way to another configuration.

    **Raises:** `ConfigError` for a combination that asks for nothing or for two things.
    """
    if to is not None and ranges:
        raise ConfigError(question.asker, "--to", "--range too", "one of them", "drop one of them")
    if (sobol or interactions) and not ranges:
        expected, remedy = "ranges to vary inputs over", 'add --range hbm.bandwidth="2..5 TB/s"'
        raise ConfigError(question.asker, "--sobol", "no range", expected, remedy)
    if samples is not None and not (sobol or interactions):
        expected, remedy = "samples of a variance", "add --sobol, or leave the samples out"
        raise ConfigError(question.asker, "--samples", f"{samples} without --sobol", expected, remedy)
    if interactions and len(ranges) < 2:
        expected, remedy = "two or more, whose pairs interact", "add another --range"
        raise ConfigError(question.asker, "--interactions", "one range", expected, remedy)
    if to is not None:
        return AttributionAnswer.of(question, phase, output, to)
    if sobol or interactions:
        count = SAMPLES if samples is None else samples
        return SobolAnswer.of(question, phase, output, ranges, count, interactions=interactions)
    if ranges:
        return RangesAnswer.of(question, phase, output, ranges)
    return SensitivityAnswer.of(question, phase=phase, output=output, groups=groups, relax=relax, top=top)

"""Configurations side by side: a panel of bars for each figure of merit."""

import dataclasses
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffperf import units
from diffperf.report.plots.style import (
    BLUE,
    GREY,
    INK,
    RED,
    bare,
    new_figure,
    note,
    set_title,
    shortened,
    styled,
)

_PANEL = 3.1  # inches across
_LETTERS = 9  # of the name of a group in an inch
_OVER = 20  # points from the bars of a group to its name
_BAR = 0.34  # inches down
_LONGEST = 32  # characters of a name in front of a bar


@dataclasses.dataclass(frozen=True)
class Bars:
    """The bars of one configuration.

    - `values`: by figure of merit; None where the configuration has none.
    - `error`: half the width of the 90 % interval of the first figure, as a share of it; None for unknown.
    - `remark`: what is written where there are no values.
    """

    name: str
    values: Mapping[str, float | None]
    error: float | None = None
    remark: str = ""


@styled
def comparison(
    groups: Mapping[str, Sequence[Bars]], titles: Mapping[str, tuple[str, str]], title: str = ""
) -> Figure:
    """A row of panels for each group, a panel for each figure of merit that any configuration has.

    `titles` has the meaning and the unit of each figure of merit.
    """
    shown = [
        name
        for name in titles
        if any(bars.values.get(name) is not None for members in groups.values() for bars in members)
    ] or list(titles)[:1]
    heights = [max(len(members), 1) for members in groups.values()]
    longest = min(
        max((len(bars.name) for members in groups.values() for bars in members), default=0), _LONGEST
    )
    width = 0.09 * longest + _PANEL * len(shown)
    figure = new_figure(max(width, 5.0), _BAR * sum(heights) + 1.0 * len(heights) + 0.3)
    grid = figure.subplots(
        len(groups), len(shown), squeeze=False, height_ratios=[height + 1.0 for height in heights]
    )
    for row, (group, members) in enumerate(groups.items()):
        for column, name in enumerate(shown):
            meaning, _ = titles[name]
            axes = grid[row, column]
            _draw(axes, members, name, labelled=column == 0)
            axes.set_title(f"\n{meaning}", fontsize=9)
        # Above all panels of the row, on the first lines of their titles.
        heading = shortened(group, int(_LETTERS * figure.get_figwidth()))
        place = {"xycoords": "axes fraction", "in_layout": False}
        note(grid[row, 0], heading, (0, 1), (0, _OVER), fontsize=9, weight="bold", **place)
    if any(bars.error is not None for members in groups.values() for bars in members):
        figure.supxlabel("lines at ends of bars: 90 % intervals", fontsize=8, x=0.01, ha="left")
    if title:
        set_title(figure, title)
    return figure


def _draw(axes: Axes, members: Sequence[Bars], name: str, *, labelled: bool) -> None:
    """Draws the bars of a panel, each with its value, the best one dark."""
    values = [bars.values.get(name) for bars in members]
    largest = max((value for value in values if value is not None), default=0.0)
    reach = max(
        (
            value * (1 + (bars.error or 0.0) * (name == "tokens_per_second_per_device"))
            for bars, value in zip(members, values, strict=True)
            if value is not None
        ),
        default=0.0,
    )
    for place, (bars, value) in enumerate(zip(members, values, strict=True)):
        if value is None:
            colour = RED if bars.remark else INK
            note(
                axes,
                bars.remark or "none published",
                (0, place),
                (4, 0),
                va="center",
                fontsize=8,
                color=colour,
            )
            continue
        axes.barh(place, value, height=0.62, color=BLUE if value >= largest * (1 - 1e-9) else GREY)
        end = value
        if bars.error is not None and name == "tokens_per_second_per_device":
            low, high = value / (1 + bars.error), value * (1 + bars.error)
            axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
            end = high
        # Tokens per dollar and joule have the prefixes that tokens per second have.
        text = units.show(value, "token/s", 3).replace("token/s", "").strip()
        note(axes, text, (end, place), (4, 0), va="center", fontsize=8)
    axes.set_yticks(
        range(len(members)), [shortened(bars.name, _LONGEST) for bars in members] if labelled else []
    )
    axes.set_ylim(len(members) - 0.4, -0.6)
    axes.set_xlim(0, 1.42 * reach if reach else 1.0)
    axes.set_xticks([])
    bare(axes)

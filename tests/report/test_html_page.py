"""Pages of HTML: what the terminal shows, without references to other files."""

from html.parser import HTMLParser

from matplotlib.figure import Figure
from rich.table import Table

from diffperf.report.html_page import Section, figure_svg, page, table_html
from diffperf.report.plots.style import INK


class Cells(HTMLParser):
    """Collects the texts of the cells of a table, row by row, and their classes."""

    def __init__(self, text: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.sides: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.inside = True
            self.rows[-1].append("")
            self.sides.append(dict(attrs).get("class", ""))

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def a_table():
    table = Table("limit", title="limits")
    table.add_column("value", justify="right")
    table.add_row("cost < $5", "[bold]4[/bold]")
    return table


def test_a_table_keeps_its_cells_and_sides():
    cells = Cells(table_html(a_table()))
    assert cells.rows == [["limit", "value"], ["cost < $5", "4"]]
    assert cells.sides == ["", "right", "", "right"]
    assert "<b>4</b>" in table_html(a_table())


def test_ink_follows_the_colours_of_the_page():
    figure = Figure()
    figure.subplots().plot([0, 1], [0, 1], color=INK)
    svg = figure_svg(figure)
    assert svg.startswith("<svg")
    assert INK not in svg
    assert "var(--ink)" in svg


def test_the_same_figure_gives_the_same_text():
    def drawn():
        figure = Figure()
        figure.subplots().bar([0, 1], [2, 3])
        return figure_svg(figure)

    assert drawn() == drawn()


def test_a_page_is_whole_and_escapes_what_it_shows():
    text = page("a < b", [Section("first", ["[bold]1[/bold] & 2", ["one", "two"], a_table()])])
    assert "<title>a &lt; b</title>" in text
    assert "<b>1</b> &amp; 2" in text
    assert text.count("<li>") == 2
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text

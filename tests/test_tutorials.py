"""Tutorials, pages by user and pages of some commands run from their tops, and print what they show."""

from pathlib import Path

import pytest
from documented_pages import Block, agrees, blocks, check_page, missing, renewed

DOCUMENTS = Path(__file__).parents[1] / ".docs" / "pages"
COMMANDS = [DOCUMENTS / f"{name}.md" for name in ("sensitivity", "serving")]
PAGES = sorted([*DOCUMENTS.glob("tutorials/*.md"), *DOCUMENTS.glob("howto/*.md"), *COMMANDS])


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(page, tmp_path):
    check_page(page, tmp_path)


def test_every_tutorial_runs_something_and_shows_an_answer():
    for page in PAGES:
        run = blocks(page.read_text(encoding="utf-8"))
        assert any(block.answers for block in run), page.name
        assert "~" not in "".join(answer.text for block in run for answer in block.answers), page.name


def test_a_page_is_read_as_files_programs_and_their_answers():
    page = '```toml title="a.toml"\nx = 1\n```\ntext\n```sh\ncat a.toml\n```\n```text\nx = 1\n```\n'
    file, command = blocks(page)
    assert (file.title, file.text, file.answers) == ("a.toml", "x = 1\n", [])
    assert command == Block("sh", "", "cat a.toml\n", page.index("cat"), command.answers)
    assert [answer.text for answer in command.answers] == ["x = 1\n"]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("Time 13.42 s", "Time  13.42 s  █▌", True),
        ("Time 13.42 s", "Time 13.43 s", True),
        ("Time 13.42 s", "Time 15.42 s", False),
        ("Time 13.42 s", "Time 13.42 ms", False),
        ("1,024 devices", "1,024 devices", True),
        ("gain −3 %", "gain 3 %", False),
    ],
)
def test_lines_agree_in_their_words_and_within_a_percent_in_their_numbers(shown, printed, same):
    assert agrees(shown, printed) == same


def test_an_answer_is_missing_where_a_line_is_lacking_changed_or_out_of_order():
    output = "first 1\nsecond 2\nthird 3\n"
    assert missing("first 1\n…\nthird 3", output) == ""
    assert missing("first 1\nfourth 4", output) == "fourth 4"
    assert missing("third 3\nfirst 1", output) == "first 1"
    assert missing("second 5", output) == "second 5"


def test_renewing_writes_the_numbers_of_the_output():
    assert renewed("time 1 s\n…\n~cost\n", "time 2 s\nother\nthe cost 5 $\n") == "time 2 s\n…\nthe cost 5 $\n"

"""First runs happen in the background, once; later ones at once."""

import threading
import time

import pytest

from diffperf.errors import ConfigError
from diffperf.page import programs as programs_module
from diffperf.page.programs import Compiling, Programs


@pytest.fixture
def programs():
    made = Programs()
    yield made
    made.close()


def result(programs: Programs, name: str, like, function):
    """Asks until there is a result."""
    for _ in range(200):
        try:
            return programs.run(name, like, function)
        except Compiling:
            time.sleep(0.01)
    raise TimeoutError(name)


def test_the_first_run_is_in_the_background_and_later_ones_are_not(programs):
    ran: list[str] = []

    def function() -> int:
        ran.append(threading.current_thread().name)
        return len(ran)

    with pytest.raises(Compiling):
        programs.run("count", 1.0, function)
    assert result(programs, "count", 1.0, function) == 2
    assert programs.run("count", 7.0, function) == 3  # another number, the same program
    assert ran[0].startswith("compiler")
    assert ran[1] == ran[2] == threading.current_thread().name


def test_another_structure_is_another_program(programs):
    assert result(programs, "double", 1.0, lambda: 2) == 2
    with pytest.raises(Compiling):
        programs.run("double", (1.0, 2.0), lambda: 4)
    with pytest.raises(Compiling):
        programs.run("triple", 1.0, lambda: 3)


def test_bad_input_is_refused_and_its_program_stays_compiled(programs):
    def refuse() -> int:
        raise ConfigError("page", "tp", "7", "another", "change it")

    with pytest.raises(ConfigError):
        result(programs, "layout", 1.0, refuse)
    assert programs.run("layout", 2.0, lambda: 5) == 5


def test_what_fails_is_tried_again(programs):
    def fail() -> int:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        result(programs, "large", 1.0, fail)
    assert result(programs, "large", 1.0, lambda: 5) == 5


def test_what_nobody_waits_for_any_more_is_not_compiled(programs, monkeypatch):
    monkeypatch.setattr(programs_module, "_FORGOTTEN", 0.05)
    busy, ran = threading.Event(), []
    with pytest.raises(Compiling):
        programs.run("first", 1.0, busy.wait)
    with pytest.raises(Compiling):
        programs.run("forgotten", 1.0, lambda: ran.append("forgotten"))
    time.sleep(0.1)
    with pytest.raises(Compiling):
        programs.run("wanted", 1.0, lambda: ran.append("wanted"))
    busy.set()
    result(programs, "wanted", 1.0, lambda: None)
    assert ran == ["wanted"]

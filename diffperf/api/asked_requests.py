"""The requests of a question about serving: their lengths, load and limits, as a user gives them."""

import math
from collections.abc import Mapping
from typing import Any

from diffperf import units
from diffperf.api.question import Question
from diffperf.errors import ConfigError
from diffperf.load import checked, declared_at, literal
from diffperf.quantity import replace
from diffperf.workload.requests import Requests

# Fields of a strategy that follow from the requests: how many sequences run at once, how long they are, what
# of them is cached, and how their answers are drafted.
OF_REQUESTS = (
    *("global_batch", "sequence_length", "output_length"),
    *("cached_share", "tokens_per_step", "draft_tokens", "draft_share"),
)
# Options of the fields of requests that are not named like the field.
_FLAGS = {"input_length": "input", "output_length": "output"}


def flag_of(name: str) -> str:
    """The option of a field of the requests, without its dashes."""
    return _FLAGS.get(name, name.replace("_", "-"))


def target_time(text: Any, file: str, key: str) -> float:
    """A target in seconds, infinite where there is none; a number is in seconds.

    **Raises:** `ConfigError` that names `file` and `key`.
    """
    if text is None:
        return math.inf
    expected = 'a time above 0, such as "500 ms"'
    try:
        seconds = units.parse(literal(text) if isinstance(text, str) else f"{text} s", "s")
    except units.UnitError as problem:
        remedy = str(problem).replace(units.example("s"), '"500 ms"')
        raise ConfigError(file, key, f'"{text}"', expected, remedy) from None
    if not seconds > 0:
        raise ConfigError(file, key, f'"{text}"', expected, "leave the option out for no target")
    return seconds


def read_requests(texts: Mapping[str, Any], file: str) -> tuple[Requests, dict[str, float]]:
    """The requests, and the fields of them that the user gives.

    **Raises:** `ConfigError` for a bad value, or where both a rate and a number of clients are given.
    """
    given = {}
    for name, text in texts.items():
        if text is not None:
            declared, value = declared_at(Requests(), name, file), literal(text)
            # A plain number is a rate per second: nobody means anything else.
            value = f"{text} 1/s" if name == "rate" and isinstance(value, int | float) else value
            given[name] = checked(declared, value, file, f"--{flag_of(name)}")
    if "rate" in given and "concurrency" in given:
        expected = "a rate of requests or a number of clients"
        raise ConfigError(file, "--rate", "--concurrency too", expected, "drop one of them")
    requests = replace(Requests(), given)
    if requests.tokens_per_step > 1 + requests.draft_tokens:
        found = f"{float(requests.tokens_per_step):g} tokens, of {float(requests.draft_tokens):g} drafted"
        expected = f"at most {1 + float(requests.draft_tokens):g}: one token and the drafted ones"
        raise ConfigError(file, "--tokens-per-step", found, expected, "draft more with --draft-tokens")
    return requests, given


def refuse_batches(question: Question) -> None:
    """Raises `ConfigError` where `--set` gives the strategy what the requests say: `OF_REQUESTS`."""
    for name in OF_REQUESTS:
        if name in question.table:
            found, expected = "a field that follows from the requests", "options of the requests"
            options = {"global_batch": "concurrency or --batch-cap", "sequence_length": "input"}
            remedy = f"use --{options.get(name) or flag_of(name)}"
            raise ConfigError(question.asker, f"strategy.{name}", found, expected, remedy)

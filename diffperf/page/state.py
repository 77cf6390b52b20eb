"""The state of the page: what the query of its address says, checked like a file of the user's."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from urllib.parse import quote

from diffperf import load
from diffperf.api.question import Question, read_system
from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.inputs import check_phase
from diffperf.hardware.system import System
from diffperf.load.calibration import Calibration
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy

PAGE = "page"  # named in place of a file in errors about the state
DEFAULTS = {"model": "gpt3-175b", "system": "dgx-a100", "phase": "training"}
# The folder of configs/ whose names a control takes. Nothing else is read: a path is no name of these.
FOLDERS = {"model": "models", "system": "systems", "stack": "stacks", "calibration": "calibrations"}
STRATEGY_FIELDS = tuple(field.name for field in dataclasses.fields(Strategy))

_TEXTS = ("model", "system", "phase", "devices", "stack", "calibration", "tokens")
_MOST_CHARACTERS = 200  # of one value
_MOST_SETTINGS = 500


@dataclasses.dataclass(frozen=True)
class State:
    """Question of the page, as texts with units.

    - `strategy`: the fields of the strategy that are given; the layout of the others is searched.
    - `settings`: overridden inputs, by path.
    """

    model: str = DEFAULTS["model"]
    system: str = DEFAULTS["system"]
    phase: str = DEFAULTS["phase"]
    devices: str | None = None
    stack: str | None = None
    calibration: str | None = None
    tokens: str | None = None
    strategy: dict[str, str] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "State":
        """The state of a query: `model`, `system` and so on, fields of the strategy, and any number of
        `set` with "path=value".

        **Raises:** `ConfigError` for a key that is unknown, given twice or too long, and for a name that is
        not that of a shipped config.
        """
        texts: dict[str, str] = {}
        strategy: dict[str, str] = {}
        settings: dict[str, str] = {}
        for key, value in pairs:
            if len(value) > _MOST_CHARACTERS:
                found = f"{len(value)} characters"
                raise ConfigError(PAGE, key[:50], found, f"at most {_MOST_CHARACTERS}", "shorten the value")
            if key == "set":
                path, value = _assignment(value)
                _add(settings, path, value)
            elif key in _TEXTS:
                _add(texts, key, value)
            elif key in STRATEGY_FIELDS:
                _add(strategy, key, value)
            else:
                hint = did_you_mean(key[:50], [*_TEXTS, "set", *STRATEGY_FIELDS])
                raise ConfigError(PAGE, key[:50], "an unknown key", "a control of the page", hint)
        if len(settings) > _MOST_SETTINGS:
            expected = f"at most {_MOST_SETTINGS} overridden inputs"
            raise ConfigError(PAGE, "set", str(len(settings)), expected, "leave some out")
        state = cls(**texts, strategy=strategy, settings=settings)
        state._check_names()
        return state

    def _check_names(self) -> None:
        check_phase(self.phase, PAGE, "phase")
        for key, folder in FOLDERS.items():
            name = getattr(self, key)
            known = _names(folder)
            if name is None or name in known or (key == "calibration" and name == "none"):
                continue
            hint = did_you_mean(name, known)
            raise ConfigError(PAGE, key, f'"{name}"', f"a name from configs/{folder}", hint)

    def query(self) -> str:
        """The state as the query of an address, without what has its default."""
        pairs = [(name, getattr(self, name)) for name in _TEXTS]
        pairs += [
            *self.strategy.items(),
            *(("set", f"{path}={text}") for path, text in self.settings.items()),
        ]
        given = [(name, text) for name, text in pairs if text is not None]
        return "&".join(f"{name}={quote(text, safe=' ,:/').replace(' ', '+')}" for name, text in given)

    def question(self) -> Question:
        """Question of the state. **Raises:** `ConfigError` for a value that cannot be used."""
        system, fitted = self.read_system()
        question = Question.about(
            model=_model(self.model),
            system=system,
            calibration=fitted,
            settings=self.settings,
            strategy=dict(self.strategy),
            gives_devices=self.devices is not None,
            asker=PAGE,
        )
        question.refuse_unused(self.phase)
        return question

    def read_system(self) -> tuple[System, Calibration | None]:
        """The system without the overridden inputs, and its calibration."""
        return _system(self.system, self.devices, self.stack, self.calibration)

    def read_model(self) -> Model:
        """The model without the overridden inputs."""
        return _model(self.model)

    def training_tokens(self) -> float | None:
        """The tokens of a whole training, if they are given.

        **Raises:** `ConfigError` for what is no number of tokens, and outside training.
        """
        if self.tokens is None:
            return None
        try:
            tokens = float(self.tokens)
        except ValueError:
            tokens = math.nan
        if not (1 <= tokens < math.inf):
            expected, remedy = "a number of tokens, at least one", "write one such as 15e12"
            raise ConfigError(PAGE, "tokens", f'"{self.tokens}"', expected, remedy)
        if self.phase != "training":
            raise ConfigError(PAGE, "tokens", f"phase {self.phase}", "the training phase", "clear the tokens")
        return tokens


def _assignment(text: str) -> tuple[str, str]:
    """Path and value of "path=value"."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        remedy = 'write one such as hbm.bandwidth="4 TB/s"'
        raise ConfigError(PAGE, "set", f'"{text[:50]}"', "path=value", remedy)
    return path.strip(), value.strip()


def _add(table: dict[str, str], key: str, value: str) -> None:
    if key in table:
        raise ConfigError(PAGE, key, "two values", "one value", "leave one out")
    table[key] = value


@functools.cache
def _names(folder: str) -> list[str]:
    return load.available(folder)


@functools.lru_cache(maxsize=32)
def _model(name: str) -> Model:
    return load.load_model(name, PAGE)


@functools.lru_cache(maxsize=32)
def _system(
    name: str, devices: str | None, stack: str | None, calibration: str | None
) -> tuple[System, Calibration | None]:
    return read_system(name, devices, stack, calibration, PAGE)

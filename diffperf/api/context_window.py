"""Whether the sequences that a user asks about are ones that the model can attend to."""

from collections.abc import Collection

from diffperf.errors import ConfigError
from diffperf.explore.plan.greatest import ANSWERING
from diffperf.workload.model import Model
from diffperf.workload.strategy import Strategy


def check_context(model: Model, tokens: float, asker: str, key: str) -> None:
    """Raises `ConfigError` where a model is asked for sequences of `tokens` tokens, prompt and answer, and is
    not made for them.

    - `asker`, `key`: what the error names in place of a file and of its key.
    """
    positions, window = float(model.learned_positions), float(model.context_window)
    found, remedy = f"sequences of {tokens:,.0f} tokens, prompt and answer", "shorten them"
    if 0 < positions < tokens:
        expected = f"at most the {positions:,.0f} positions of {model.name}"
        raise ConfigError(asker, key, found, expected, remedy)
    if 0 < window < tokens:
        expected = f"at most the {window:,.0f} tokens that {model.name} is made for"
        remedy += f", or say that its window is extended: --set model.context_window={tokens:.0f}"
        raise ConfigError(asker, key, found, expected, remedy)


def check_phase(model: Model, strategy: Strategy, given: Collection[str], phase: str, asker: str) -> None:
    """Raises `ConfigError` where a user asks in a phase of inference for sequences that the model is not made
    for.

    A training is free to extend the window, so that its sequences may have any length. Lengths that nobody
    gives are those of `Strategy` for every model, and pass.
    """
    answers = phase in ANSWERING
    lengths = ("sequence_length", "output_length") if answers else ("sequence_length",)
    if phase != "training" and any(name in given for name in lengths):
        tokens = sum(float(getattr(strategy, name)) for name in lengths)
        check_context(model, tokens, asker, ", ".join(lengths))

"""Time of a step of a serving engine, as a function of the tokens and sequences that it works on."""

import abc

import equinox as eqx
import jax.numpy as jnp

from diffperf.estimate.serving.monotone_interpolation import Interpolant
from diffperf.quantity import Scalar
from diffperf.relax import larger


class EngineSteps(eqx.Module):
    """The duration of an engine's steps."""

    @abc.abstractmethod
    def time(self, running: Scalar, prompt_tokens: Scalar) -> Scalar:
        """Seconds of a step in which `running` sequences decode and `prompt_tokens` tokens of prompts are
        prefilled; either may be 0.
        """


class StepsWithHandover(EngineSteps):
    """Steps of an engine that is busy with each prompt for a time of its own beside its passes.

    - `passes`: the steps without it; `token_time`: its seconds over the tokens of a prompt.
    """

    passes: EngineSteps
    token_time: Scalar

    def time(self, running: Scalar, prompt_tokens: Scalar) -> Scalar:
        return self.passes.time(running, prompt_tokens) + prompt_tokens * self.token_time


class InterpolatedSteps(EngineSteps):
    """Step times between those of a few passes.

    A step's linear layers read their weights once for all of its tokens, those of prompts and those that
    sequences decode: this is what chunked prefill gains (Sarathi-Serve, OSDI'24 §4.1). Attention works on
    each sequence by itself, so that its times add up.

    - `of_tokens`: seconds of all that depends on the number of tokens alone, against tokens of the step.
    - `of_sequences`: seconds of the attention and the vocabulary projection of decoding sequences, and of
      drafting for them, against sequences.
    - `of_prompt_token`: seconds of attention for a token of a prompt, with the projections that latent
      attention repeats for the tokens before it, and of what the power limit adds to its linear layers beyond
      those of decoding sequences.
    - `queries`: tokens that a decoding sequence has in a step, drafted ones included.
    - `prompt_ranks`: context-parallel ranks, of which each works on an equal part of the tokens of a prompt,
      but on all that sequences decode.
    - `prompt_launch`: seconds of the host to launch a step with prompts, which takes no less. Steps without
      prompts replay recorded graphs of kernels.
    """

    of_tokens: Interpolant
    of_sequences: Interpolant
    of_prompt_token: Scalar
    queries: Scalar
    prompt_ranks: Scalar
    prompt_launch: Scalar

    def time(self, running: Scalar, prompt_tokens: Scalar) -> Scalar:
        tokens = running * self.queries + prompt_tokens / self.prompt_ranks
        time = self.of_tokens(tokens) + self.of_sequences(running) + prompt_tokens * self.of_prompt_token
        return jnp.where(prompt_tokens > 0, larger(time, self.prompt_launch), time)

"""The prefill of prompts by an engine, in chunks that share steps with decoding sequences and other
prompts.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diffperf.estimate.serving.engine_steps import EngineSteps
from diffperf.estimate.serving.traffic import Traffic
from diffperf.quantity import Scalar
from diffperf.relax import Relaxation, larger, smaller

Lengths = Float[Array, " lengths"]

# Fewest tokens in a divisor.
_LEAST_TOKENS = 1e-3


class Prefill(eqx.Module):
    """The steps that prefill prompts of representative lengths while `running` sequences decode.

    A step has room for `budget` prompt tokens. A prompt takes `chunks` steps, all but the last of them full;
    in its last step are `last` tokens of it and room for `free` tokens of other prompts. All three are means
    over the lengths that a representative length stands for, so that `chunks` need not be whole. In a
    pipeline of `stages` stages each works on an equal part of a step's budget at a time.
    """

    steps: EngineSteps
    running: Scalar
    prompts: Lengths
    budget: Scalar
    chunks: Lengths
    last: Lengths
    free: Lengths
    stages: Scalar | float = 1.0

    @classmethod
    def of(
        cls,
        steps: EngineSteps,
        traffic: Traffic,
        running: Scalar,
        budget: Scalar,
        relax: Relaxation,
        stages: Scalar | float = 1.0,
    ) -> "Prefill":
        """The prefill with `budget` prompt tokens to a step beside `running` decoding sequences."""
        taken = traffic.prompts[:, None] * traffic.around / budget
        chunks = jnp.mean(relax.maximum(relax.ceil(taken), jnp.ones_like(taken)), axis=1)
        last = larger(traffic.prompts - (chunks - 1) * budget, _LEAST_TOKENS)
        free = larger(chunks * budget - traffic.prompts, _LEAST_TOKENS)
        return cls(
            steps=steps,
            running=running,
            prompts=traffic.prompts,
            budget=budget,
            chunks=chunks,
            last=last,
            free=free,
            stages=stages,
        )

    def _times(self, prompt_tokens: Lengths) -> Lengths:
        """Seconds of steps with these numbers of prompt tokens."""
        return jax.vmap(lambda tokens: self.steps.time(self.running, tokens))(prompt_tokens)

    @property
    def full_step(self) -> Scalar:
        """Seconds of a step whose budget is used up."""
        return self.steps.time(self.running, self.budget)

    @property
    def full_steps(self) -> Lengths:
        """Steps that a prompt takes where prompts fill all steps."""
        return self.prompts / self.budget

    @property
    def share_of_step(self) -> Lengths:
        """The share of one step that a prompt takes, 1 if it takes more than one."""
        return smaller(self.full_steps, jnp.ones_like(self.prompts))

    @property
    def busy_time(self) -> Lengths:
        """Seconds that a prompt takes where prompts fill all steps."""
        return self.full_steps * self.full_step

    @property
    def alone_time(self) -> Lengths:
        """Seconds of the steps of a prompt that no other prompt shares."""
        return (self.chunks - 1) * self.full_step + self._times(self.last)

    @property
    def time_before_last_step(self) -> Lengths:
        """Seconds of a prompt's steps but the last."""
        return (self.chunks - 1) * self.full_step

    def _other_tokens(self, others: Lengths | Scalar | float, group: Lengths | Scalar | float) -> Lengths:
        """Tokens of other prompts in the last step of a prompt.

        Short prompts all find room as long as they are few. Of long prompts any number but 0 fills the step.

        - `others`: mean number of prompts, Poisson distributed, that are there to fill the step up.
        - `group`: number of prompts that always come with the prompt.
        """
        of_group = smaller(group * self.prompts, self.free)
        left = self.free - of_group
        share = smaller(self.prompts / self.free, jnp.ones_like(self.prompts))
        return of_group + left * (1 - jnp.exp(-others * share))

    def shared_time(self, others: Lengths | Scalar, group: Lengths | Scalar | float = 0.0) -> Lengths:
        """Seconds of the steps of a prompt whose last step has tokens of other prompts, too."""
        return self.time_before_last_step + self._times(self.last + self._other_tokens(others, group))

    def passage(self, service: Lengths) -> Lengths:
        """Seconds beyond those of a prompt's steps, `service`, until its last chunk has left the pipeline.

        A step of p stages takes as long as a part of its tokens takes through all of them, so that other
        parts of the step are under way at the same time. A prompt of k chunks, each on a stage at a time,
        takes k + p − 1 times what a stage takes for a chunk (GPipe, arXiv 1811.06965 §2.3): a prompt that
        fits into a chunk goes through all stages in one piece. 0 without a pipeline.
        """
        on_stage = self.budget / self.stages  # most tokens of a chunk
        tokens = smaller(self.prompts, on_stage)
        chunks = larger(self.prompts / on_stage, 1.0)
        through = (1 + (chunks - 1) / self.stages) * self._times(tokens * self.stages)
        several = smaller(self.stages - 1, 1.0)
        return several * larger(through - service, 0.0)

    def unshared_time(self, group: Lengths | Scalar | float = 0.0) -> Lengths:
        """Seconds of a prompt's last step, with `group` other prompts in it, beyond those that its tokens
        take in a full step: what fuller steps save.
        """
        together = self.last + self._other_tokens(0.0, group)
        return self._times(together) - together / self.budget * self.full_step

    def stall(
        self, others: Lengths | Scalar, decode_time: Scalar, group: Lengths | Scalar | float = 0.0
    ) -> Lengths:
        """Seconds by which a prompt lengthens steps that would take `decode_time` without prompts.

        A last step that several prompts share is lengthened by each in proportion to its tokens: what rides
        along for free under the reading of the weights is shared, too.
        """
        together = self.last + self._other_tokens(others, group)
        full = (self.chunks - 1) * (self.full_step - decode_time)
        return full + (self._times(together) - decode_time) * self.last / together

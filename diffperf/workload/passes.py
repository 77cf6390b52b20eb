"""Passes through the model: the tokens of a micro-batch in training, of a part of the prompts in prefill, and
of a decode pass.
"""

import equinox as eqx

from diffperf.quantity import Scalar
from diffperf.relax import larger
from diffperf.workload.configuration import Configuration
from diffperf.workload.stages import one_stage
from diffperf.workload.strategy import Strategy


class TokenPass(eqx.Module):
    """The tokens that one pass through the model works on, in each replica.

    - `sequences`: sequences that a replica serves at once, or the micro-batch of a training step.
    - `queries`: new tokens of each sequence.
    - `context`: tokens that the last of them attends to, itself included.
    - `outputs`: tokens that each sequence generates in all, where the pass stands for the mean of all passes
      of a generation; None for a pass at the one context given.
    - `parts`: passes like this one in which the sequences of a replica go through the pipeline.
    - `submissions`: times that an engine hands prompts to the pipeline, which is empty between them, for all
      these parts together.
    - `generating`: whether the new tokens follow a context in the KV cache, rather than being a prompt or
      a training sequence.
    - `serving`: whether the pass is inference, in which every rank of a tensor-parallel group ends a layer
      with the residual stream of all tokens of the group; in training the ranks of the group may hand on a
      part of the tokens each.
    """

    sequences: Scalar
    queries: Scalar
    context: Scalar
    outputs: Scalar | None = None
    parts: Scalar | float = 1.0
    submissions: Scalar | float = 1.0
    generating: bool = eqx.field(static=True, default=False)
    serving: bool = eqx.field(static=True, default=False)

    @property
    def tokens(self) -> Scalar:
        """New tokens of all sequences."""
        return self.sequences * self.queries

    @property
    def logits(self) -> Scalar:
        """Tokens of inference whose logits are computed: the last of every prompt, and all of a decode pass,
        which verifies drafted tokens by the model's own choice after each of them (Leviathan et al., arXiv
        2211.17192, Algorithm 1).
        """
        return self.tokens if self.generating else self.sequences

    def up_projected_tokens(self, strategy: Strategy) -> Scalar:
        """Tokens whose keys and values a tensor-parallel group makes of their latents: of a prompt all that
        it attends to, those of a cached prefix too. Generated tokens attend to latents as they are, by
        products with as many FLOPs as keys and values of the new tokens (arXiv 2405.04434 §2.1.2).
        """
        new = self.tokens_on_rank(strategy)
        return new if self.generating else new * (self.context / self.queries)

    def tokens_on_rank(self, strategy: Strategy) -> Scalar:
        """New tokens that each rank of a tensor-parallel group multiplies.

        Context-parallel ranks share a prompt. Generated tokens are too few to share: every rank works on
        all of them, against its part of the context.
        """
        return self.tokens if self.generating else self.tokens / strategy.cp


def training_pass(strategy: Strategy) -> TokenPass:
    """The tokens of one micro-batch."""
    length = strategy.sequence_length
    return TokenPass(sequences=strategy.micro_batch, queries=length, context=length)


def prompt_pass(c: Configuration) -> TokenPass:
    """One part of the prompts of a replica, without what of them is cached. A part of a prompt counts as so
    much of a sequence.
    """
    strategy, parts = c.strategy, prompt_parts(c)
    return TokenPass(
        sequences=strategy.replica_sequences / parts,
        queries=strategy.prefilled_length,
        context=strategy.sequence_length,
        parts=parts,
        submissions=submissions(c),
        serving=True,
    )


def token_pass(c: Configuration, outputs: Scalar | None = None) -> TokenPass:
    """One token of every sequence of a part of those of a replica, and the drafted ones after it, at the mean
    context of the generation.

    Token i of the o − 1 after the first attends to the prompt, i − 1 outputs and itself. Of d drafted tokens
    in passes that add t tokens each, the last of pass k attends to the prompt, 1 + (k − 1)·t outputs and d
    tokens; of all (o − 1) / t passes that is the prompt, o / 2 and d − (t − 1) / 2 tokens on average. With
    `outputs` the pass is the mean of all passes of a generation of so many tokens.
    """
    strategy = c.strategy
    beside_one = strategy.draft_tokens - (strategy.tokens_per_step - 1) / 2
    # Less than half a token would be left only where steps add more than they draft, which a rule refuses.
    prompt, parts = larger(strategy.sequence_length + beside_one, 0.5), sequence_parts(c)
    return TokenPass(
        sequences=strategy.replica_sequences / parts,
        queries=1 + strategy.draft_tokens,
        context=prompt + strategy.output_length / 2,
        outputs=outputs,
        parts=parts,
        generating=True,
        serving=True,
    )


def sequence_parts(c: Configuration) -> Scalar:
    """Parts in which the sequences of a replica pass the pipeline: one for each stage, as far as there are
    sequences.
    """
    return c.relax.maximum(c.relax.minimum(c.strategy.pp, c.strategy.replica_sequences), 1.0)


def prompt_parts(c: Configuration) -> Scalar:
    """Parts in which the prompts of a replica pass the pipeline: those of their sequences, or more of them
    where an engine puts so many tokens into a pass at most. Without a pipeline all pass at once.
    """
    strategy = c.strategy
    tokens = strategy.replica_sequences * strategy.prefilled_length
    parts = c.relax.maximum(sequence_parts(c), tokens / c.system.stack.pass_tokens)
    alone = one_stage(strategy, c.relax)
    return alone + (1 - alone) * parts


def submissions(c: Configuration) -> Scalar:
    """Number of times that an engine hands prompts of a replica to the pipeline, which is empty between
    them.
    """
    strategy = c.strategy
    tokens = strategy.replica_sequences * strategy.prefilled_length
    return c.relax.maximum(tokens / c.system.stack.submitted_tokens, 1.0)

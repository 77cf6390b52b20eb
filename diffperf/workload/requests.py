"""The requests that a serving system answers: how many come, how long they are, and the limits under which
an engine takes them into its batch.
"""

from diffperf.quantity import Declared, Scalar, Weights, choice, quantity, switch
from diffperf.workload.generation_quantities import (
    cached_share,
    draft_share,
    draft_tokens,
    tokens_per_step,
)


class Requests(Declared):
    """A stream of requests and the limits of the engines that answer it.

    The engine is a replica: tp·pp·cp devices that run one continuous batch. The strategy's dp replicas share
    the requests evenly. Lengths are log-normal in the estimate, a shape that fits published traces of
    prompts and answers about as well as a distribution of two parameters can.
    """

    load: Weights = choice(
        "rate",
        "concurrency",
        doc="known quantity of the load: the rate of requests, or the number of clients who wait for answers",
        default="concurrency",
    )
    rate: Scalar = quantity(
        "1/s", "requests that arrive per second at the whole system", bounds=(1e-6, 1e7), default=1
    )
    concurrency: Scalar = quantity(
        "",
        "clients of the whole system, each of whom sends the next request when the last is answered",
        bounds=(1, 1e7),
        default=1,
    )
    input_length: Scalar = quantity(
        "", "mean tokens of a request's prompt", bounds=(1, 4e6), default=1024, integer=True
    )
    input_spread: Scalar = quantity(
        "", "standard deviation of the length of prompts over its mean", bounds=(0, 3), default=0
    )
    output_length: Scalar = quantity(
        "", "mean tokens of a request's answer", bounds=(1, 1e6), default=256, integer=True
    )
    output_spread: Scalar = quantity(
        "", "standard deviation of the length of answers over its mean", bounds=(0, 3), default=0.3
    )
    cached_share: Scalar = cached_share()
    batch_cap: Scalar = quantity(
        "", "most sequences that a replica runs at once (max_num_seqs)", bounds=(1, 1e5), default=256
    )
    chunk: Scalar = quantity(
        "",
        "most tokens of a step of the engine, which limits the prompt tokens in it (max_num_batched_tokens)",
        bounds=(16, 1e6),
        default=8192,
    )
    mixed_steps: Weights = switch(
        "prompt tokens in the steps that also decode (chunked prefill), not in steps of their own",
        default=True,
    )
    batch_wait: Scalar = quantity(
        "",
        "most steps for which an engine lets prompts wait for others while it decodes "
        "(TensorRT-LLM's batch_wait_timeout_iters)",
        bounds=(0, 1e4),
        default=0,
    )
    begin_together: Weights = switch(
        "clients of a closed loop begin at the same time, so that requests of equal lengths stay together in "
        "groups that fill a step; otherwise one after the other, a prompt a step",
        default=True,
    )
    tokens_per_step: Scalar = tokens_per_step()
    draft_tokens: Scalar = draft_tokens()
    draft_share: Scalar = draft_share()

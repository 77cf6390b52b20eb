"""Servers under a constant number of clients: what their requests are, and the steady state they reach."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from diffperf.estimate.serving.disaggregated import serve_disaggregated
from diffperf.estimate.serving.pools import Pool
from diffperf.estimate.serving.serving_report import ServingReport, serve
from diffperf.explore.measured.stacking import numbers
from diffperf.explore.measured.table import Row
from diffperf.hardware.system import System
from diffperf.quantity import Scalar, Weights, replace
from diffperf.relax import larger, smaller
from diffperf.workload.model import Model
from diffperf.workload.requests import Requests

Numbers = Float[Any, "*rows"]

# The most tokens of a step, of engines whose rows do not say them.
STEP_TOKENS = float(Requests.__dataclass_fields__["chunk"].default)


class Demand(NamedTuple):
    """Requests of the clients of a server, of which each client has one at a time.

    - `concurrency`: requests in flight, waiting ones among them.
    - `batch_cap`: requests that the server runs at once at most.
    - `input_length`, `output_length`: mean tokens of a prompt and of an answer.
    - `input_spread`, `output_spread`: standard deviations of these numbers over their means.
    - `batch_wait`: steps for which the server lets prompts wait for others.
    - `chunk`: most tokens of a step.
    - `draft_tokens`: tokens that a step drafts for each request; 0 without speculative decoding.
    - `tokens_per_step`: tokens that a step adds to each request; 1 without speculative decoding.
    - `at_start`: share of the requests of the measured run that come at its start, all at once.
    """

    concurrency: Numbers
    batch_cap: Numbers
    input_length: Numbers
    input_spread: Numbers
    output_length: Numbers
    output_spread: Numbers
    batch_wait: Numbers
    chunk: Numbers
    draft_tokens: Numbers
    tokens_per_step: Numbers
    at_start: Numbers

    @property
    def requests(self) -> Requests:
        """The requests that clients send in the steady state.

        Benchmarks' clients do not begin at exactly the same time: with equal lengths, measured first tokens
        are those of prompts that follow one another step by step.
        """
        fields = self._asdict()
        del fields["at_start"]
        return Requests(
            load=Weights(jnp.asarray([0.0, 1.0]), ("rate", "concurrency")),
            begin_together=Weights(jnp.asarray([1.0, 0.0]), ("off", "on")),
            **fields,
        )


class Served(NamedTuple):
    """The steady state of a server.

    - `time_to_first_token`: mean seconds from a request to its first token, waiting included.
    - `first_token_of_run`: the same over a whole measured run, which begins with a request of every client at
      once.
    - `time_per_output_token`: mean seconds between two tokens of a request, stalls included.
    - `latency`: mean seconds from a request to its last token.
    - `output_rate_of_run`: output tokens per second of all devices over a whole measured run.
    - `power`: average W of a device.
    """

    time_to_first_token: Scalar
    first_token_of_run: Scalar
    time_per_output_token: Scalar
    latency: Scalar
    output_rate_of_run: Scalar
    power: Scalar


def steady_state(model: Model, system: System, prefill: Pool | None, decode: Pool, demand: Demand) -> Served:
    """The steady state of a server that runs prompts in one pool and outputs in another.

    `prefill` is None where both share the devices of `decode`.
    """
    if prefill is None:
        return _aggregated(model, system, decode, demand)
    report = serve_disaggregated(model, system, prefill, decode, demand.requests).serving
    return _served(report, jnp.ones_like(decode.workers), demand)


def _aggregated(model: Model, system: System, pool: Pool, demand: Demand) -> Served:
    """The steady state of workers that run prompts and outputs, and share the clients evenly."""
    requests = demand.requests
    strategy = pool.strategy
    worker = eqx.tree_at(lambda system: system.n_devices, system, strategy.devices)
    each = replace(requests, {"concurrency": requests.concurrency / pool.workers})
    return _served(serve(model, worker, strategy, each), pool.workers, demand)


def _served(report: ServingReport, workers: Scalar, demand: Demand) -> Served:
    """The steady state of so many equal servers with one report."""
    at_start = demand.at_start
    later = report.time_to_first_token_at_start - report.time_to_first_token
    answer = demand.output_length * report.time_per_output_token
    share = share_of_steady_rate(
        at_start,
        clients=demand.concurrency,
        later=later / report.latency,
        answer=answer / report.latency,
        spread=demand.output_spread,
    )
    return Served(
        time_to_first_token=report.time_to_first_token,
        first_token_of_run=(
            at_start * report.time_to_first_token_at_start + (1 - at_start) * report.time_to_first_token
        ),
        time_per_output_token=report.time_per_output_token,
        latency=report.latency,
        output_rate_of_run=report.tokens_per_second * workers * share,
        power=report.power,
    )


def share_of_steady_rate(
    at_start: Numbers, *, clients: Numbers, later: Numbers, answer: Numbers, spread: Numbers
) -> Numbers:
    """The rate of a whole run over that of its steady state.

    R = 1 / `at_start` requests for each of c clients, who begin at once, take R latencies and more: the first
    tokens of the start are late, and in the end fewer and fewer clients have a request. Their times to the
    last round deviate by σ √(R − 1), of which the latest of c normal numbers (Blom, "Statistical Estimates
    and Transformed Beta-Variables", 1958) is awaited. Once requests end at all times alike, the end begins
    R − ½ latencies after the start, and the longest answer lasts on for c / (c + 1) of its time.

    - `later`: by how much the first tokens of the start are later than others; `answer`: time of a mean
      answer. Both are over the mean latency.
    - `spread`: standard deviation of the answers' lengths over their mean; the lengths are uniform.
    """
    deviation = answer * spread
    number = larger(clients, 1.0)
    latest = jax.scipy.special.ndtri((number - 0.375) / (number + 0.25))
    in_step = jnp.sqrt(at_start * (1 - at_start)) * deviation * latest
    longest = 1 + jnp.sqrt(3) * deviation
    end = smaller(in_step, at_start * (number / (number + 1) * longest - 0.5))
    return 1 / (1 + at_start * larger(later, 0.0) + end)


# InferenceX's benchmark (SemiAnalysisAI/InferenceX) runs three pairs of lengths, which are uniform from 80 %
# of the longest on (random_range_ratio 0.8). Other lengths are taken as they are stated: so are those of
# aiconfigurator's benchmark (ai-dynamo/aiconfigurator, genai_perf_runner.py and bench_serving_runner.py).
# In both each client sends ten requests.
_RANGE_RATIO, _RANDOM_LENGTHS = 0.8, {(1024, 1024), (1024, 8192), (8192, 1024)}
_ROUNDS = 10


def plain_lengths(rows: Sequence[Row]) -> Demand:
    """The demand of rows that have the longest prompt and answer alone, plainly decoded."""
    zeros, clients = np.zeros(len(rows)), numbers(rows, "concurrency")
    pairs = [(row["input_len"], row["output_len"]) for row in rows]
    usual = np.array([_RANGE_RATIO if pair in _RANDOM_LENGTHS else 1.0 for pair in pairs])
    mean = (1 + _stated(rows, "random_range_ratio", usual)) / 2
    spread = _uniform_spread(1 / mean)
    return Demand(
        concurrency=clients,
        batch_cap=clients,
        input_length=mean * numbers(rows, "input_len"),
        input_spread=spread,
        output_length=mean * numbers(rows, "output_len"),
        output_spread=spread,
        batch_wait=numbers(rows, "batch_wait"),
        chunk=_stated(rows, "max_num_batched_tokens", zeros + STEP_TOKENS),
        draft_tokens=zeros,
        tokens_per_step=zeros + 1,
        at_start=zeros + 1 / _ROUNDS,
    )


def _uniform_spread(longest: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """The standard deviation over the mean of uniform lengths, from their longest over the mean: a uniform
    length with mean μ that ends at b has the standard deviation (b − μ) / √3.
    """
    return (longest - 1) / np.sqrt(3)


def _stated(
    rows: Sequence[Row], column: str, otherwise: Float[np.ndarray, " rows"]
) -> Float[np.ndarray, " rows"]:
    """The numbers in a column, and others in rows where it is empty."""
    pairs = zip(rows, otherwise, strict=True)
    return np.array([other if row[column] is None else row[column] for row, other in pairs], dtype=float)


def uniform_lengths(rows: Sequence[Row]) -> Demand:
    """The demand of rows whose lengths are uniform up to a longest one, as InferenceX draws them."""
    clients = numbers(rows, "concurrency")
    prompts, answers = mean_length(rows, "input_len"), mean_length(rows, "output_len")
    return Demand(
        concurrency=clients,
        batch_cap=clients,
        input_length=prompts,
        input_spread=_uniform_spread(numbers(rows, "input_len") / prompts),
        output_length=answers,
        output_spread=_uniform_spread(numbers(rows, "output_len") / answers),
        batch_wait=numbers(rows, "batch_wait"),
        chunk=_stated(rows, "max_num_batched_tokens", np.full(len(rows), STEP_TOKENS)),
        draft_tokens=numbers(rows, "spec_tokens"),
        tokens_per_step=np.array([row["tokens_per_step"] or 1.0 for row in rows]),
        at_start=np.full(len(rows), 1 / _ROUNDS),
    )


def mean_length(rows: Sequence[Row], column: str) -> Float[np.ndarray, " rows"]:
    """The mean of lengths whose maximum a column has; the maximum itself where a row says no mean."""
    return np.array([row[f"{column}_mean"] or row[column] for row in rows], dtype=float)

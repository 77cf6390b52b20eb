"""A simulation of the scheduler of a serving engine, step by step and request by request, against which the
steady state of continuous batching is tested.

The scheduler is that of vLLM and Sarathi-Serve: first come, first served; every running sequence gets one
token of a step; prompts fill the rest of the step's tokens, in chunks. Without mixed steps prompts get steps
of their own before any sequence goes on. A sequence that no longer fits into the KV cache is computed again
later, the youngest first. As in TensorRT-LLM, prompts may wait for others while sequences decode.
"""

import dataclasses
import heapq
from collections import deque
from collections.abc import Callable

import numpy as np

# Seconds of a step, from the sequences that decode, the tokens of their contexts (linear in these), and the
# prompt tokens.
StepTime = Callable[[float, float, float], float]


@dataclasses.dataclass
class Request:
    """One request and what happened to it."""

    arrival: float
    prompt: int  # tokens still to prefill
    output: int  # tokens still to generate
    context: int = 0  # tokens in the KV cache when it last joined or left the running ones, or was sent here
    joined: int = 0  # decode steps of the engine when it did
    generated: int = 0
    first: float = -1.0
    finish: float = -1.0

    @property
    def time_to_first_token(self) -> float:
        return self.first - self.arrival

    @property
    def time_per_output_token(self) -> float:
        return (self.finish - self.first) / (self.generated - 1)


@dataclasses.dataclass
class Observed:
    """Mean values of a simulated run after its warm-up."""

    ttft: float
    ttft_p90: float
    tpot: float
    tpot_p90: float
    throughput: float  # requests per second
    running: float  # sequences that decode, mean over time
    in_system: float  # requests in the system, mean over time
    latency: float
    preemptions: int


class Engine:
    """The state of the engine between two steps."""

    def __init__(
        self,
        step_time: StepTime,
        *,
        cap: int,
        chunk: int,
        mixed: bool,
        kv_tokens: float,
        batch_wait: int = 0,
    ):
        self.step_time, self.cap, self.chunk, self.mixed, self.kv_tokens, self.batch_wait = (
            step_time,
            cap,
            chunk,
            mixed,
            kv_tokens,
            batch_wait,
        )
        self.waited = 0  # steps for which the engine has gathered prompts
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        # By the decode step at which a sequence ends, since all of them advance by one token a step.
        self.running: list[tuple[int, int, Request]] = []
        self.decode_steps = 0
        self.admitted = 0
        self.context = 0.0  # tokens in the KV cache of running sequences
        self.prefilled = 0.0  # tokens in the KV cache of unfinished prompts
        self.preemptions = 0

    def step(self, now: float, next_arrival: float) -> tuple[float, list[Request]]:
        """Runs one step, or all decode steps until something changes. Returns the time at the end and the
        requests that were answered in full.
        """
        gathering = self._gathers_prompts()
        prompts_first = not self.mixed and not gathering
        decoding = 0 if prompts_first and self._has_prompts() else len(self.running)
        if decoding:
            self._make_room()
            decoding = len(self.running)
        budget = 0 if gathering else self.chunk - decoding
        prompt_tokens, finished_prompts = self._schedule_prompts(budget)
        steps = 1 if prompt_tokens or gathering else self._unchanged_steps(next_arrival - now)
        context = self.context + decoding * (steps - 1) / 2 if decoding else 0.0
        now += steps * self.step_time(decoding, context, prompt_tokens)
        done = []
        if decoding:
            self.decode_steps += steps
            self.context += decoding * steps
            while self.running and self.running[0][0] <= self.decode_steps:
                request = heapq.heappop(self.running)[2]
                self.context -= self._context_of(request)
                request.generated += self.decode_steps - request.joined
                request.finish = now
                done.append(request)
        for request in finished_prompts:
            self._join(request, now, done)
        return now, done

    def _gathers_prompts(self) -> bool:
        """Whether prompts wait in this step for others, because they have not waited for long and do not
        fill a step.
        """
        if not (self.running and self.waiting) or self.prefilling:
            return False
        few = sum(request.prompt for request in self.waiting) < self.chunk
        gathers = few and self.waited < self.batch_wait
        self.waited = self.waited + 1 if gathers else 0
        return gathers

    def _unchanged_steps(self, until_arrival: float) -> int:
        """Steps that decode for the same sequences: until one ends, a request arrives, or memory is short."""
        if np.isfinite(self.kv_tokens):
            return 1
        until_end, decoding = self.running[0][0] - self.decode_steps, len(self.running)
        if np.isinf(until_arrival):
            return until_end
        longest = self.step_time(decoding, self.context + decoding * until_end, 0)
        return max(min(until_end, int(until_arrival / longest)), 1)

    def _has_prompts(self) -> bool:
        if self.prefilling:
            return True
        in_engine = len(self.running)
        return bool(self.waiting) and in_engine < self.cap and self._fits(self.waiting[0])

    def _fits(self, request: Request) -> bool:
        size = request.context + request.prompt
        return self.context + self.prefilled + size <= self.kv_tokens or not (self.running or self.prefilling)

    def _schedule_prompts(self, budget: int) -> tuple[int, list[Request]]:
        """Takes prompts into the step. Returns their tokens and the requests whose prompts it finishes."""
        tokens, finished = 0, []
        while budget > tokens:
            if not self.prefilling:
                full = len(self.running) + len(finished) >= self.cap
                if not self.waiting or full or not self._fits(self.waiting[0]):
                    break
                self.prefilling.append(self.waiting.popleft())
                self.prefilled += self.prefilling[-1].context  # what another engine prefilled
            request = self.prefilling[0]
            taken = min(request.prompt, budget - tokens)
            tokens += taken
            request.prompt -= taken
            request.context += taken
            self.prefilled += taken
            if request.prompt == 0:
                finished.append(self.prefilling.popleft())
        return tokens, finished

    def _join(self, request: Request, now: float, done: list[Request]) -> None:
        """A request whose prompt is finished has its first token, and joins the running sequences."""
        self.prefilled -= request.context
        if request.first < 0:
            request.first = now
        request.generated += 1
        request.output -= 1
        request.context += 1
        request.joined = self.decode_steps
        if request.output == 0:
            request.finish = now
            done.append(request)
            return
        self.context += request.context
        self.admitted += 1
        heapq.heappush(self.running, (self.decode_steps + request.output, self.admitted, request))

    def _context_of(self, request: Request) -> int:
        return request.context + self.decode_steps - request.joined

    def _make_room(self) -> None:
        """Preempts the youngest sequences until every other one can have one more token."""
        while len(self.running) > 1 and self.context + self.prefilled + len(self.running) > self.kv_tokens:
            youngest = max(self.running, key=lambda entry: entry[1])
            self.running.remove(youngest)
            heapq.heapify(self.running)
            request = youngest[2]
            size, progress = self._context_of(request), self.decode_steps - request.joined
            self.context -= size
            request.generated += progress
            request.output -= progress
            # Its next prefill gives a token, too.
            request.prompt, request.context = size, 0
            self.waiting.appendleft(request)
            self.preemptions += 1


def simulate(
    step_time: StepTime,
    lengths: Callable[[int], tuple[np.ndarray, np.ndarray]],
    *,
    rate: float = 0.0,
    clients: int = 0,
    cap: int = 10**9,
    chunk: int = 10**9,
    mixed: bool = True,
    kv_tokens: float = np.inf,
    batch_wait: int = 0,
    scheduled: int = 0,
    requests: int = 4000,
    seed: int = 0,
) -> Observed:
    """A run of `requests` requests, which arrive as a Poisson process of a rate, or from clients that send
    the next request when the last is answered. `lengths` draws prompts and outputs. An engine takes up a
    request when it has finished the `scheduled` steps that it has begun or scheduled by then.
    """
    rng = np.random.default_rng(seed)
    prompts, outputs = lengths(requests)
    arrivals = np.zeros(clients) if clients else poisson_arrivals(rng, rate, requests)
    fresh = iter(zip(prompts.tolist(), outputs.tolist(), strict=True))
    upcoming = deque(Request(time, *next(fresh)) for time in arrivals.tolist())
    limits = {"cap": cap, "chunk": chunk, "mixed": mixed, "kv_tokens": kv_tokens}
    engine = Engine(step_time, **limits, batch_wait=batch_wait)
    now, answered, log = 0.0, [], []
    starts = deque([0.0] * scheduled, maxlen=max(scheduled, 1))  # of the last steps
    while len(answered) < requests - clients:
        idle = not (engine.waiting or engine.prefilling or engine.running)
        known = starts[0] if scheduled and not idle else now
        while upcoming and upcoming[0].arrival <= known:
            engine.waiting.append(upcoming.popleft())
        starts.append(now)
        if not (engine.waiting or engine.prefilling or engine.running):
            now = upcoming[0].arrival
            continue
        before, running = now, len(engine.running)
        in_system = running + len(engine.waiting) + len(engine.prefilling)
        now, done = engine.step(now, upcoming[0].arrival if upcoming else np.inf)
        log.append((before, now - before, running, in_system))
        answered += done
        if clients:
            upcoming.extend(Request(now, *each) for _, each in zip(done, fresh, strict=False))
    return observed(answered, np.array(log), engine.preemptions, clients)


def poisson_arrivals(rng: np.random.Generator, rate: float, number: int) -> np.ndarray:
    """Times of a Poisson process, stretched to the rate exactly."""
    gaps = rng.exponential(1.0, number)
    return np.cumsum(gaps / gaps.mean() / rate)


def observed(answered: list[Request], log: np.ndarray, preemptions: int, clients: int) -> Observed:
    """Mean values over the requests that arrived after the first quarter of the run."""
    start = answered[max(len(answered) // 4, min(2 * clients, len(answered) // 2))].finish
    steady = [request for request in answered if request.arrival >= start]
    steps = log[log[:, 0] >= start]
    ttft = np.array([request.time_to_first_token for request in steady])
    tpot = np.array([request.time_per_output_token for request in steady if request.generated > 1])
    finished = np.array([request.finish for request in answered])
    span = finished[-1] - start
    return Observed(
        ttft=ttft.mean(),
        ttft_p90=float(np.quantile(ttft, 0.9)),
        tpot=tpot.mean(),
        tpot_p90=float(np.quantile(tpot, 0.9)),
        throughput=float((finished > start).sum() / span),
        running=float(np.average(steps[:, 2], weights=steps[:, 1])),
        in_system=float(np.average(steps[:, 3], weights=steps[:, 1])),
        latency=float(np.mean([request.finish - request.arrival for request in steady])),
        preemptions=preemptions,
    )


def log_normal_lengths(
    prompt: float, output: float, prompt_spread: float, output_spread: float, seed: int = 1
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Draws prompts and outputs of log-normal lengths with a mean and a spread (deviation over mean)."""
    rng = np.random.default_rng(seed)

    def draw(mean: float, spread: float, count: int) -> np.ndarray:
        variance = np.log1p(spread**2)
        lengths = mean * np.exp(rng.normal(0, 1, count) * np.sqrt(variance) - variance / 2)
        return np.maximum(np.rint(lengths), 1).astype(int)

    return lambda count: (draw(prompt, prompt_spread, count), draw(output, output_spread, count))

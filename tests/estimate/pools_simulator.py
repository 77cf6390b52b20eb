"""A simulation of disaggregated serving, event by event: engines that prefill, engines that decode, and the
transfer of the KV cache between them.

Prompts wait in one line for an engine that prefills, and their caches for their turn on the network. The
decoding engine with the fewest requests gets the cache, and computes the last token of the prompt again,
which gives the first token of the answer.
"""

import heapq
from collections import deque
from collections.abc import Callable

import numpy as np
from engine_simulator import Engine, Observed, Request, StepTime, observed, poisson_arrivals


def simulate_pools(
    step_time: StepTime,
    lengths: Callable[[int], tuple[np.ndarray, np.ndarray]],
    *,
    prefill_engines: int,
    decode_engines: int,
    transfer_time: float = 0.0,
    rate: float = 0.0,
    clients: int = 0,
    cap: int = 10**9,
    chunk: int = 10**9,
    requests: int = 4000,
    seed: int = 0,
) -> Observed:
    """A run of `requests` requests, as `engine_simulator.simulate` has them. Each pair of engines has a lane
    for transfers, of which each takes `transfer_time` seconds.
    """
    prompts, outputs = lengths(requests)
    arrivals = np.zeros(clients) if clients else poisson_arrivals(np.random.default_rng(seed), rate, requests)
    fresh = iter(zip(prompts.tolist(), outputs.tolist(), strict=True))
    server = _Server(
        step_time,
        engines=(prefill_engines, decode_engines),
        transfer_time=transfer_time,
        cap=cap,
        chunk=chunk,
    )
    for time in arrivals.tolist():
        server.arrive(time, *next(fresh))
    while len(server.answered) < requests - clients:
        for time in server.next_event():
            if clients and (lengths_of_next := next(fresh, None)) is not None:
                server.arrive(time, *lengths_of_next)
    return observed(server.answered, np.array(server.log), 0, clients)


class _Server:
    """Both pools, and the events to come: (time, number, what happens then)."""

    def __init__(
        self,
        step_time: StepTime,
        *,
        engines: tuple[int, int],
        transfer_time: float,
        cap: int,
        chunk: int,
    ):
        self.transfer_time = transfer_time
        limits = {"mixed": True, "kv_tokens": np.inf}
        self.line: deque[Request] = deque()
        self.prefill = [Engine(step_time, cap=10**9, chunk=chunk, **limits) for _ in range(engines[0])]
        for engine in self.prefill:
            engine.waiting = self.line
        self.decode = [Engine(step_time, cap=cap, chunk=10**9, **limits) for _ in range(engines[1])]
        self.lanes = [0.0] * min(engines)  # when each is free
        self.busy: set[int] = set()  # engines in a step, by id
        self.answers: dict[int, tuple[Request, int, int]] = {}  # of those not prefilled
        self.events: list[tuple[float, int, Callable[[float], list[float]]]] = []
        self.number = 0
        self.answered: list[Request] = []
        self.log: list[tuple[float, float, float, float]] = []

    def at(self, time: float, event: Callable[[float], list[float]]) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, event))

    def next_event(self) -> list[float]:
        """Lets the next event happen. Returns the times of answers that it ended."""
        time, _, event = heapq.heappop(self.events)
        return event(time)

    def arrive(self, time: float, prompt: int, output: int) -> None:
        """A request of so many tokens, which arrives at a time."""
        request = Request(time, prompt, 1)  # for the engine that prefills, the answer is one token
        self.answers[id(request)] = request, prompt, output

        def join(now: float) -> list[float]:
            self.line.append(request)
            return self.start_prefill(now)

        self.at(time, join)

    def start_prefill(self, now: float) -> list[float]:
        for engine in self.prefill:
            if id(engine) not in self.busy and (self.line or engine.prefilling):
                self.run(engine, now, self.prefilled)
        return []

    def run(
        self, engine: Engine, now: float, finished: Callable[[Engine, float, list[Request]], list[float]]
    ) -> None:
        """Runs a step of an engine, whose results are known at its end."""
        end, done = engine.step(now, next_arrival=now)  # a step at a time: anything may arrive meanwhile
        self.busy.add(id(engine))

        def stop(time: float) -> list[float]:
            self.busy.discard(id(engine))
            return finished(engine, time, done)

        self.at(end, stop)

    def prefilled(self, engine: Engine, now: float, done: list[Request]) -> list[float]:
        """A pass has ended: the caches of its prompts wait for the network."""
        for request in done:
            _, prompt, output = self.answers.pop(id(request))
            lane = min(range(len(self.lanes)), key=self.lanes.__getitem__)
            self.lanes[lane] = max(self.lanes[lane], now) + self.transfer_time
            received = Request(request.arrival, 1, output, context=prompt - 1)
            self.at(self.lanes[lane], lambda time, received=received: self.receive(time, received))
        return self.start_prefill(now)

    def receive(self, now: float, request: Request) -> list[float]:
        engine = min(self.decode, key=lambda engine: len(engine.running) + len(engine.waiting))
        engine.waiting.append(request)
        if id(engine) not in self.busy:
            self.run_decode(engine, now)
        return []

    def run_decode(self, engine: Engine, now: float) -> None:
        running = len(engine.running) + len(engine.waiting)
        self.run(engine, now, self.decoded)
        self.log.append((now, 1.0, min(running, engine.cap), 0.0))

    def decoded(self, engine: Engine, now: float, done: list[Request]) -> list[float]:
        """A decode step has ended: those whose answer it ended leave."""
        self.answered += done
        if engine.running or engine.waiting:
            self.run_decode(engine, now)
        return [now] * len(done)

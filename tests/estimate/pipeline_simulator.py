"""Event-by-event runs of pipeline schedules, in the order that their authors give."""

import itertools
from collections import Counter

import numpy as np

# A part of the work on one device: (kind, micro-batch, chunk), chunks counted along a micro-batch's way
# through the device. "F" is a forward pass, "B" a whole backward pass, "I" its input gradients alone (with
# recomputation), "W" its weight gradients. Parts of one unit run together and end together.
Part = tuple[str, int, int]
Unit = tuple[Part, ...]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Unit]:
    """As Megatron-LM orders it, interleaved with more chunks than one (arXiv 2104.04473 §2.2)."""
    total = micro_batches * chunks

    def part(kind, k):
        if chunks == 1:
            return kind, k, 0
        chunk = k % (stages * chunks) // stages
        micro_batch = k // (stages * chunks) * stages + k % stages
        return kind, micro_batch, chunk if kind == "F" else chunks - 1 - chunk

    warm_up = stages - stage - 1 if chunks == 1 else (stages - stage - 1) * 2 + (chunks - 1) * stages
    warm_up = min(warm_up, total)
    order = [part("F", k) for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [part("F", warm_up + k), part("B", k)]
    return [(part,) for part in order + [part("B", k) for k in range(total - warm_up, total)]]


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """All forward passes, then all backward passes (arXiv 1811.06965 §2.3)."""
    return [(("F", k, 0),) for k in range(micro_batches)] + [(("B", k, 0),) for k in range(micro_batches)]


def zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """ZB-H1 (arXiv 2401.10241 §2.1): 1F1B, and stage i does a weight gradient after every backward pass from
    its i-th on.
    """
    order, waiting = [], []
    for (part,) in one_forward_one_backward(stage, stages, micro_batches):
        if part[0] == "F":
            order.append((part,))
            continue
        order.append((("I", *part[1:]),))
        waiting.append(("W", *part[1:]))
        draining = part[1] >= micro_batches - min(stages - 1 - stage, micro_batches)
        if part[1] >= stage or draining:
            order.append((waiting.pop(0),))
    return order + [(part,) for part in waiting]


def dualpipe(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """In the eight steps of github.com/deepseek-ai/DualPipe (Figure 5 of arXiv 2412.19437).

    A chunk is one end's micro-batches: those of the first stage's end for 0, of the last's for 1. Of a
    device in the first half, near micro-batches come from the first end.
    """
    half, rank = stages // 2, min(stage, stages - 1 - stage)
    near, far = (0, 1) if stage < half else (1, 0)
    middle = stage in (half - 1, half)
    done, order, waiting = Counter(), [], []

    def part(kind, end):
        done[kind, end] += 1
        return kind, done[kind, end] - 1, end

    def backward(end, whole):
        _, k, _ = part("B", end)
        if not whole:
            waiting.append(("W", k, end))
        return "B" if whole else "I", k, end

    def run(*parts):
        order.append(parts)

    def weights():
        run(waiting.pop(0))

    for _ in range(2 * (half - rank - 1)):
        run(part("F", near))
    for _ in range(rank + 1):
        run(part("F", near))
        run(part("F", far))
    for _ in range(half - rank - 1):
        run(backward(far, whole=False))
        weights()
        run(part("F", far))
    for i in range(micro_batches // 2 - stages + rank + 1):
        if i == 0 and middle:
            run(part("F", near))
            run(backward(far, whole=True))
        else:
            run(part("F", near), backward(far, whole=True))
        run(part("F", far), backward(near, whole=True))
    for _ in range(half - rank - 1):
        run(backward(far, whole=True))
        run(part("F", far), backward(near, whole=True))
    whole = [
        2 * i + end < rank + 1 for i in range(rank + 1) for end in (0, 1)
    ]  # the second half of the last backward passes splits
    for i in range(rank + 1):
        run(backward(far, whole[2 * i]))
        run(backward(near, whole[2 * i + 1]))
    for _ in range(half - rank - 1):
        weights()
        run(backward(near, whole=False))
    while waiting:
        weights()
    return order


def _next_to(
    stage: int, stages: int, chunk: int, chunks: int, both_ways: bool, step: int
) -> tuple[int, int] | None:
    """Device and chunk before (step −1) or after (step 1) a device's chunk on a micro-batch's way."""
    if both_ways:
        other = stage + (step if chunk == 0 else -step)
        return (other, chunk) if 0 <= other < stages else None
    place = chunk * stages + stage + step
    return (place % stages, place // stages) if 0 <= place < stages * chunks else None


class Run:
    """What an event-by-event run of a schedule finds; `forward`, `inputs` and `weights` are seconds of all of
    a stage's chunks, or an array of those of every stage.

    A pass that runs alone takes `alone` seconds longer: communication that only another pass would hide.
    """

    def __init__(self, order, stages, micro_batches, forward, inputs, weights, chunks=1, alone=0.0):
        both_ways = order is dualpipe
        more = (chunks,) if chunks > 1 else ()
        waiting = [order(stage, stages, micro_batches, *more) for stage in range(stages)]
        kinds = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
        seconds = {kind: np.broadcast_to(each, (stages,)) for kind, each in kinds.items()}
        self.started, self.finished, free = {}, {}, [0.0] * stages

        def ready(stage, part):
            """What must be finished before a part may start, as (stage, kind, micro-batch, chunk) under any
            of some kinds.
            """
            kind, micro_batch, chunk = part
            if kind == "W":
                return [(stage, "I", micro_batch, chunk)]
            own = [] if kind == "F" else [(stage, "F", micro_batch, chunk)]
            other = _next_to(stage, stages, chunk, chunks, both_ways, -1 if kind == "F" else 1)
            return (
                own
                if other is None
                else [*own, (other[0], "F" if kind == "F" else "input", micro_batch, other[1])]
            )

        while any(waiting):
            moved = False
            for stage, queue in enumerate(waiting):
                while queue:
                    needed = [unit for part in queue[0] for unit in ready(stage, part)]
                    if not all(unit in self.finished for unit in needed):
                        break
                    parts = queue.pop(0)
                    start = max([free[stage], *(self.finished[unit] for unit in needed)])
                    own = [
                        seconds[kind][self._stage(stage, stages, chunk, both_ways)]
                        for kind, _, chunk in parts
                    ]
                    free[stage] = start + sum(own) / chunks
                    if len(parts) == 1 and parts[0][0] != "W":
                        free[stage] += alone
                    for kind, micro_batch, chunk in parts:
                        self.started[stage, kind, micro_batch, chunk] = start
                        for name in (kind, "input") if kind in "BI" else (kind,):
                            self.finished[stage, name, micro_batch, chunk] = free[stage]
                    moved = True
            assert moved, "the schedule deadlocks"
        self.time, self.chunks = max(free), chunks

    @staticmethod
    def _stage(device: int, stages: int, chunk: int, both_ways: bool) -> int:
        """The stage of a device's chunk: DualPipe's second chunk is that of the mirrored device."""
        return stages - 1 - device if both_ways and chunk == 1 else device

    def held(self, stage: int) -> float:
        """Most micro-batches that a stage holds: those that have started, and have gradients to compute."""
        begun = [(time, 1) for (at, kind, *_), time in self.started.items() if at == stage and kind == "F"]
        ended = [(time, -1) for (at, kind, *_), time in self.finished.items() if at == stage and kind in "BW"]
        return max(itertools.accumulate(change for _, change in sorted(begun + ended))) / self.chunks


ORDERS = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "zero_bubble": zero_bubble, "dualpipe": dualpipe}

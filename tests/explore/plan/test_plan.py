"""Plans against a plain loop over all strategies that uses the public functions only."""

import itertools
import math

import numpy as np
import pytest
from helpers import training

import diffperf as dp
from diffperf.explore.plan import ranking
from diffperf.explore.plan.plan import Search, largest_part, plan, smallest_system
from diffperf.explore.plan.reasons import OBJECTIVES
from diffperf.quantity import Weights, locate

# DeepSeek-V3's set of operator classes, and all but attention, as a plain dense model has them: activation
# functions are recomputed of experts alone.
RECOMPUTE = (
    {"recompute": "none"},
    {"recompute": "full"},
    {"recompute": "none", "recompute_norms": 1},
    {"recompute": "none", "recompute_norms": 1, "recompute_mlp": 1},
)
ZERO = ("0", "1", "2", "3")


def whole(x: float) -> bool:
    return x == round(x)


def even(depth: int, chunks: int) -> bool:
    """The longest chunk has at most 5 % more layers than the mean."""
    return chunks <= depth and math.ceil(depth / chunks) <= 1.05 * depth / chunks


def dense_strategies(n: int, heads: int, depth: int, batch: int):
    """Every strategy of a dense model on a system of one domain, for sequences of 2048 tokens."""
    for tp, pp in itertools.product(range(1, 9), range(1, n + 1)):
        if n % (tp * pp) or heads % tp or not even(depth, pp):
            continue
        dp_ = n // (tp * pp)
        for v, micro, recompute, zero in itertools.product(
            range(1, depth + 1), (1, 2, 4, 8), RECOMPUTE, ZERO
        ):
            steps = batch / (dp_ * micro)
            if not even(depth, pp * v) or not whole(steps) or (v > 1 and (pp == 1 or steps % pp)):
                continue
            if (zero > "0" and dp_ == 1) or (zero > "1" and pp > 1):
                continue
            yield {
                "tp": tp,
                "pp": pp,
                "dp": dp_,
                "virtual_stages": v,
                "micro_batch": micro,
                "zero": zero,
            } | recompute


def mixture_strategies(n: int, heads: int, depth: int, batch: int, experts: int):
    """The same with experts, laid out apart from all else."""
    for strategy in dense_strategies(n, heads, depth, batch):
        for ep, expert_tp in itertools.product(range(1, experts + 1), range(1, strategy["tp"] + 1)):
            if (
                experts % ep == 0
                and strategy["tp"] % expert_tp == 0
                and (n // strategy["pp"]) % (ep * expert_tp) == 0
            ):
                yield strategy | {"ep": ep, "expert_tp": expert_tp}


def brute_force(model, system, strategies, batch: int, paths: tuple[str, ...] = ("time",)):
    """(value, strategy) of all that fit memory, the smallest first, by number; and how many were tried."""
    found, count = {path: [] for path in paths}, 0
    for fields in strategies:
        strategy = dp.load_strategy(fields | {"global_batch": batch})
        report = training(model, system, strategy)
        count += 1
        if float(report.memory.excess) <= 0:
            for path in paths:
                found[path].append((float(locate(report, path)[0]), fields))
    return {path: sorted(rows, key=lambda pair: pair[0]) for path, rows in found.items()}, count


def chosen(candidate, names) -> dict:
    """The named fields of a candidate's strategy, choices by the names of their alternatives."""
    values = {name: getattr(candidate.strategy, name) for name in names}
    return {
        name: value.alternatives[np.argmax(value)] if isinstance(value, Weights) else float(value)
        for name, value in values.items()
    }


def check_against(found, expected, count, path):
    assert (found.possible, found.fitting) == (count, len(expected))
    values = [float(locate(candidate.report, path)[0]) for candidate in found.best]
    np.testing.assert_allclose(values, [value for value, _ in expected[: len(values)]], rtol=1e-12)
    for candidate, value in zip(found.best, values, strict=True):
        as_good = [fields for other, fields in expected if other == pytest.approx(value, rel=1e-12)]
        assert chosen(candidate, as_good[0]) in as_good


@pytest.mark.slow
def test_the_order_of_a_loop_over_all_strategies():
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 16)
    paths = {by: OBJECTIVES[by] for by in ("time", "energy")}
    strategies = dense_strategies(16, 64, 48, 32)
    expected, count = brute_force(model, system, strategies, 32, tuple(paths.values()))
    for by, path in paths.items():
        found = plan(Search.of(model, system, {"global_batch": 32}), by, top=25)
        assert len(found.best) == 25
        check_against(found, expected[path], count, path)


@pytest.mark.slow
def test_the_order_of_a_loop_with_experts():
    model, system = dp.load_model("mixtral-8x7b"), dp.load_system("dgx-h100", 16)
    given = {"micro_batch": 1, "recompute": "full", "global_batch": 16}
    all_of_them = mixture_strategies(16, 32, 32, 16, 8)
    strategies = [s for s in all_of_them if s["micro_batch"] == 1 and s["recompute"] == "full"]
    expected, count = brute_force(model, system, strategies, 16)
    check_against(plan(Search.of(model, system, given), top=25), expected["time"], count, "time")


def test_a_wrong_reference_would_be_noticed():
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 16)
    found = plan(
        Search.of(
            model, system, {"global_batch": 32, "recompute": "full", "virtual_stages": 1, "micro_batch": 1}
        ),
        top=3,
    )
    expected = [(float(candidate.report.time) * 1.001, {}) for candidate in found.best]
    with pytest.raises(AssertionError):
        check_against(found, expected, found.possible, "time")


def test_what_is_given_is_kept_and_nothing_is_traced_again(gpt, system):
    """Numbers and choices are data: other questions run the same compiled program."""
    plan(Search.of(gpt, system, {"global_batch": 64}))
    programs = ranking._evaluate.jitted._cache_size()
    given = {"tp": 8, "recompute": "selective", "zero": "2", "micro_batch": 16, "global_batch": 64, "cp": 2}
    found = plan(Search.of(gpt, system, given, ("1f1b", "zero_bubble")))
    for candidate in found.best:
        fields = chosen(candidate, ("tp", "recompute", "zero", "micro_batch", "cp"))
        assert fields == {"tp": 8, "recompute": "selective", "zero": "2", "micro_batch": 16, "cp": 2}
        assert float(candidate.strategy.devices) == 64
    assert ranking._evaluate.jitted._cache_size() == programs


def test_a_hundred_thousand_devices(gpt):
    found = plan(Search.of(gpt, dp.load_system("dgx-a100", 100_000), {"global_batch": 100_000}), top=3)
    assert len(found.best) == 3
    assert {float(candidate.strategy.devices) for candidate in found.best} == {100_000}


def test_parts_add_up_for_every_objective(gpt, system):
    for by in OBJECTIVES:
        found = plan(Search.of(gpt, system, {"global_batch": 64}), by, top=6)
        assert found.best[0].behind is None
        for candidate in found.best[1:]:
            why = candidate.behind
            assert why.more >= 0
            assert sum(change for _, change in why.parts) == pytest.approx(why.more_of, abs=1e-9)
            if by != "cost":
                assert why.more == pytest.approx(why.more_of, abs=1e-9)


# --- where nothing fits


@pytest.mark.slow
def test_the_smallest_system_that_fits():
    """Against the loop: not one strategy fits half of it."""
    model, system = dp.load_model("gpt3-22b"), dp.load_system("dgx-a100", 1)
    search = Search.of(model, system, {})
    found = plan(search)
    assert found.best == ()
    assert float(found.least.report.memory.excess) > 0
    larger, better = smallest_system(search)
    devices = int(larger.inputs.system.n_devices)
    assert better.fitting > 0
    half, fits = (
        brute_force(model, dp.load_system("dgx-a100", n), dense_strategies(n, 64, 48, n), n)[0]["time"]
        for n in (devices // 2, devices)
    )
    assert not half
    assert fits[0][0] == pytest.approx(float(better.best[0].report.time), rel=1e-12)


def test_no_system_that_fits(gpt):
    fixed = Search.of(gpt, dp.load_system("dgx-a100", 1), {"tp": 1, "pp": 1, "dp": 1})
    assert plan(fixed).best == ()
    assert smallest_system(fixed) is None


def test_the_largest_part_of_the_memory(gpt):
    memory = plan(Search.of(gpt, dp.load_system("dgx-a100", 1), {})).least.report.memory
    assert largest_part(memory) == ("optimizer state", pytest.approx(float(memory.optimizer)))
    assert float(memory.optimizer) == max(
        float(getattr(memory, name)) for name in ("weights", "gradients", "optimizer", "activations")
    )


def test_an_unknown_objective_or_schedule(gpt, system):
    with pytest.raises(dp.ConfigError, match="one of time, cost, energy"):
        plan(Search.of(gpt, system, {}), by="speed")
    with pytest.raises(dp.ConfigError, match='did you mean "gpipe"'):
        Search.of(gpt, system, {}, ("gpip",))

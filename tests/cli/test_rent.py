"""Rent beside ownership, and the ownership of two systems side by side."""

import pytest

HOUR = 3600


def test_rent_of_a_step_and_of_a_training(run, answer):
    """Sixteen H100 at $2 an hour, for the time of the step and of the whole training."""
    question = "estimate gpt3-22b dgx-h100 --devices 16 --tp 8 --set accelerator.rent=2USD/hour --rent"
    data = answer(f"{question} --json -")
    seconds = data["report"]["time"]
    assert data["rent"]["rent"] == pytest.approx(16 * 2 / HOUR * seconds, rel=1e-9)
    assert data["rent"]["ownership"] == pytest.approx(data["report"]["cost"]["run"], rel=1e-9)
    whole = answer(f"{question} --tokens 1e11 --json -")
    assert whole["rent"]["rent"] == pytest.approx(16 * 2 / HOUR * whole["training"]["time"], rel=1e-9)
    assert whole["rent"]["ownership"] == pytest.approx(whole["training"]["cost"], rel=1e-9)
    assert "A step rented at $2.00 per device-hour" in run(question).stdout


@pytest.mark.slow
def test_rent_of_served_tokens(answer):
    """Dollars per million output tokens: those of a second of a device over the tokens of the second."""
    data = answer("serve llama-2-7b dgx-h100 --devices 1 --input 512 --output 128 --top 1 --rent --json -")
    report = data["best"][0]["report"]
    per_device = report["tokens_per_second_per_device"]
    assert data["rent"]["rent"] == pytest.approx(1.78 / HOUR / per_device * 1e6, rel=1e-6)
    assert data["rent"]["ownership"] == pytest.approx(report["cost_per_million_tokens"], rel=1e-9)


@pytest.mark.parametrize(
    "command",
    ["estimate gpt3-22b mi210-4", "plan gpt3-22b mi210-4", "serve llama-2-7b mi210-4", "cost mi210-4",
     "cost dgx-h100 --against mi210-4"],
)  # fmt: skip
def test_a_system_without_a_rent_is_one_line(run, command):
    result = run(f"{command} --rent")
    assert result.exit_code != 0
    assert len(result.stderr.strip().splitlines()) == 1
    for words in ("--rent", "found no rent of mi210", "--set accelerator.rent="):
        assert words in result.stderr


def test_two_systems_side_by_side(run, answer):
    """Every part by hand: what 80 % of five years pay back each hour, and 1.2 times all power."""
    data = answer("cost dgx-h100 --against mi300x-8 --json -")
    owner, other = data["ownership"], data["against"]
    paid_hours = 0.8 * 5 * 365.25 * 24
    assert owner["purchase"]["accelerator"] == pytest.approx(28000, rel=1e-3)
    assert other["purchase"]["accelerator"] == pytest.approx(15000, rel=1e-3)
    assert owner["hour"]["accelerator"] == pytest.approx(
        owner["purchase"]["accelerator"] / paid_hours, rel=1e-6
    )
    assert owner["hour"]["host"] == pytest.approx(2640 / paid_hours, rel=1e-6)
    # An adapter, one port and one link of NDR InfiniBand, which draw 12 W and 17 W.
    network = 1000 + 1364 + 562.5 + 1280
    assert owner["hour"]["network"] == pytest.approx(network / paid_hours, rel=1e-6)
    node = (700 + 57.5 + 24 + 31 + 40 + 32) * 1.17 / 0.95  # W, with fans and supplies
    assert owner["hour"]["electricity"] == pytest.approx((node + 29) / 1000 * 1.2 * 0.0806, rel=1e-6)
    assert owner["hour"]["total"] == pytest.approx(data["per_hour"]["total"] / 8, rel=1e-6)
    assert (owner["rent"], other["rent"]) == (pytest.approx(1.78), pytest.approx(1.3))
    text = run("cost dgx-h100 --against mi300x-8").stdout
    for words in (
        "ratio",
        "network nvlink",
        "network infiniband: switches",
        "An hour of a device in a cloud",
        "$1.78",
    ):
        assert words in text


def test_what_is_wrong_with_prices_is_one_line(run):
    for arguments, words in (
        ("--against dgx-h200", ["dgx-h200", "hgx-h200"]),
        ("--set accelerator.rent=2", ["a bare number has no unit"]),
        ("--set network.infiniband.port_price=-3USD", ['found "-3USD"', "from $0 to $20,000"]),
        ("--set network.infiniband.rated_bandwidth=0GB/s", ["rated_bandwidth"]),
    ):
        result = run(f"cost dgx-h100 {arguments}")
        assert result.exit_code != 0
        assert len(result.stderr.strip().splitlines()) == 1
        for word in words:
            assert word in result.stderr, result.stderr

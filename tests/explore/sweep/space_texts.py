"""The text of a space that several tests of sweeps vary."""


def space_text(options: str, *, points: int, axes: str = "") -> str:
    """A space over tensor parallelism, what is recomputed, and so many bandwidths of the memory.

    - `options`: what the sweep keeps; `axes`: those between tensor parallelism and what is recomputed.
    """
    return f"""
model = "gpt3-22b"
system = "dgx-a100"
{options.strip()}
[strategy]
global_batch = 16
[[axis]]
path = "strategy.tp"
powers_of_two = {{from = 1, to = 8}}
{axes.strip()}
[[axis]]
path = "strategy.recompute"
values = ["selective", "full"]
[[axis]]
path = "hbm.bandwidth"
linear = {{from = "1 TB/s", to = "3 TB/s", points = {points}}}
"""

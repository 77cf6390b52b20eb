"""How the figures of `configs/accelerators/superconducting-board.toml` follow from the published ones.

Published for imec's superconducting digital system (arXiv 2411.08645) are the rate and the power of a
board, the clock, and the density of JSRAM; arXiv 2303.16801 has the clock, the cell and the density of
JSRAM too. All that is named an estimate here has its range in the file of the accelerator. Energies and
powers of that file are at the wall: what is spent at a temperature, times one plus the cooling power that
each watt of heat at that temperature takes. The PUE of the price list `cryogenic` is 1, so that no cooling
counts twice.

Arithmetic takes four fifths of the published power by junctions and pulses alone. The bandwidth of the link
was chosen so that the parts add up to the published power: that they do is no finding.
"""

from diffperf.hardware.accelerator import Accelerator

# --- published

BOARD_RATE = 0.2e18  # FLOP/s of a board with bf16 operands
BOARD_POWER = 5e3  # W of a board at the wall
BOARDS = 100  # boards of a system of 20 EFLOP/s at 500 kW
CLOCK = 30e9  # Hz
CELL_AREA = 2.0  # µm² of a JSRAM cell
CELL_JUNCTIONS = 8  # Josephson junctions of a JSRAM cell
JUNCTION_DENSITY = 400e6  # Josephson junctions per cm²
JSRAM_DENSITY = 4e6  # byte per cm²
PULSE_ENERGY = (
    2e-20  # J of a single-flux-quantum pulse (A. and Q. Herr, IEEE Spectrum 2024, by ainews247.org)
)

# --- estimates

COOLING_4K, COOLING_77K = 400.0, 15.0  # W at the wall per W of heat: large helium and nitrogen plants
COOLING_RANGE = ((300.0, 10.0), (500.0, 20.0))  # W/W at 4 K and at 77 K of better and of worse plants
MULTIPLIER_JUNCTIONS = 10_000  # Josephson junctions of a multiply-add of bf16 into fp32
ACTIVITY = 0.5  # share of the junctions of a multiply-add that pulse in a cycle
CHIPS = 10  # logic dies of a board
JSRAM_DIES = 4  # JSRAM dies on each logic die
ARRAY_PULSES, JSRAM_PULSES = 200, 1000  # pulses that move a bit out of an array's JSRAM and a chip's
DRAM_BIT_77K = 0.4e-12  # J per bit of cryo-DRAM and its driver of the link, at 77 K
LINK_BIT_4K = 1e-15  # J per bit of the link at 4 K
LEAK_4K, LEAK_77K = 0.5, 3.0  # W of heat that leaks through the cryostat, its wires and the link
CLOCK_POWER_4K = 0.25  # W of the resonant network that powers and clocks all junctions

UM2_PER_CM2 = 1e8
BITS = 8  # of a byte


def at_wall(spent: float, cooling: float) -> float:
    """Returns the J or W at the wall of `spent` J or W at a temperature, with its `cooling` in W/W."""
    return spent * (1 + cooling)


def array_share() -> float:
    """Returns the share of a JSRAM die that its cells cover, by the published density and cell."""
    return JSRAM_DENSITY * BITS * CELL_AREA / UM2_PER_CM2


def memory_junctions() -> float:
    """Returns the Josephson junctions of the cells in a cm² of JSRAM, by the published density and cell."""
    return JSRAM_DENSITY * BITS * CELL_JUNCTIONS


def multipliers() -> float:
    """Returns the multiply-adds that a board starts in each cycle at its published rate and clock."""
    return BOARD_RATE / (2 * CLOCK)


def logic_area() -> float:
    """Returns the cm² of the multiply-adds of a board at the published density of junctions."""
    return multipliers() * MULTIPLIER_JUNCTIONS / JUNCTION_DENSITY


def jsram_capacity() -> float:
    """Returns the bytes of JSRAM of a board, whose dies are as large as the logic dies below them."""
    return logic_area() * JSRAM_DIES * JSRAM_DENSITY


def flop_energy() -> float:
    """Returns the J/FLOP of the matrix units at the wall: pulses of half a multiply-add, cooled at 4 K."""
    return at_wall(MULTIPLIER_JUNCTIONS * ACTIVITY * PULSE_ENERGY / 2, COOLING_4K)


def pulses_energy(pulses: float) -> float:
    """Returns the J/byte at the wall of a memory at 4 K that moves a bit with so many pulses."""
    return at_wall(pulses * PULSE_ENERGY * BITS, COOLING_4K)


def dram_energy() -> float:
    """Returns the J/byte of cryo-DRAM and its link at the wall, each part cooled at its temperature."""
    return BITS * (at_wall(DRAM_BIT_77K, COOLING_77K) + at_wall(LINK_BIT_4K, COOLING_4K))


def static_power() -> float:
    """Returns the W at the wall that cool what leaks into the cryostat of an idle board."""
    return at_wall(LEAK_4K, COOLING_4K) + at_wall(LEAK_77K, COOLING_77K)


# Heat of each part of a board by where it is spent, in units of the part's own: at 4 K and at 77 K.
HEAT = {
    "arithmetic": (1.0, 0.0),
    "JSRAM": (1.0, 0.0),
    "cryo-DRAM and link": (LINK_BIT_4K, DRAM_BIT_77K),
    "clock network": (1.0, 0.0),
    "heat leaks": (LEAK_4K, LEAK_77K),
}


def full_rate_power(
    board: Accelerator, cooling_4k: float = COOLING_4K, cooling_77k: float = COOLING_77K
) -> dict[str, float]:
    """Returns the W at the wall of a board whose matrix units run at their peak, by what spends it.

    All JSRAM runs at full bandwidth then, and the link to cryo-DRAM at half of it. The board has the shipped
    cooling; another one, in W/W, changes the power of each part by its heat at 4 K and at 77 K.
    """
    caches, dram = board.memory[: board.device_level], board.device_memory
    shipped = {
        "arithmetic": board.matrix.bf16.rate * board.compute_energy,
        "JSRAM": sum(level.energy * level.bandwidth for level in caches),
        "cryo-DRAM and link": dram.energy * dram.bandwidth / 2,
        "clock network": board.active_power,
        "heat leaks": board.static_power,
    }
    watts = {}
    for part, (cold, cool) in HEAT.items():
        changed = at_wall(cold, cooling_4k) + at_wall(cool, cooling_77k)
        watts[part] = (
            float(shipped[part]) * changed / (at_wall(cold, COOLING_4K) + at_wall(cool, COOLING_77K))
        )
    return watts

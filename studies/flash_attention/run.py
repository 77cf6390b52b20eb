"""What FlashAttention does to attention and training: GPT-2 medium on A100 40 GB, as its paper measured it.

The attention core by itself: operations, bytes and time against Figure 2 of both versions of the paper and
against its tables of kernels (`published_kernels.csv`). Then training: the step against the paper's days of
training (`published_training.csv`), and with either kernel over lengths of sequences, with equally many
tokens in each step.

    python studies/flash_attention/run.py [--quick] [--out DIR]
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import diffperf as dp

sys.path.append(str(Path(__file__).parents[1]))
import attention_core
import training_steps
from reporting import figure_style, parse_options, publish

LENGTHS, QUICK_LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768], [512, 1024, 2048, 4096, 8192]


def main() -> None:
    """Runs the study."""
    options = parse_options(__doc__, "flash_attention", "lengths of training up to 8,192 tokens")
    kernels = attention_core.estimate_kernels()
    compute_units = float(dp.load_system(attention_core.SYSTEM).accelerator.compute_units)
    figure_2 = attention_core.figure_2_table(kernels)
    times = attention_core.times_table(kernels, compute_units)

    published = training_steps.published_seconds()
    steps = training_steps.estimate_steps(QUICK_LENGTHS if options.quick else LENGTHS)
    fastest = training_steps.fastest_steps(steps)
    training = training_steps.training_table(fastest, published)

    with figure_style():
        figure = Figure(figsize=(13, 9), layout="constrained")
        (upper_left, upper_right), (lower_left, lower_right) = figure.subplots(2, 2)
        attention_core.draw_times(upper_left, kernels, compute_units)
        attention_core.draw_bytes(upper_right, figure_2)
        training_steps.draw_speed(lower_left, fastest, published)
        training_steps.draw_memory(lower_right, steps)
    finding = attention_core.finding(figure_2, times) + training_steps.finding(fastest, published)
    publish(options.out, [figure_2, times, training], finding, {"figure": figure})


if __name__ == "__main__":
    main()

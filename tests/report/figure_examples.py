"""Figures drawn of made-up answers: ordinary ones, degenerate ones and extreme ones."""

import figures_of_choices
import figures_of_inputs
import figures_of_measurements

EXAMPLES = figures_of_inputs.EXAMPLES | figures_of_choices.EXAMPLES | figures_of_measurements.EXAMPLES

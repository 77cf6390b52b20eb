"""The phases an estimate can be asked for, by name."""

from diffperf.estimate.inference import decode, generate, prefill
from diffperf.estimate.training import training_step

PHASES = {"training": training_step, "prefill": prefill, "decode": decode, "generate": generate}

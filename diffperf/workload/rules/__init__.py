"""Rules of possible strategies: numbers that must divide others, and numbers that must not exceed others.

The estimator takes every degree as a real number; these rules say which strategies exist. They are a list of
functions, read by the loader (to explain what is wrong) and by searches (to filter).
"""

from diffperf.workload.rules.registry import RULES, broken, feasible, first_violation
from diffperf.workload.rules.verdict import Verdict, Violation

__all__ = ["RULES", "Verdict", "Violation", "broken", "feasible", "first_violation"]

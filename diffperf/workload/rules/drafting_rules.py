"""Rules of drafted tokens: what a decode step can accept."""

from diffperf.workload.configuration import Configuration
from diffperf.workload.rules.verdict import Verdict, Violation
from diffperf.workload.rules.wording import show
from diffperf.workload.whole_numbers import reaches


def steps_add_no_more_than_drafted(configuration: Configuration) -> Verdict:
    """A decode step adds one token and at most the drafted ones."""
    strategy = configuration.strategy
    most = 1 + strategy.draft_tokens

    def explain() -> Violation:
        return Violation(
            key="strategy.tokens_per_step",
            found=f"{show(strategy.tokens_per_step)} tokens a step, of {show(strategy.draft_tokens)} drafted",
            expected=f"at most {show(most)}: one token and the drafted ones",
            remedy="draft more tokens (draft_tokens), or accept fewer",
        )

    return Verdict(reaches(most, strategy.tokens_per_step), explain)

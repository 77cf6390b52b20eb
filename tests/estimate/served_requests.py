"""Requests of the tests of served models, at a rate or of clients."""

from diffperf.workload.requests import Requests

LOADS = ("rate", "concurrency")


def requests_of(load: str = "rate", **values) -> Requests:
    """Requests of spread lengths under a kind of load."""
    spread = {"input_spread": 0.5, "output_spread": 0.5}
    return Requests(load=load, **{"rate": 10.0, "concurrency": 64.0, **spread, **values})

"""The endpoints: answers equal those of the library, nothing foreign is served, nothing makes them fail."""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.monitoring
import pytest
from page_states import ADDRESS, QUERY
from starlette.testclient import TestClient

import diffperf as dp
from diffperf.explore.whole_steps import UNITS
from diffperf.page.programs import Compiling, Programs
from diffperf.page.server import Backend, application


class NeverCompiled(Programs):
    """Programs that stay uncompiled: states are validated, and no more."""

    def run(self, name: str, like: Any, function: Callable[[], Any]) -> Any:
        raise Compiling(name)


class Validator(Backend):
    """A backend of such programs."""

    def programs(self) -> Programs:
        return NeverCompiled()


@pytest.fixture(scope="module")
def validator() -> TestClient:
    return TestClient(application(Validator(lambda: None)), base_url=ADDRESS, raise_server_exceptions=False)


def test_the_page_and_its_files_are_served_without_anything_of_others(validator):
    page = validator.get("/")
    assert page.status_code == 200
    assert 'src="main.js"' in page.text
    for name in (
        "main.js",
        "state.js",
        "dom.js",
        "controls.js",
        "bars.js",
        "cards.js",
        "charts.js",
        "style.css",
    ):
        reply = validator.get(f"/{name}")
        assert reply.status_code == 200, name
        assert "https://" not in reply.text
        assert "http://" not in reply.text.replace("http://www.w3.org", "")
        assert "default-src 'self'" in reply.headers["content-security-policy"]
    for path in ("/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "/etc/passwd", "/__init__.py"):
        assert validator.get(path).status_code == 404, path


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": "127.0.0.1.evil.example:8000"},
        {"host": "localhost@evil.example"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(validator, headers):
    reply = validator.get(f"/api/answer?{QUERY}", headers=headers)
    assert reply.status_code == 403
    assert "Error" not in reply.text


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost"])
def test_requests_of_this_machine_are_answered(validator, host):
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert validator.get(f"/api/answer?{QUERY}", headers=headers).status_code == 200


def test_a_link_of_another_site_opens_the_page_and_asks_nothing(validator):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert validator.get("/", headers=headers).status_code == 200
    assert validator.get(f"/api/answer?{QUERY}", headers=headers).status_code == 403


def test_nothing_is_changed_by_other_methods(validator):
    assert validator.post(f"/api/answer?{QUERY}").status_code == 405


@pytest.mark.parametrize("endpoint", ["answer", "inputs", "front", "export", "interval"])
def test_a_bad_state_is_explained_in_one_line(validator, endpoint):
    reply = validator.get(f"/api/{endpoint}?model=../../etc/passwd")
    assert reply.status_code == 422
    assert reply.json()["error"]["key"] == "model"
    assert "\n" not in reply.json()["error"]["line"]


PIECES = [
    "model", "system", "phase", "devices", "stack", "calibration", "tokens", "set", "tp", "zero", "gpt3-175b",
    "dgx-a100", "generate", "=", "&", "%", "%00", "%ff", "%u1234", ";", "+", "../", "1e400", "-1", "nan", "٣",
    "hbm.bandwidth", "4 TB/s", "system.accelerator", "system.network.0", "strategy.tp", "model.layers", "é",
    "true", "9" * 400, "__class__", "1e-320", "0x10", "1_000", "{}", "[", "'", '"', "\\", "<script>",
]  # fmt: skip


@pytest.mark.slow
def test_mutated_states_never_break_the_server(validator):
    """A thousand queries made of pieces, and a good one with pieces put in: refused or answered, at once."""
    draw, start = random.Random(7), time.monotonic()
    for _ in range(1000):
        if draw.random() < 0.5:
            query = "".join(draw.choices(PIECES, k=draw.randint(1, 12)))
        else:
            place = draw.randrange(len(QUERY))
            query = QUERY[:place] + draw.choice(PIECES) + QUERY[place + draw.randint(0, 3) :]
        endpoint = draw.choice(["answer", "inputs", "front", "export", "interval"])
        reply = validator.get(f"/api/{endpoint}?{query.replace('#', '')}")
        assert reply.status_code in (200, 422), (endpoint, query, reply.text)
    assert time.monotonic() - start < 100


def test_a_query_too_long_is_refused(validator):
    assert validator.get("/api/answer?" + "&".join(f"set=a{i}=1" for i in range(999))).status_code == 422
    assert validator.get("/api/answer?x=" + "9" * 61_000).status_code == 422


@pytest.mark.slow
def test_an_answer_is_that_of_the_estimate(complete):
    """Against the shipped command's own assembly of the same question."""
    from diffperf.page.state import State
    from diffperf.relax import Exact

    found = complete(f"answer?{QUERY}")
    state = State.of([("devices", "64"), ("tp", "8"), ("pp", "8")])
    layout = state.question().layout("training", Exact())
    report: object = layout.report
    assert found["outputs"]["time"]["value"] == pytest.approx(float(report.time), rel=1e-9)
    assert found["fits"] == layout.fits
    parts = [found["outputs"][path]["value"] for path in found["wholes"][0]["parts"]]
    assert sum(parts) == pytest.approx(float(report.time), rel=1e-9)
    assert sum(row["time"] for row in found["operators"]["rows"]) < float(report.time)
    top = found["sensitivities"]["ranked"]["time"]
    assert all(abs(one) >= abs(other) for (_, one, _), (_, other, _) in itertools.pairwise(top))
    assert complete(f"interval?{QUERY}")["interval"]["low"] < report.time
    # Whole numbers have what the estimate says with one more and one less, as in `diffperf sensitivity`.
    question = dp.sensitivity("gpt3-175b", "dgx-a100", devices=64, tp=8, pp=8)
    printed = {(each.path, each.derivative): each.elasticity for each in question.ranked}
    shown = {(path, step): slope for path, slope, step in top if path.startswith("system.")}
    for row in [(UNITS, "+1"), (UNITS, "−1"), ("system.accelerator.memory.hbm.bandwidth", "slope")]:
        assert shown[row] == pytest.approx(printed[row], rel=1e-6)


@pytest.mark.slow
def test_a_changed_number_compiles_nothing(complete, client):
    """Answers to changed numbers run programs that are compiled: nothing is traced or compiled for them.

    That keeps a change within 150 ms; `studies/benchmarks/run.py` measures how long one takes.
    """
    complete(f"answer?{QUERY}")
    client.get(f"/api/answer?{QUERY}&set=hbm.bandwidth=2 TB/s")
    compilations: list[str] = []

    def note(event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for change in ("hbm.bandwidth=2.5 TB/s", "hbm.bandwidth=3 TB/s", "prices.electricity=0.2 USD/kWh"):
            reply = client.get(f"/api/answer?{QUERY}&set={change}")
            assert reply.status_code == 200, reply.text
            assert not reply.json()["compiling"]
        assert not compilations
        jax.jit(lambda number: number + 1.0).lower(1.0).compile()
        assert compilations  # the listener hears compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.slow
def test_mutated_numbers_are_estimated_or_explained(complete, client):
    """Any value inside the documented ranges is estimated; JSON has no NaN."""
    complete(f"answer?{QUERY}")
    listed = client.get(f"/api/inputs?{QUERY}").json()["inputs"]
    draw, texts = random.Random(3), ["0", "1e9 GB", "3 TB/s", "1e-30", "5", "7 W", "$3"]
    for _ in range(100):
        changes = [
            f"set={row['path']}={draw.choice([row['text'], *texts])}" for row in draw.sample(listed, 3)
        ]
        start = time.monotonic()
        reply = client.get(f"/api/answer?{QUERY}&" + "&".join(changes))
        assert reply.status_code in (200, 422), (changes, reply.text)
        assert time.monotonic() - start < 10
        reply.json()

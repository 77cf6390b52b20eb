"""What the tests of the page share: the application with programs that are compiled once, and questions."""

import time
from collections.abc import Callable, Iterator

import pytest
from page_states import ADDRESS
from starlette.testclient import TestClient

from diffperf.page.server import Backend, application


@pytest.fixture(scope="session")
def backend() -> Iterator[Backend]:
    """The backend of all tests: one set of compiled programs. JAX is configured as for all other tests."""
    made = Backend(lambda: None)
    yield made
    made.close()


@pytest.fixture(scope="session")
def client(backend) -> TestClient:
    return TestClient(application(backend), base_url=ADDRESS, raise_server_exceptions=False)


@pytest.fixture(scope="session")
def complete(client) -> Callable[[str], dict]:
    """Asks until nothing is compiled any more."""

    def ask(path: str) -> dict:
        for _ in range(1200):
            reply = client.get(f"/api/{path}")
            assert reply.status_code == 200, reply.text
            if not reply.json()["compiling"]:
                return reply.json()
            time.sleep(0.5)
        raise TimeoutError(path)

    return ask

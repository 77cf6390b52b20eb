"""The server of the page: its files, and answers to its questions, for browsers on this machine only.

Importing this module takes no JAX: the page is painted while JAX is imported in the background.
"""

import contextlib
import importlib.resources
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffperf.errors import ConfigError

LOOPBACK = "127.0.0.1"
_HOSTS = (LOOPBACK, "localhost")
_MOST_QUERY = 60_000  # bytes
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_log = logging.getLogger("diffperf.page")


class Backend:
    """The part of the server that needs JAX: imported in the background, and waited for."""

    def __init__(self, prepare: Callable[[], None]):
        """`prepare` is called once before JAX is used, to configure it."""
        self._prepare = prepare
        self._lock = threading.Lock()
        self._programs: Any = None

    def programs(self) -> Any:
        """The compiled programs; the first call imports what they need."""
        with self._lock:
            if self._programs is None:
                self._prepare()
                from diffperf.page import answers, catalog, exports, fronts  # noqa: F401
                from diffperf.page.programs import Programs

                self._programs = Programs()
        return self._programs

    def start(self) -> None:
        """Imports in the background."""
        threading.Thread(target=self.programs, name="imports", daemon=True).start()

    def close(self) -> None:
        if self._programs is not None:
            self._programs.close()


class OnlyFromHere:
    """Refuses requests that another site makes through the user's browser.

    A site whose name was rebound to the loopback address shows in the Host header; requests that a foreign
    page sends, in Sec-Fetch-Site or Origin.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        problem = _foreign(Request(scope))
        if problem:
            await PlainTextResponse(f"{problem}\n", 403, headers=_HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _foreign(request: Request) -> str:
    """Why a request is refused, empty where it is not."""
    host = request.headers.get("host", "")
    name, _, port = host.partition(":")
    if name not in _HOSTS or not (port == "" or port.isdigit()):
        return "this page is for browsers on its own machine: open the address that diffperf explore printed"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        # A link from elsewhere may open the page itself, but asks nothing.
        navigates = request.headers.get("sec-fetch-mode") == "navigate" and request.url.path == "/"
        return "" if navigates else "this page answers questions of its own only"
    origin = request.headers.get("origin")
    return "" if origin in (None, f"http://{host}") else "this page answers questions of its own only"


def application(backend: Backend) -> Starlette:
    """The application: the page's files at /, its questions under /api."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        backend.start()
        yield
        backend.close()

    def catalog(request: Request) -> JSONResponse:
        backend.programs()
        from diffperf.page.catalog import catalog

        return JSONResponse(catalog())

    def inputs(request: Request) -> JSONResponse:
        backend.programs()
        from diffperf.page.catalog import inputs

        return _explained(lambda: {"inputs": inputs(_state(request))})

    def answer(request: Request) -> JSONResponse:
        programs = backend.programs()
        from diffperf.page.answers import answer

        return _explained(lambda: answer(_state(request), programs))

    def interval(request: Request) -> JSONResponse:
        programs = backend.programs()
        from diffperf.page.answers import time_interval

        return _explained(lambda: time_interval(_state(request), programs))

    def front(request: Request) -> JSONResponse:
        programs = backend.programs()
        from diffperf.page.fronts import front

        return _explained(lambda: front(_state(request), programs))

    def export(request: Request) -> JSONResponse:
        programs = backend.programs()
        from diffperf.page.exports import export

        return _explained(lambda: export(_state(request), programs))

    files = StaticFiles(directory=assets(), html=True)
    routes = [
        Route("/api/catalog", catalog),
        Route("/api/inputs", inputs),
        Route("/api/answer", answer),
        Route("/api/interval", interval),
        Route("/api/front", front),
        Route("/api/export", export),
        Mount("/", files),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(OnlyFromHere)
    return app


def assets() -> Path:
    """The folder of the page's files."""
    return Path(str(importlib.resources.files("diffperf.page"))) / "assets"


def _state(request: Request) -> Any:
    """The state in the query of a request."""
    from diffperf.page.state import PAGE, State

    query = request.scope["query_string"]
    if len(query) > _MOST_QUERY:
        raise ConfigError(PAGE, "", f"{len(query)} bytes", f"at most {_MOST_QUERY}", "shorten the address")
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        raise ConfigError(PAGE, "", "an unreadable address", "a query", "start from the plain page") from None
    return State.of((key, text) for key, text in pairs if text.strip())


def _explained(ask: Callable[[], dict[str, Any]]) -> JSONResponse:
    """The answer, or what is wrong with the question: the key and one line."""
    try:
        return JSONResponse(ask())
    except ConfigError as problem:
        line = f"found {problem.found}; expected {problem.expected}; {problem.remedy}"
        return JSONResponse({"error": {"key": problem.key, "line": " ".join(line.split())}}, 422)
    except Exception:  # a fault of this program: the page says so, the terminal says where
        _log.exception("an answer failed")
        line = "this program failed; the terminal that runs diffperf explore says where"
        return JSONResponse({"error": {"key": "", "line": line}}, 500)

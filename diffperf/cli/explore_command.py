"""diffperf explore: a live page in the browser, served by this machine to itself."""

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from urllib.parse import urlencode

import click

from diffperf.cli.completion import names_of

_MISSING = "the page needs starlette and uvicorn: pip install 'diffperf[page]'"


@click.command()
@click.argument("model", required=False, shell_complete=names_of("models"))
@click.argument("system", required=False, shell_complete=names_of("systems"))
@click.option("--devices", type=click.IntRange(1), help="number of devices [what the system's file says]")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="port to listen on [any that is free]")
@click.option("--browser/--no-browser", default=True, help="open the page in the browser [browser]")
def explore(model: str | None, system: str | None, devices: int | None, port: int, browser: bool) -> None:
    """Serve a live page of MODEL on SYSTEM: every number is a control, and everything follows it.

    The page is for browsers on this machine only (127.0.0.1). Ctrl-C ends it.
    """
    try:
        import uvicorn

        from diffperf.page.server import LOOPBACK, Backend, application
    except ImportError:
        raise click.ClickException(_MISSING) from None

    listener = listen(LOOPBACK, port)
    state = {"model": model, "system": system, "devices": devices}
    given = {name: value for name, value in state.items() if value is not None}
    query = f"?{urlencode(given)}" if given else ""
    address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/{query}"
    settings = uvicorn.Config(
        application(Backend(_configure)),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    click.echo(f"{address}  (Ctrl-C ends it)")
    if browser:
        threading.Timer(0.1, webbrowser.open, [address]).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    click.echo("\nThe page has ended.")
    sys.stdout.flush()
    os._exit(0)  # a compilation in the background cannot be interrupted, and nobody waits for it any more


def _configure() -> None:
    """Configures JAX, which is imported only here."""
    from diffperf.cli.jax_settings import configure_jax

    configure_jax()


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens on a port of this machine. Raises `ClickException` where the port is taken."""
    # asyncio sends small packets at once (TCP_NODELAY) only where the protocol is said to be TCP; otherwise
    # the end of an answer waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen()  # a browser that is faster than the server waits
    except OSError as problem:
        listener.close()
        raise click.ClickException(f"port {port}: {problem.strerror}; choose another with --port") from None
    return listener

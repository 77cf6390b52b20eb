"""diffperf explore starts at once, on this machine only, and ends in one line."""

import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

_FIRST_PAINT = 2.0  # s of a processor


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The process and the address that it prints."""
    monkeypatch.setenv("DIFFPERF_CACHE", "off")
    command = [sys.executable, "-m", "diffperf", "explore", "llama-2-7b", "dgx-a100"]
    command += ["--devices", "16", "--no-browser"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().split()[0]
    process.kill()
    process.wait()


def test_the_page_is_served_before_anything_is_compiled_and_ends_with_ctrl_c(started):
    process, address = started
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/?model=llama-2-7b&system=dgx-a100&devices=16")
    with urllib.request.urlopen(address, timeout=30) as reply:
        assert "main.js" in reply.read().decode()
    port = int(address.split(":")[2].split("/")[0])
    # On Linux all of 127.0.0.0/8 is this machine: a server for every interface would answer here too.
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", port)) != 0
    question = address.replace("/?", "/api/answer?")
    with urllib.request.urlopen(question, timeout=60) as reply:
        assert '"compiling":["the estimate"' in reply.read().decode()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=20)  # the compilation takes longer, and is not waited for
    assert out.split("\n") == ["", "The page has ended.", ""]
    assert error == ""
    assert process.returncode == 0


def test_the_page_needs_no_jax_to_be_painted():
    """First paint: the server's imports, without the estimator's."""
    program = (
        "import sys, time\n"
        "from diffperf.page.server import Backend, application\n"
        "application(Backend(lambda: None))\n"
        "print('jax' in sys.modules, time.process_time())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported, took = done.stdout.split()
    assert imported == "False"
    assert float(took) < _FIRST_PAINT


def test_a_port_that_is_taken_is_one_line(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run(f"explore --no-browser --port {taken.getsockname()[1]}")
    assert result.exit_code == 1
    assert "--port" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_library_is_one_line_that_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("explore --no-browser")
    assert result.exit_code == 1
    assert "pip install 'diffperf[page]'" in result.stderr

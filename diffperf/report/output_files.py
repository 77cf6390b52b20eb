"""Files that answers are written to: checked before the computation, and never left half written."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from diffperf.errors import ConfigError

STDOUT = "-"


def check_writable(path: str | Path, option: str, asked_by: str = "command line") -> Path:
    """The path, if a file can be written there: its folder exists and takes a file, and neither is protected.

    **Raises:** `ConfigError`, which names the option that the path is from, and `asked_by` in place of a
    file.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(asked_by, option, f'"{path}", a folder', "a file", "name a file in it")
    if not path.parent.is_dir():
        expected = "a file in a folder that exists"
        raise ConfigError(asked_by, option, f'"{path}"', expected, "create the folder")
    protected = path if path.exists() else path.parent
    if not os.access(protected, os.W_OK):
        found, expected = f'"{path}", which is protected', "a file that can be written"
        raise ConfigError(asked_by, option, found, expected, "name another one")
    if not path.exists() or path.is_file():
        # Permissions do not tell of a full disk, nor of a file system that takes no files.
        try:
            with tempfile.TemporaryFile(dir=path.parent) as probe:
                probe.write(b"a file can be written")
        except OSError as error:
            found, expected = f'"{path}": {error.strerror}', "a file that can be written"
            raise ConfigError(asked_by, option, found, expected, "name another one") from error
    return path


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields the path of a file of the same kind beside `path`, which takes its place when it is complete.

    An error or an interrupt leaves what was at `path` as it was. What is no file of a folder, such as a pipe,
    is written to directly.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with _named(path):
            yield path
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    beside = Path(name)
    try:
        with _named(path):
            yield beside
        mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
        beside.chmod(mode)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of writing that name no file, such as that of a full disk, name the one that was asked for."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _umask() -> int:
    """The permissions that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str) -> None:
    """Writes a text whole, in UTF-8."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")

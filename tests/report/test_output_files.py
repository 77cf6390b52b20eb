"""Files of answers: checked first, written whole or not at all."""

import os
import stat

import pytest

from diffperf.errors import ConfigError
from diffperf.report.output_files import check_writable, replacing, write_text


@pytest.mark.parametrize("name", ["missing/a.json", "."])
def test_where_nothing_can_be_written_is_said_before(tmp_path, name):
    with pytest.raises(ConfigError) as error:
        check_writable(tmp_path / name, "--json")
    assert str(error.value).startswith("command line: --json: found")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is protected from root")
def test_a_protected_folder_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigError, match="protected"):
        check_writable(tmp_path / "a.json", "--json")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a file system that takes no files")
def test_a_file_system_that_takes_no_files_is_refused():
    with pytest.raises(ConfigError, match=r'--json: found "/proc/a\.json": .*a file that can be written'):
        check_writable("/proc/a.json", "--json")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_disk_is_named_with_the_file():
    with pytest.raises(OSError, match="No space left") as error:
        write_text("/dev/full", "text")
    assert error.value.filename == "/dev/full"


def test_an_interrupt_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "before")

    def interrupted():
        with replacing(path) as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_stay(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    path.chmod(0o600)
    write_text(path, "two")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two", 0o600)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_pipes_are_written_to():
    write_text("/dev/null", "text")

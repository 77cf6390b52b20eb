"""The folder of a sweep's results: its manifest, its finished parts, and at the end its answer.

The same call on the same folder goes on from the finished parts, and comes to the same bytes. Folders of
checkpoints are the same, but are given up where the space has changed, and deleted at the end. Their manifest
says that they are temporary: no other folder is ever deleted, and no file that a sweep has not written.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from diffperf.errors import ConfigError
from diffperf.explore.sweep.manifest import FILE, differences, manifest_of, read_manifest, write_manifest
from diffperf.explore.sweep.output_file import check_parent
from diffperf.explore.sweep.part_files import PartFiles
from diffperf.explore.sweep.sweep_plan import SweepPlan


@dataclasses.dataclass(frozen=True)
class ResultsFolder:
    """A folder of results.

    - `folder`: where it is.
    - `asked`: the sweep, as it was asked for.
    - `temporary`: whether it is deleted at the end.
    """

    folder: Path
    asked: SweepPlan
    temporary: bool = False

    def begin(self) -> SweepPlan:
        """Makes the folder, or checks that it holds the same sweep. Returns the plan to go on with.

        **Raises:** `ConfigError` for the folder of another sweep, and for one that holds other files.
        """
        manifest = self._manifest()
        self.folder.mkdir(exist_ok=True)
        if manifest is None:
            self.files(self.asked).remove_others()
        plan = self.asked
        if manifest and manifest["computed_in"] != plan.rules.dtype.name:
            plan = self.asked.in_double_precision()
        self._write(plan)
        self.files(plan).prepare()
        return plan

    def begin_again(self, plan: SweepPlan) -> None:
        """Notes that the sweep begins anew in another precision."""
        self._write(plan)

    def files(self, plan: SweepPlan) -> PartFiles:
        """The files of the parts."""
        return PartFiles(self.folder, plan)

    def end(self, plan: SweepPlan, write_answer: Callable[[Path], None]) -> None:
        """Writes the answer; or deletes the folder, if it is temporary."""
        if self.temporary:
            self._delete(plan)
            return
        write_answer(self.folder)
        self._write(plan, complete=True)

    def _write(self, plan: SweepPlan, complete: bool = False) -> None:
        manifest = manifest_of(self.asked, plan.rules.dtype.name, complete)
        write_manifest(self.folder, manifest | {"temporary": self.temporary})

    def _delete(self, plan: SweepPlan) -> None:
        """Deletes what a sweep has written to the folder, and the folder unless it holds other files."""
        self.files(plan).delete()
        (self.folder / FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder is not empty
            self.folder.rmdir()

    def _manifest(self) -> dict | None:
        """The manifest of the same sweep; None where the sweep begins."""
        manifest = read_manifest(self.folder)
        if manifest and self.temporary and not manifest["temporary"]:
            remedy = "move it elsewhere, or name it with --results to go on with it"
            raise ConfigError(self.folder, "", "the results of a sweep", "a folder of checkpoints", remedy)
        different = manifest and differences(manifest, manifest_of(self.asked, ""))
        if different and self.temporary:
            self._delete(self.asked)
            return None
        if different:
            remedy = "name another folder (--results), or delete this one"
            raise ConfigError(
                self.folder, FILE, f"the results of another sweep: {different}", "this one's", remedy
            )
        return manifest


def check_folder(folder: Path) -> None:
    """Refuses a folder that holds anything but the results of a sweep. **Raises:** `ConfigError`."""
    check_parent(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(folder, "", "a file", "a folder for results", "name another folder (--results)")
    if folder.is_dir():
        names = {file.name for file in folder.iterdir()}
        known = not names or FILE in names or "parts" in names
        if not known and names != {FILE + ".unfinished"}:
            expected = "a new folder, or the results of a sweep"
            raise ConfigError(
                folder, "", f"a folder without {FILE}", expected, "name another folder (--results)"
            )


def finished_parts(folder: Path) -> int:
    """Number of parts of a sweep that a folder keeps."""
    return len(list(folder.glob("parts/*.npz")))

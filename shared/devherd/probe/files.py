"""Files that a vendor wants on the host: written before a scan is answered, removed when nothing wants them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from devherd.settings import Paths
from devherd.state import StateFile, machine_id
from devherd.values import HostFile, Skipped

RULE = "files"
"""What a Skipped names as the rule where a file could not be written."""
_MODE = 0o644


class Files:
    """The files of one plugin. What it ever wrote is remembered on disk, so that the next probe can remove it."""

    def __init__(self, paths: Paths, plugin: str) -> None:
        self._folders = tuple(os.path.normpath(folder) for folder in (paths.cdi, paths.features))
        place = os.path.join(paths.state, f"{plugin}.files.json")
        self._state = StateFile(place, "files", tuple[str, ...], machine_id=machine_id(paths))
        self._ours: set[str] | None = None
        self._seen: dict[str, tuple[str, tuple[int, ...]]] = {}

    def publish(self, wanted: Iterable[HostFile]) -> tuple[Skipped, ...]:
        """Make the host have exactly these of ours. Returns what could not be done; raises nothing of the host's."""
        files = {file.path: file for file in wanted}
        if not files and self._ours is None and not os.path.exists(self._state.path):
            return ()
        ours = self._recalled()
        problems = [self._refused(path) for path in files if not self._allowed(path)]
        allowed = {path: file for path, file in files.items() if self._allowed(path)}
        # Remembered before it is written: a probe that dies in between leaves nothing that nobody owns.
        self._remember(ours | set(allowed))
        problems += [text for text in map(self._write, allowed.values()) if text is not None]
        gone = {path for path in ours - set(files) if self._remove(path)}
        self._remember((ours | set(allowed)) - gone)
        return tuple(problems)

    def _allowed(self, path: str) -> bool:
        return os.path.dirname(os.path.normpath(path)) in self._folders

    def _refused(self, path: str) -> Skipped:
        return Skipped(path, RULE, f"not written: it is not directly in {' or '.join(self._folders)}")

    def _recalled(self) -> set[str]:
        if self._ours is None:
            self._ours = {path for path in self._state.load().value or () if self._allowed(path)}
        return self._ours

    def _remember(self, paths: set[str]) -> None:
        if paths == self._ours:
            return
        self._ours = paths
        with contextlib.suppress(OSError):  # A full disk: nothing is lost but the clean-up after the next start.
            self._state.save(tuple(sorted(paths)))

    def _write(self, file: HostFile) -> Skipped | None:
        """None when the file is there as wanted."""
        folder, name = os.path.split(file.path)
        if file.optional and not os.path.isdir(folder):
            return None
        try:
            if self._seen.get(file.path) == (file.text, _signature(file.path)) or self._same(file):
                return None
            os.makedirs(folder, mode=0o755, exist_ok=True)
            # Readers of these folders take any name with their extension, so a temporary file has none of them.
            _replace(file.path, os.path.join(folder, f".{name}.devherd-new"), file.text)
            self._seen[file.path] = (file.text, _signature(file.path))
        except OSError as error:
            return Skipped(file.path, RULE, f"cannot be written: {error.strerror or error}")
        return None

    def _same(self, file: HostFile) -> bool:
        try:
            with open(file.path, encoding="utf-8") as there:
                text = there.read(len(file.text) + 1)
        except (OSError, UnicodeError):
            return False
        if text != file.text:
            return False
        self._seen[file.path] = (file.text, _signature(file.path))
        return True

    def _remove(self, path: str) -> bool:
        self._seen.pop(path, None)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _signature(path: str) -> tuple[int, ...]:
    """What changes when anybody writes or replaces a file; empty when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _replace(path: str, temporary: str, text: str) -> None:
    try:
        _put(temporary, text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _put(path: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, _MODE)
        file.write(text)

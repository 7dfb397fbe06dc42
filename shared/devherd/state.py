"""State files: what a process knew, written atomically, bound to this machine, and never trusted blindly.

A file is two lines: a header (kind, version, machine, checksum) and the value as JSON. The header can be read
even where the value cannot, and the checksum tells a damaged file from one that is merely odd.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
import zlib
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from devherd.settings import Paths

T = TypeVar("T")
MAX_BYTES = 256 * 1024 * 1024


class Header(Struct, frozen=True):
    """First line of a state file. `written` is Unix seconds; `checksum` is the value's CRC-32."""

    kind: str
    version: int
    machine_id: str
    written: float
    size: int
    checksum: int


class LoadedState(Struct, Generic[T], frozen=True):
    """A value, or None and why. `outcome` is loaded, missing, corrupt, foreign (another machine), newer or unreadable.

    `reason` is for a person; it is empty for a loaded value and for a file that never existed.
    """

    value: T | None
    outcome: str
    reason: str = ""
    written: float = 0.0

    @property
    def missing(self) -> bool:
        """True if there was no file: nothing is wrong, there is just no past."""
        return self.outcome == "missing"


class StateFile(Generic[T]):
    """One value kept in one file.

    `codec` is the value's type. Raise `version` only for a change that the previous release cannot read; it ignores
    fields it does not know. With a `machine_id` the value of another machine (a cloned disk) is not loaded.
    """

    def __init__(self, path: str, kind: str, codec: type[T], version: int = 1, machine_id: str = "") -> None:
        self.path = path
        self.kind = kind
        self.version = version
        self.machine_id = machine_id
        self._decoder = msgspec.json.Decoder(codec)
        self._lock = threading.Lock()

    def load(self, set_aside: bool = True) -> LoadedState[T]:
        """Read the file. Never raises: a damaged file is set aside as `<path>.bad`, and the reason says so.

        Who is not the file's owner leaves it where it is: `set_aside` false.
        """
        try:
            data = self._read()
        except FileNotFoundError:
            return LoadedState(None, "missing")
        except OSError as error:
            return LoadedState(None, "unreadable", f"{self.path} cannot be read: {error.strerror or error}")
        line, _, payload = data.partition(b"\n")
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return self._corrupt("it has no readable header", set_aside)
        return self._mismatch(header, set_aside) or self._value(header, payload, set_aside)

    def save(self, value: T) -> None:
        """Write the value, all or nothing, for the owner only; on the disk when this returns. Raises OSError."""
        self.write(self.encode(value))

    def encode(self, value: T) -> bytes:
        """The file's content for a value; separate from `write`, which may wait for the disk. Raises OSError."""
        try:
            payload = msgspec.json.encode(value)
        except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise OSError(errno.EINVAL, f"the value has no JSON form: {error}", self.path) from error
        header = Header(self.kind, self.version, self.machine_id, time.time(), len(payload), zlib.crc32(payload))
        return msgspec.json.encode(header) + b"\n" + payload + b"\n"

    def write(self, content: bytes) -> None:
        """Put encoded content in place: temporary file, fsync, rename, fsync of the folder. Raises OSError."""
        folder, name = os.path.split(self.path)
        folder = folder or "."
        temporary = os.path.join(folder, f".{name}.tmp")
        with self._lock:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            try:
                _write_file(temporary, content)
                os.replace(temporary, self.path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            _sync_folder(folder)

    def _read(self) -> bytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "it is not a regular file")
            return file.read(MAX_BYTES)

    def _mismatch(self, header: Header, set_aside: bool) -> LoadedState[T] | None:
        """Why a file with a good header is not for us."""
        if header.kind != self.kind:
            return self._corrupt(f"it holds {header.kind!r}, not {self.kind!r}", set_aside)
        if self.machine_id and header.machine_id != self.machine_id:
            return LoadedState(None, "foreign", f"{self.path} was written on another machine; it is not used")
        if header.version > self.version:
            reason = (
                f"{self.path} was written by a newer release (format {header.version}, this one reads {self.version})"
            )
            return LoadedState(None, "newer", reason)
        return None

    def _value(self, header: Header, payload: bytes, set_aside: bool) -> LoadedState[T]:
        payload = payload[: header.size] if header.size >= 0 else payload
        if len(payload) != header.size or zlib.crc32(payload) != header.checksum:
            return self._corrupt("its checksum is wrong", set_aside)
        try:
            value = self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return self._corrupt(f"its value is not as expected: {error}", set_aside)
        return LoadedState(value, "loaded", "", header.written)

    def _corrupt(self, why: str, set_aside: bool) -> LoadedState[T]:
        if not set_aside:
            return LoadedState(None, "corrupt", f"{self.path} is damaged: {why}")
        aside = self.path + ".bad"
        try:
            os.replace(self.path, aside)
            done = f"it was set aside as {aside}"
        except OSError as error:
            done = f"it could not be set aside: {error.strerror or error}"
        return LoadedState(None, "corrupt", f"{self.path} is damaged: {why}; {done}")


def _write_file(path: str, content: bytes) -> None:
    # What a killed process left is removed, not opened: it may be a link by now.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: str) -> None:
    """Make the rename last. File systems without it are no reason to fail: the content is already complete."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline(256).strip()
    except (OSError, ValueError):
        return ""


def boot_id(paths: Paths) -> str:
    """The kernel's id of this boot (`<proc>/sys/kernel/random/boot_id`); empty if it cannot be read."""
    return _first_line(os.path.join(paths.proc, "sys/kernel/random/boot_id"))


def machine_id(paths: Paths) -> str:
    """The installation's id (machine-id(5)); empty if there is none yet."""
    return _first_line(paths.machine_id)

"""One resource's socket files in the kubelet's device plugin folder.

A server binds a private name and the listening socket is then renamed to its anchor in our subfolder, so that nobody
ever sees a file that does not listen. In the top layout a hard link beside kubelet.sock leads to the same socket;
after the kubelet's start-up wipe, which removes every socket directly in the folder, one link() restores it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable

from devherd.kubelet.folder import FolderId, folder_id
from devherd.kubelet.identity import accepts, probe_socket
from devherd.kubelet.layout import SUBFOLDER, TOP
from devherd.sha1 import sha1_hex

_SUBFOLDER = "devherd"
_IN_SUBFOLDER = re.compile(r"\.[0-9a-f]{8}\.(?P<pid>[0-9]+)\.[0-9]+|.*\.sock")
_AT_TOP = re.compile(rf"\.{_SUBFOLDER}\.[0-9a-f]{{8}}\.(?P<pid>[0-9]+)|{_SUBFOLDER}-.*\.sock")
_PATH_MAX = 107  # bytes of sun_path before its NUL (unix(7)); the kubelet dials the full path


class EndpointError(Exception):
    """The socket cannot be put where it belongs; the text says what, where and what to do."""


class EndpointTaken(EndpointError):
    """Another live process serves this very socket."""


def _shortened(folder: str, stem: str) -> str:
    name = f"{stem}.sock"
    room = _PATH_MAX - len(os.fsencode(folder)) - 1
    if len(os.fsencode(name)) <= room:
        return name
    digest = sha1_hex(stem)[:10]
    kept = room - len(f"-{digest}.sock")
    if kept < 0:
        raise EndpointError(
            f"{folder}: too long for a socket in it (a path may have {_PATH_MAX} bytes); move the kubelet's folder"
        )
    return f"{stem.encode()[:kept].decode(errors='ignore')}-{digest}.sock"


class Endpoint:
    """Where one resource's server is reachable. Folder 0700, sockets 0600, never the kubelet's own folder's mode."""

    def __init__(self, device_plugins: str, plugin: str, resource: str) -> None:
        self.device_plugins = os.path.abspath(device_plugins)
        self.folder = os.path.join(self.device_plugins, _SUBFOLDER)
        self._stem = stem = f"{plugin}.{resource.replace('/', '_')}"
        self.anchor = os.path.join(self.folder, _shortened(self.folder, stem))
        self.top = os.path.join(self.device_plugins, _shortened(self.device_plugins, f"{_SUBFOLDER}-{stem}"))
        self._offered = {SUBFOLDER: self.anchor, TOP: self.top}
        self._tag = sha1_hex(stem)[:8]
        self._binds = 0
        self._inode: tuple[int, int] | None = None
        self._parent: FolderId | None = None

    def private(self) -> str:
        """Make our folder ready and return a fresh name in it for a server to bind.

        Raises FileNotFoundError while the kubelet's folder is missing (it is the kubelet's to make, with its mode and
        label), EndpointTaken when a live process already serves this socket, EndpointError when something is in
        the way.
        """
        self._own_folder()
        self._refuse_if_taken()
        for name in os.listdir(self.folder):
            if name.startswith(f".{self._tag}.") and not accepts(os.path.join(self.folder, name)):
                _unlink(os.path.join(self.folder, name))
        self._binds += 1
        path = os.path.join(self.folder, f".{self._tag}.{os.getpid()}.{self._binds}")
        if len(os.fsencode(path)) > _PATH_MAX:
            raise EndpointError(f"{self.folder}: too long for a socket in it; move the kubelet's folder")
        return path

    def adopt(self, private: str) -> None:
        """Give a listening socket its lasting name."""
        os.chmod(private, 0o600)
        status = os.stat(private)
        os.rename(private, self.anchor)
        self._inode = (status.st_dev, status.st_ino)
        self._parent = folder_id(self.device_plugins)

    @property
    def bound(self) -> bool:
        """Whether a socket was ever put here and not removed by us."""
        return self._inode is not None

    def anchored(self) -> bool:
        """Tell whether the listening socket is still reachable through our subfolder."""
        return self._inode is not None and _inode(self.anchor) == self._inode

    def deaf(self) -> bool:
        """Tell whether nobody listens on the socket although its file is there; from then on it was never ours."""
        if not self.anchored() or accepts(self.anchor):
            return False
        self._inode = None
        return True

    def moved(self) -> bool:
        """Tell whether the kubelet's folder is no longer the one the socket was put in."""
        return folder_id(self.device_plugins) != self._parent

    def path(self, layout: str) -> str:
        """Return the full path the kubelet dials."""
        return self._offered[layout]

    @property
    def names(self) -> frozenset[str]:
        """Full paths of all names the socket goes by."""
        return frozenset({self.anchor, self.top, *self._offered.values()})

    def rename(self) -> None:
        """Be offered under names that no process ever had, beside the usual ones.

        From 1.37 on a kubelet tells a resource's connections apart by path, and refuses a path that it counts as
        connected: for a moment after the stream's end, and, where two calls for one path crossed, as long as it lives.
        """
        stale = self.names - {self.anchor}
        stem = f"{self._stem}.{os.urandom(4).hex()}"
        self._offered = {
            SUBFOLDER: os.path.join(self.folder, _shortened(self.folder, stem)),
            TOP: os.path.join(self.device_plugins, _shortened(self.device_plugins, f"{_SUBFOLDER}-{stem}")),
        }
        self._drop(stale)

    def name(self, layout: str) -> str:
        """Return the same relative to the kubelet's folder, as Register wants it."""
        return self.path(layout)[len(self.device_plugins) :].lstrip("/")

    def intact(self, layout: str) -> bool:
        """Tell whether the kubelet would reach our listening socket."""
        return self._inode is not None and _inode(self.path(layout)) == self._inode

    def publish(self, layout: str) -> str:
        """See to it that the socket is at its place; return its name relative to the kubelet's folder."""
        path = self.path(layout)
        if path != self.anchor and not self.intact(layout):
            made = os.path.join(self.device_plugins, f".{_SUBFOLDER}.{self._tag}.{os.getpid()}")
            _unlink(made)
            os.link(self.anchor, made)
            os.rename(made, path)
            # A rename between two names of one file does nothing and leaves both (rename(2)).
            _unlink(made)
        return self.name(layout)

    def remove(self) -> None:
        """Take away the files that are still ours."""
        self._drop(self.names)
        self._inode = None

    def _drop(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._inode is not None and _inode(path) == self._inode:
                _unlink(path)

    def _own_folder(self) -> None:
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:
            status = os.lstat(self.folder)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise EndpointError(
                    f"{self.folder}: must be a folder owned by user {os.geteuid()}; move what is there away"
                ) from None
            if stat.S_IMODE(status.st_mode) != 0o700:
                os.chmod(self.folder, 0o700)
        except PermissionError as error:
            raise EndpointError(
                f"{self.folder}: {error.strerror}; devherd must run as root, and SELinux may need its policy module"
            ) from error

    def _refuse_if_taken(self) -> None:
        status = _lstat(self.anchor)
        if status is None or (status.st_dev, status.st_ino) == self._inode:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise EndpointError(f"{self.anchor}: is not a socket; move it away")
        try:
            owner = probe_socket(self.anchor).pid
        except BlockingIOError:
            raise EndpointTaken(f"{self.anchor}: another process serves it; stop that one") from None
        except OSError:
            return
        if owner != os.getpid():
            raise EndpointTaken(f"{self.anchor}: process {owner} serves it; stop that one")


def sweep(device_plugins: str) -> list[str]:
    """Remove our sockets that nobody listens on, of whatever earlier life, in both layouts; return their names.

    To be called once at a start. Sockets get their names only once they listen, so what does not accept is dead; a
    name that was to be changed tells who was about to do it.
    """
    dead = []
    for folder, ours in ((os.path.join(device_plugins, _SUBFOLDER), _IN_SUBFOLDER), (device_plugins, _AT_TOP)):
        for name in _names(folder):
            path, match = os.path.join(folder, name), ours.fullmatch(name)
            status = _lstat(path)
            if match is None or status is None or not stat.S_ISSOCK(status.st_mode):
                continue
            if not (_lives(int(match["pid"])) if match["pid"] else accepts(path)):
                _unlink(path)
                dead.append(name)
    return dead


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _inode(path: str) -> tuple[int, int] | None:
    status = _lstat(path)
    return None if status is None else (status.st_dev, status.st_ino)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

"""A private instance: the node's processes under their own supervisord, and what they see of a node and a kubelet."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from devherd.capture.archive import Capture
from devherd.run import leftovers
from devherd.run.control import RunControl
from devherd.run.layout import InUse, Layout, claim_folder
from devherd.run.leftovers import Leftovers
from devherd.run.render import render, write_plugin_config, write_settings
from devherd.run.supervisor import StartFailed, Supervisor
from devherd.settings import Paths
from devherd.sim.kubelet_process import SimKubelet
from devherd.sim.node import Node
from devherd.sim.nodespec import NodeSpec, load
from devherd.sim.places import NodeRoot
from devherd.sim.replay import ReplayedNode

EXAMPLES = Path(__file__).parent / "examples"


@dataclass(frozen=True)
class Wish:
    """What kind of instance is wanted.

    `node` names a simulated node (or its file), or is a capture of a real one, with the captured plugin configurations;
    None: this machine's own /dev and /sys, which are only read.
    `simulate_kubelet` false: this machine's kubelet, in the folders of `settings["paths"]` or the usual ones.
    `plugin_configs` maps a plugin's name to the text of its YAML file; None: those that belong to the node.
    `settings` is laid over devherd.yaml, two levels deep. `programs`: names of conf.d files, None for all.
    `source` is the devherd.yaml the settings came from: `source.follow` takes over what is edited there; plugins.d and
    supervisord.d are then those of that configuration.
    `exec_gap` is for how many seconds a kubelet that a boot has just started does nothing yet: the simulated one
    forks ready-made, a real one loads that long. The first pod comes the option `admit_gap_ms` after its socket.
    Every simulation has the same two gaps, the defaults, unless a test is about them.
    """

    node: str | NodeSpec | Capture | None = "workshop"
    simulate_kubelet: bool = True
    plugin_configs: Mapping[str, str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    programs: Sequence[str] | None = None
    kubelet_options: Mapping[str, Any] = field(default_factory=dict)
    exec_gap: float = 1.0
    keep: bool = False
    source: str = ""


def example_configs(node: str) -> dict[str, str]:
    """Plugin configurations that suit a node devherd comes with: plugin name -> YAML text."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((EXAMPLES / node).glob("*.yaml"))}


class Instance:
    """One instance. Use as a context manager, or call `start` and always `stop`.

    Thread-safe: the control socket's thread and the program that owns the instance may both act on it.
    """

    def __init__(self, wish: Wish, name: str = "default") -> None:
        self.wish = wish
        self.layout = Layout.named(name)
        self.supervisor = Supervisor(self.layout)
        self.node: Node | ReplayedNode | None = None
        self._kubelet: SimKubelet | None = None
        self._control: RunControl | None = None
        self._lock_fd = -1
        self._turn = threading.RLock()
        self._stopping = False

    def __enter__(self) -> Instance:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubelet(self) -> SimKubelet:
        """The simulated kubelet. Raises RuntimeError where the machine's own is used."""
        if self._kubelet is None:
            raise RuntimeError("this instance has no simulated kubelet")
        return self._kubelet

    @property
    def has_kubelet(self) -> bool:
        """Whether there is a simulated kubelet."""
        return self._kubelet is not None

    # Start and stop

    def start(self, timeout: float = 30.0) -> None:
        """As a boot does it: programs first, the kubelet when the watcher is ready. Raises InUse, StartFailed."""
        with self._turn:
            try:
                self._take_name()
                self._stopping = False
                self._prepare()
                self._control = RunControl(self)
                self._boot(timeout)
            except OSError as error:
                self.stop()
                raise StartFailed(_in_folder(error, self.layout.folder)) from error
            except BaseException:
                self.stop()
                raise

    def stop(self, timeout: float = 30.0) -> Leftovers:
        """Stop everything, say what was still there after that, end it too, and remove the folder.

        Signals that would interrupt it are ignored until it is done.
        """
        self._stopping = True
        with _undisturbed(), self._turn:
            if self._lock_fd < 0:
                return Leftovers()
            self.supervisor.stop(timeout)
            self._remove_stale_kubelet()
            if self._control is not None:
                self._control.close()
                self._control = None
            left = leftovers.find(self.layout.folder)
            leftovers.end(self.layout.folder)
            self.supervisor.close()
            self._remove_empty_subfolder()
            if not self.wish.keep:
                shutil.rmtree(self.layout.folder, ignore_errors=True)
            self._give_name_back()
            return left

    def _remove_empty_subfolder(self) -> None:
        """On a real node, the plugins' folder beside the kubelet's socket; one with anything in it stays."""
        if self._kubelet is None and not self.wish.simulate_kubelet:
            folder = self.wish.settings.get("paths", {}).get("device_plugins") or Paths().device_plugins
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(folder, "devherd"))

    def _remove_stale_kubelet(self) -> None:
        """The socket a kubelet leaves behind is part of its manners; with the kubelet gone for good it is rubbish."""
        if self._kubelet is None:
            return
        self._kubelet.close()
        # One killed between bind and rename leaves its PodResources socket under a temporary name.
        folder = os.path.dirname(self.layout.pod_resources)
        left = [entry.path for entry in os.scandir(folder)] if os.path.isdir(folder) else []
        for path in (self._kubelet.socket, self.layout.kubelet_control, *left):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _prepare(self) -> None:
        sweep(os.path.dirname(self.layout.folder))
        leftovers.end(self.layout.folder, grace=3.0)
        shutil.rmtree(self.layout.folder, ignore_errors=True)
        self.layout.make()
        wish = self.wish
        self.node = self._make_node()
        self.write_settings(wish.settings)
        configs = wish.plugin_configs
        if configs is None:
            configs = self._own_configs()
        for plugin, text in configs.items():
            write_plugin_config(self.layout, plugin, text)
        render(self.layout, wish.programs, self._programs_folder())
        if wish.simulate_kubelet:
            self._kubelet = self._make_kubelet()

    def _make_node(self) -> Node | ReplayedNode | None:
        wanted = self.wish.node
        if isinstance(wanted, Capture):
            return ReplayedNode.build(wanted, self.layout.node)
        spec = load(wanted) if isinstance(wanted, str) else wanted
        return Node.build(spec, self.layout.node) if spec is not None else None

    def _own_configs(self) -> dict[str, str]:
        """The plugin configurations that belong to the node."""
        if isinstance(self.wish.node, Capture):
            return self.wish.node.plugin_configs()
        return example_configs(self.node.spec.name) if self.node is not None else {}

    def _programs_folder(self) -> str:
        """The configuration's own supervisord.d, whose programs are run as well."""
        etc = self.wish.settings.get("paths", {}).get("etc", "") if not self.wish.simulate_kubelet else ""
        return os.path.join(etc, "supervisord.d") if etc else ""

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the instance's devherd.yaml: these settings, with what must be private or simulated in its place."""
        write_settings(self.layout, self._settings(settings))

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        layout = self.layout
        paths: dict[str, Any] = {
            "etc": layout.etc,
            "run": layout.run,
            "state": layout.state,
            "log": layout.log,
            "cache": layout.cache,
        }
        if self.node is not None:
            paths |= self.node.paths()
        if self.wish.simulate_kubelet:
            paths |= {"device_plugins": layout.device_plugins, "pod_resources": layout.pod_resources}
            paths |= {"cdi": layout.at("cdi"), "features": layout.at("features")}
        merged: dict[str, Any] = {"paths": paths}
        for section, values in settings.items():
            merged[section] = {**merged.get(section, {}), **values} if isinstance(values, Mapping) else values
        return merged

    def _make_kubelet(self) -> SimKubelet:
        layout = self.layout
        kubelet = SimKubelet(
            layout.device_plugins,
            layout.pod_resources,
            layout.kubelet_state,
            layout.kubelet_control,
            node=self.node.places if self.node is not None else NodeRoot(),
            options=self.wish.kubelet_options,
            stderr=layout.at("log", "kubelet.log"),
        )
        # Its helper process is made once and inherits the mark; the environment is put back at once.
        before = os.environ.get(leftovers.MARK)
        os.environ[leftovers.MARK] = layout.folder
        try:
            kubelet.warm_up()
        finally:
            del os.environ[leftovers.MARK]
            if before is not None:
                os.environ[leftovers.MARK] = before
        return kubelet

    def _boot(self, timeout: float) -> None:
        self.supervisor.start(timeout)
        if self._kubelet is not None:
            time.sleep(self.wish.exec_gap)
            self._kubelet.start(timeout=timeout)

    # What can happen to a node

    def reboot(self, timeout: float = 30.0) -> None:
        """A power cut and a boot: every process and container is gone, /run is empty, numbers may have moved."""
        with self._turn:
            kubelet = self.kubelet
            kubelet.kill()
            self.supervisor.crash(spare=(kubelet.helper_pid,))
            self._clear_run()
            kubelet.lose_containers()
            if self.node is not None:
                self.node.reboot()
            self._boot(timeout)

    def _clear_run(self) -> None:
        for entry in os.scandir(self.layout.run):
            if entry.path == self.layout.control:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Have the instance for oneself. Raises RuntimeError when it is being stopped."""
        while not self._turn.acquire(timeout=0.1):
            if self._stopping:
                raise RuntimeError("the instance is being stopped")
        try:
            yield
        finally:
            self._turn.release()

    # The name

    def _take_name(self) -> None:
        path = self.layout.lock
        claim_folder(os.path.dirname(self.layout.folder))
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.pread(fd, 20, 0).decode(errors="replace").strip()
                os.close(fd)
                raise InUse(
                    f"instance {self.layout.name!r} runs already (pid {owner or 'unknown'}); "
                    "stop that one or give this one another name"
                ) from None
            # The one before us may have removed the file between our open and our lock.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    break
            os.close(fd)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _give_name_back(self) -> None:
        os.unlink(self.layout.lock)
        os.close(self._lock_fd)
        self._lock_fd = -1
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.layout.folder))


def sweep(folder: str) -> list[str]:
    """End and remove the instances in `folder` whose runner was killed; their locks are held by nobody.

    Returns their names. A folder without a lock was kept on purpose.
    """
    swept = []
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(".lock"):
            continue
        path = os.path.join(folder, entry)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftovers.end(path.removesuffix(".lock"), grace=3.0)
            shutil.rmtree(path.removesuffix(".lock"), ignore_errors=True)
            os.unlink(path)
            swept.append(entry.removesuffix(".lock"))
        except OSError:
            pass  # it lives, or another start is at it
        finally:
            os.close(fd)
    return swept


def _in_folder(error: OSError, folder: str) -> str:
    """The error with a path in it: a write to a full disk names none."""
    what = error.strerror or str(error)
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else folder
    return f"{where}: {what} (the instance's folder is {folder}; XDG_RUNTIME_DIR puts it elsewhere)"


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP (a closed terminal) end the main thread as Ctrl-C does: by KeyboardInterrupt."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

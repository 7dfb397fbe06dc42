"""`SimKubelet`: start, stop, restart, kill and freeze a simulated kubelet from Python. Everything here blocks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec

from devherd.sim.client import SimClient, SimError
from devherd.sim.options import Options, changed
from devherd.sim.places import CONTAINERS, OPTIONS, NodeRoot, Places
from devherd.sim.pods import Pod, PodStore, pod_from, write_json
from devherd.sim.runtime import Runtime


class SimKubelet:
    """One node's kubelet, over many lives. Use as a context manager, or call `close`.

    A start forks from a warmed-up helper process (see zygote), so a restart takes some 20 ms. All times in seconds.
    """

    def __init__(
        self,
        device_plugins: str,
        pod_resources: str,
        state: str,
        control: str,
        *,
        node: NodeRoot | None = None,
        options: Mapping[str, Any] | None = None,
        stderr: str = "",
    ) -> None:
        self.places = Places(device_plugins, pod_resources, state, control, node or NodeRoot())
        self.client = SimClient(control)
        self.stderr = stderr or os.path.join(state, "kubelet.log")
        self.pid = 0
        self.exit_code: int | None = None
        self._lock = threading.RLock()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._exits: dict[int, int] = {}
        self._started: list[int] = []
        os.makedirs(state, exist_ok=True)
        os.makedirs(os.path.dirname(control), exist_ok=True)
        self._options = os.path.join(state, OPTIONS)
        if options or not os.path.exists(self._options):
            write_json(self._options, msgspec.to_builtins(changed(Options(), dict(options or {}))))

    @classmethod
    def in_folder(cls, folder: str, **more: Any) -> SimKubelet:
        """All paths below one (short) folder: `device-plugins`, `pr/kubelet.sock`, `state`, `k.sock`."""
        return cls(
            os.path.join(folder, "device-plugins"),
            os.path.join(folder, "pr", "kubelet.sock"),
            os.path.join(folder, "state"),
            os.path.join(folder, "k.sock"),
            **more,
        )

    def __enter__(self) -> SimKubelet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def socket(self) -> str:
        """The registration socket."""
        return os.path.join(self.places.device_plugins, "kubelet.sock")

    @property
    def helper_pid(self) -> int:
        """The process kubelets are forked from; 0 before the first start."""
        return self._zygote.pid if self._zygote is not None else 0

    @property
    def helper_alive(self) -> bool:
        """Whether new kubelets can be forked; true as well before the first start."""
        with self._lock:
            return self._zygote is None or self._zygote.poll() is None

    @property
    def alive(self) -> bool:
        """Whether a kubelet process runs (frozen counts)."""
        with self._lock:
            self._read(0)
            return self.pid != 0

    # Lives

    def warm_up(self) -> None:
        """Start the helper process, so that the first start is as quick as the later ones."""
        with self._lock:
            if self._zygote is None:
                self._zygote = subprocess.Popen(
                    [sys.executable, "-I", "-m", "devherd.sim.zygote"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                )

    def start(self, *, wait: bool = True, timeout: float = 20.0, **options: Any) -> int:
        """Start; with `wait` until kubelet.sock listens. Returns the pid. `options` stay set. Raises SimError."""
        with self._lock:
            if self.alive:
                raise SimError(f"the simulated kubelet runs already (pid {self.pid})")
            if options:
                self.set(**options)
            self.warm_up()
            self._tell({"argv": self._argv(), "stderr": self.stderr})
            end = time.monotonic() + timeout
            while not self._started:
                self._read(max(0.0, end - time.monotonic()))
                if time.monotonic() > end:
                    raise SimError(f"the helper process did not start a kubelet within {timeout:g} s")
            self.pid = self._started.pop()
            self.exit_code = None
        if wait:
            self.wait_listening(timeout)
        return self.pid

    def _argv(self) -> list[str]:
        places = self.places
        return [
            *("--device-plugins", places.device_plugins, "--pod-resources", places.pod_resources),
            *("--state", places.state, "--control", places.control),
            *("--root", places.node.root, "--dev", places.node.dev, "--sys", places.node.sys),
            *("--rdev-table", places.node.rdev_table),
        ]

    def wait_listening(self, timeout: float = 20.0) -> None:
        """Until this life's kubelet.sock listens. Raises SimError, also when the process ended."""
        end = time.monotonic() + timeout
        while True:
            try:
                if self.client.ask("ping", within=1.0)["pid"] == self.pid:
                    self.client.wait(max(0.001, end - time.monotonic()), listening=True)
                    return
            except SimError as error:
                if not self.alive:
                    raise SimError(f"the simulated kubelet ended ({self.exit_code}): {self._last_words()}") from error
                if time.monotonic() > end:
                    raise
            # The process exists but its control socket does not yet; nothing announces it.
            time.sleep(0.001)

    def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM. As with the real one kubelet.sock stays behind and refuses. Nothing to do if none runs."""
        self._end(signal.SIGTERM, timeout)

    def kill(self, timeout: float = 10.0) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL, timeout)

    def restart(self, *, downtime: float = 0.0, hard: bool = False, wait: bool = True, timeout: float = 20.0) -> int:
        """End and start again after `downtime` seconds; `hard` uses SIGKILL. Returns the new pid."""
        self._end(signal.SIGKILL if hard else signal.SIGTERM, timeout)
        if downtime:
            time.sleep(downtime)
        return self.start(wait=wait, timeout=timeout)

    def freeze(self) -> None:
        """SIGSTOP: the kernel accepts connections, nothing answers, not even the control socket."""
        self._signal(signal.SIGSTOP)

    def unfreeze(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait_exit(self, timeout: float = 10.0) -> int:
        """Wait until the kubelet has ended by itself (a crash); its exit code, negative for a signal."""
        end = time.monotonic() + timeout
        with self._lock:
            while self.alive:
                left = end - time.monotonic()
                if left <= 0:
                    raise SimError(f"the simulated kubelet (pid {self.pid}) still runs after {timeout:g} s")
                self._read(left)
            assert self.exit_code is not None
            return self.exit_code

    def _end(self, number: signal.Signals, timeout: float) -> None:
        with self._lock:
            if not self.alive:
                return
            self._signal(number)
            if number is not signal.SIGKILL and self.alive:
                # A frozen one would never see it. It may be gone by now, and its pid is ours until it is reaped.
                with contextlib.suppress(SimError):
                    self._signal(signal.SIGCONT)
            self.wait_exit(timeout)
            self.client.close()

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self.alive:
                raise SimError("no simulated kubelet runs; start it first")
            self._tell({"pid": self.pid, "signal": int(number)})

    def close(self) -> None:
        """End the kubelet and the helper process."""
        with self._lock:
            self.client.close()
            if self._zygote is None:
                return
            assert self._zygote.stdin is not None
            assert self._zygote.stdout is not None
            self._zygote.stdin.close()
            self._zygote.wait()
            self._zygote.stdout.close()
            self._zygote = None
            self.pid = 0

    # What works with and without a running kubelet

    def set(self, **options: Any) -> None:
        """Change options, now if it runs, and for later starts."""
        if self.alive:
            self.client.set(**options)
            return
        with open(self._options, encoding="utf-8") as file:
            stored = json.load(file)
        write_json(self._options, msgspec.to_builtins(changed(changed(Options(), stored), options)))

    def pod_add_offline(self, name: str, requests: Mapping[str, int] | None = None, **more: Any) -> Pod:
        """Put a pod on the node while no kubelet runs; the next one finds it."""
        self._must_be_down()
        pod = pod_from({"name": name, "requests": dict(requests or {}), **more})
        PodStore(self.places.state).add(pod)
        return pod

    def pod_rm_offline(self, name: str, namespace: str = "default") -> None:
        """Delete a pod while no kubelet runs."""
        self._must_be_down()
        store = PodStore(self.places.state)
        entry = store.named(name, namespace)
        if entry is None:
            raise SimError(f"there is no pod {name!r}")
        store.remove(entry.pod.uid)

    def end_container_offline(self, name: str, container: str, namespace: str = "default") -> None:
        """A container's process ends while no kubelet runs."""
        self._must_be_down()
        entry = PodStore(self.places.state).named(name, namespace)
        if entry is None:
            raise SimError(f"there is no pod {name!r}")
        Runtime(self.places.state, self.places.node).exit(entry.pod.uid, container)

    def lose_containers(self) -> None:
        """What a reboot does to the runtime: every container and sandbox is gone. The kubelet must be down."""
        self._must_be_down()
        path = os.path.join(self.places.state, CONTAINERS)
        if os.path.exists(path):
            os.unlink(path)

    def _must_be_down(self) -> None:
        if self.alive:
            raise SimError("stop the simulated kubelet first")

    # The helper process

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._zygote is not None
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(message).encode() + b"\n")

    def _read(self, timeout: float) -> None:
        """Take in what the helper says, waiting up to `timeout` for the first piece."""
        if self._zygote is None or self._zygote.stdout is None:
            return
        while select.select([self._zygote.stdout], [], [], timeout)[0]:
            piece = self._zygote.stdout.read(65536)
            if not piece:
                self._gone(-1)
                return
            *lines, self._buffer = (self._buffer + piece).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "exit" not in message:
                    self._started.append(message["pid"])
                elif message["pid"] == self.pid:
                    self._gone(message["exit"])
                else:
                    self._exits[message["pid"]] = message["exit"]
            timeout = 0
        if self.pid in self._exits:
            self._gone(self._exits.pop(self.pid))

    def _gone(self, code: int) -> None:
        self.pid = 0
        self.exit_code = code

    def _last_words(self) -> str:
        try:
            with open(self.stderr, encoding="utf-8", errors="replace") as file:
                return file.read()[-400:].strip()
        except OSError:
            return ""

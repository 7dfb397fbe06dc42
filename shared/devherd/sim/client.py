"""Asks a running simulated kubelet over its control socket. Standard library only, blocking."""

from __future__ import annotations

import json
import socket
import time
from typing import Any


class SimError(Exception):
    """The kubelet said no, or nobody answered; the text says which."""


class SimClient:
    """One connection, opened when needed and opened anew after the kubelet was restarted."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._buffer = b""

    def ask(self, op: str, within: float = 10.0, **fields: Any) -> dict[str, Any]:
        """One request, one reply. Raises SimError. `within` (seconds) bounds the whole exchange."""
        end = time.monotonic() + within
        request = json.dumps({"op": op, **fields}).encode() + b"\n"
        try:
            self._send(request, end)
            reply = self._receive(end)
        except OSError as error:
            self.close()
            raise SimError(f"{op}: no answer from the simulated kubelet on {self.path}: {error}") from error
        if "error" in reply:
            raise SimError(str(reply["error"]))
        return reply

    def _send(self, request: bytes, end: float) -> None:
        if self._socket is not None and not self._alive(self._socket):
            self.close()
        if self._socket is None:
            self._buffer = b""
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            self._socket.connect(self.path)
        self._socket.sendall(request)

    @staticmethod
    def _alive(connection: socket.socket) -> bool:
        connection.setblocking(False)
        try:
            return connection.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            connection.setblocking(True)

    def _receive(self, end: float) -> dict[str, Any]:
        assert self._socket is not None
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionResetError("it closed the connection")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # What is asked most

    def node(self) -> dict[str, Any]:
        """Resources as the kubelet sees them."""
        return self.ask("node")

    def pods(self, name: str | None = None) -> list[dict[str, Any]]:
        """All pods, or those with a name."""
        found: list[dict[str, Any]] = self.ask("pods", name=name)["pods"]
        return found

    def pod_add(
        self, name: str, requests: dict[str, int] | None = None, wait: float = 0, **more: Any
    ) -> dict[str, Any]:
        """Add a pod; with `wait` seconds, until it runs or has failed."""
        return self.ask("pod-add", within=wait + 10, name=name, requests=requests or {}, wait=wait, **more)

    def pod_rm(self, name: str, wait: float = 10) -> None:
        """Remove a pod and wait until the kubelet has dropped it."""
        self.ask("pod-rm", within=wait + 10, name=name, wait=wait)

    def set(self, **options: Any) -> dict[str, Any]:
        """Change options; returns all of them."""
        return dict(self.ask("set", options=options)["options"])

    def events(self, since: int = 0, what: str | None = None) -> list[dict[str, Any]]:
        """Events after a number, optionally of one sort."""
        found: list[dict[str, Any]] = self.ask("log", since=since, what=what)["events"]
        return found

    def wait(self, timeout: float = 10.0, **condition: Any) -> dict[str, Any]:
        """Wait for a condition (see operations); raises SimError when the time is up."""
        reply = self.ask("wait", within=timeout + 5, timeout=timeout, **condition)
        if not reply["met"]:
            raise SimError(f"still not so after {timeout:g} s: {condition}")
        result: dict[str, Any] = reply["result"] or {}
        return result

    def wait_resource(self, resource: str, timeout: float = 10.0, **wanted: Any) -> dict[str, Any]:
        """Wait until a resource has the wanted capacity, allocatable or stopped."""
        return self.wait(timeout, resource=resource, **wanted)

    def wait_pod(self, name: str, phase: str = "Running", timeout: float = 10.0) -> dict[str, Any]:
        """Wait until a pod is in a phase."""
        return self.wait(timeout, pod=name, phase=phase)

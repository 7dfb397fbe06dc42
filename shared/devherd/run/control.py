"""The runner's control socket, so that `devherd simulate` works from another terminal."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from devherd.control import PollServer, Reply, Request, wait_readable
from devherd.sim.node import Node

if TYPE_CHECKING:
    from devherd.run.instance import Instance

NODE_OPS = ("node", "break", "heal", "renumber", "alter")
KUBELET_ACTIONS = ("start", "stop", "restart", "kill", "freeze", "unfreeze")


class RunControl:
    """Serves `run.control.sock` on a thread of its own, one request after the other.

    `{"op": "ping"}`, `{"op": "status"}`, `{"op": "kubelet", "action": ...}`, `{"op": "reboot"}`, `{"op": "node"}`,
    `{"op": "break", "device": path}`, `{"op": "heal", "device": path}`, `{"op": "renumber", "moves": {old: new}}`,
    `{"op": "alter", "plugin": name, "options": {...}}`.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._server = PollServer(instance.layout.control, self.answer)
        self._ending, self._end = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="run-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. A request in work is finished first, unless it is the one that led here."""
        os.close(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=60)

    def _run(self) -> None:
        while self._ending not in (ready := wait_readable([self._ending, *self._server.fds()], None)):
            for fd in ready:
                self._server.ready(fd)
        self._server.close()
        with contextlib.suppress(OSError):
            os.close(self._ending)

    def answer(self, request: Request) -> Reply:
        """One request. Raises an exception whose text goes back."""
        op = str(request.get("op", ""))
        if op == "ping":
            return {"pid": os.getpid()}
        if op == "status":
            return self._status()
        with self._instance.turn():
            return self._act(op, request)

    def _act(self, op: str, request: Request) -> Reply:
        instance = self._instance
        if op == "kubelet":
            return self._kubelet(str(request.get("action", "")), request)
        if op == "reboot":
            instance.reboot()
            return self._status()
        if op not in NODE_OPS:
            raise ValueError(f"unknown op {op!r}; there are ping, status, kubelet, reboot, {', '.join(NODE_OPS)}")
        node = instance.node
        if node is None:
            raise ValueError("this instance has no simulated node; its devices are the machine's own")
        more: dict[str, Any] = {}
        if op == "break":
            node.break_device(_text(request, "device"))
        elif op == "heal":
            more["device"] = node.heal_device(_text(request, "device"))
        elif op == "renumber":
            moves = request.get("moves")
            if not isinstance(moves, dict) or not all(isinstance(new, str) for new in moves.values()):
                raise ValueError('"moves" must be an object of device paths: {"/dev/x5": "/dev/x4"}')
            node.renumber(moves)
        elif op == "alter":
            options = request.get("options")
            if not isinstance(node, Node) or not isinstance(options, dict):
                raise ValueError('"options" must be an object, and the node a simulated one')
            node.alter(_text(request, "plugin"), options)
        hardware = node.hardware_options() if isinstance(node, Node) else {}
        return {
            "node": node.spec.name,
            "present": node.present(),
            "absent": node.absent(),
            "hardware": hardware,
            **more,
        }

    def _kubelet(self, action: str, request: Request) -> Reply:
        if action not in KUBELET_ACTIONS:
            raise ValueError(f"unknown action {action!r}; there are {', '.join(KUBELET_ACTIONS)}")
        if not self._instance.has_kubelet:
            raise ValueError("this instance uses the machine's own kubelet")
        kubelet = self._instance.kubelet
        if action == "restart":
            kubelet.restart(downtime=float(request.get("downtime", 0.0)))
        else:
            getattr(kubelet, action)()
        return {"action": action, "pid": kubelet.pid, "alive": kubelet.alive}

    def _status(self) -> dict[str, Any]:
        instance = self._instance
        kubelet = instance.kubelet if instance.has_kubelet else None
        return {
            "name": instance.layout.name,
            "folder": instance.layout.folder,
            "config": instance.layout.config,
            "source": instance.wish.source,
            "pid": os.getpid(),
            "supervisor": instance.supervisor.pid,
            "node": instance.node.spec.name if instance.node is not None else None,
            "kubelet": None
            if kubelet is None
            else {"pid": kubelet.pid, "alive": kubelet.alive, "control": instance.layout.kubelet_control},
        }


def _text(request: Request, key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f'"{key}" is missing; give a device path such as /dev/x4')
    return value

"""Takes a capture: the node's files by a reader process, the rest from control sockets and devherd's own folders."""

from __future__ import annotations

import json
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from devherd import __version__
from devherd.audit import events_folder
from devherd.capture.archive import Capture, json_lines
from devherd.capture.reader import Entry, Order
from devherd.capture.redact import Redactor
from devherd.settings import Settings
from devherd.trail import Wanted, read_events

Json = dict[str, Any]
PATIENCE = 10.0
"""Seconds the reader may be silent; then the folder it named is what hangs."""
MOST_EVENTS = 20_000
LOG_TAIL = 256 * 1024
_SERIALS = frozenset({"serial", "serial_num", "serial_number", "unique_id", "product_serial"})


class Source:
    """Everything that goes into one capture, raw; `capture` redacts it as a whole."""

    def __init__(self, settings: Settings, config: str) -> None:
        self.settings = settings
        self.config = config
        self.entries: list[Entry] = []
        self.statuses: dict[str, Json] = {}
        self.devices: dict[str, Json] = {}
        self.kubelet: Json = {}
        self.history: list[Json] = []
        self.more: dict[str, str | Json] = {}
        """Members of a support bundle, `name -> text or document`."""
        self.problems: list[str] = []

    def read_node(self, patterns: Iterable[str] = (), patience: float = PATIENCE) -> None:
        """The node's files. One that hangs ends the reading, and is named in `problems`."""
        order = Order(self.settings.paths, tuple(sorted(self._wanted())), tuple(patterns))
        self.entries = read_entries(order, self.problems.append, patience)

    def _wanted(self) -> set[str]:
        found = set()
        for reply in self.devices.values():
            for device in reply.get("devices", ()):
                found |= {str(node.get("host_path", "")) for node in device.get("nodes", ())}
                found |= {str(path) for path in (device.get("attributes") or {}).values()}
            found |= {str(item.get("what", "")) for item in reply.get("skipped", ())}
        return {path for path in found if path.startswith("/dev/")}

    def read_logs(self) -> None:
        """The ends of devherd's log files, for a bundle."""
        for path in sorted(Path(self.settings.paths.log).glob("*.log")) + sorted(
            Path(self.settings.paths.log).glob("*.out")
        ):
            text = self._read(path, LOG_TAIL)
            if text:
                self.more[f"logs/{path.name}"] = text

    def read_state(self) -> None:
        """The files that outlive a front (ledger, health, last inventory), for a bundle."""
        for path in sorted(Path(self.settings.paths.state).glob("**/*.json")):
            name = str(path.relative_to(self.settings.paths.state))
            text = self._read(path)
            if text:
                self.more[f"state/{name}"] = text

    def _read(self, path: Path, tail: int = 8 * 1024 * 1024) -> str:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - tail))
                return file.read(tail).decode("utf-8", "replace")
        except OSError as error:
            self.problems.append(f"{path}: {error.strerror}")
            return ""

    def capture(self, redactor: Redactor) -> Capture:
        """All of it, redacted."""
        etc = self._etc()
        events = list(read_events(events_folder(self.settings.paths.log), Wanted()))[-MOST_EVENTS:]
        self._learn(redactor, etc)
        made = Capture()
        self._put_node(made, redactor)
        for name, text in etc.items():
            made.texts[name] = redactor.yaml(text) if name.endswith(".yaml") else redactor.text(text)
        documents = {"status.json": self.statuses, "devices.json": self.devices, "kubelet.json": self.kubelet}
        for name, value in documents.items():
            made.texts[name] = json.dumps(redactor.json(value), indent=1, ensure_ascii=False)
        made.texts["events.jsonl"] = json_lines(redactor.json(events))
        if self.history:
            made.texts["history.jsonl"] = json_lines(redactor.json(self.history))
        for name, more in self.more.items():
            made.texts[f"more/{name}"] = _redacted(redactor, name, more)
        made.about = {
            "devherd": __version__,
            "taken": time.time(),
            "redacted": redactor.enabled,
            "replaced": {kind: number for kind, number in sorted(redactor.counts.items()) if number},
            "kernel": platform.release(),
            "machine": platform.machine(),
            "plugins": sorted(self.statuses),
            "problems": [redactor.text(text) for text in self.problems],
        }
        return made

    def _etc(self) -> dict[str, str]:
        found = {}
        paths = [Path(self.config), *sorted((Path(self.settings.paths.etc) / "plugins.d").glob("*.yaml"))]
        for path in paths:
            text = self._read(path) if path.exists() else ""
            if text:
                found["etc/devherd.yaml" if path == paths[0] else f"etc/plugins.d/{path.name}"] = text
        return found

    def _learn(self, redactor: Redactor, etc: Mapping[str, str]) -> None:
        for text in etc.values():
            redactor.learn_yaml(text)
        redactor.learn_name(platform.node(), "node")
        redactor.learn_name(platform.node().partition(".")[0], "node")
        for entry in self.entries:
            if entry.kind == "file" and os.path.basename(entry.path) in _SERIALS:
                redactor.learn_serial(entry.text)
            if "/by-id/" in entry.path:
                redactor.learn_serial(serial_in(os.path.basename(entry.path)))
        for reply in self.devices.values():
            redactor.learn_json(reply)
            for device in reply.get("devices", ()):
                redactor.learn_owner(str(device.get("held_by") or ""))
        redactor.learn_json(self.statuses)
        redactor.learn_json({name: value for name, value in self.more.items() if not isinstance(value, str)})

    def _put_node(self, made: Capture, redactor: Redactor) -> None:
        for entry in self.entries:
            path = redactor.text(entry.path)
            if entry.kind == "file":
                made.files[path] = redactor.text(entry.text)
            elif entry.kind == "link":
                made.links[path] = redactor.text(entry.text)
            elif entry.kind == "dir":
                made.folders.add(path)
            elif entry.kind == "node":
                made.nodes[path] = entry.text


def _redacted(redactor: Redactor, name: str, value: str | Json) -> str:
    if not isinstance(value, str):
        return json.dumps(redactor.json(value), indent=1, ensure_ascii=False)
    if name.endswith(".json"):
        try:
            return json.dumps(redactor.json(json.loads(value)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return redactor.text(value)
    return redactor.text(value)


def serial_in(name: str) -> str:
    """The serial number in a by-id name as udev makes them (`usb-VENDOR_MODEL_SERIAL-if00-port0`); may be empty."""
    stem = name.partition("-if")[0].partition("-port")[0].partition("-event")[0]
    last = stem.rpartition("_")[2] if "_" in stem else ""
    return last.partition("-")[0] if any(char.isdigit() for char in last) else ""


def read_entries(order: Order, problem: Callable[[str], None], patience: float = PATIENCE) -> list[Entry]:
    """Run a reader and take what it says, until it ends or is silent for `patience` seconds."""
    command = [sys.executable, "-I", "-m", "devherd.capture.reader"]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(msgspec.json.encode(order))
    child.stdin.close()
    decoder = msgspec.json.Decoder(Entry)
    entries: list[Entry] = []
    rest, reading, complete = b"", "", False
    while select.select([child.stdout], [], [], patience)[0]:
        piece = child.stdout.read(256 * 1024)
        if not piece:
            break
        *lines, rest = (rest + piece).split(b"\n")
        for entry in map(decoder.decode, lines):
            if entry.kind == "reading":
                reading = entry.path
            elif entry.kind == "end":
                complete = True
            else:
                entries.append(entry)
        if complete:
            break
    child.stdout.close()
    if not complete:
        # A process that the kernel holds is not waited for.
        gone = child.poll() is not None
        child.kill()
        problem(
            f"reading the node's files stopped at {reading or '/dev'}: "
            + ("the reader ended" if gone else f"no answer for {patience:g} s")
        )
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        problem(f"the reader (pid {child.pid}) hangs in the kernel")
    return entries

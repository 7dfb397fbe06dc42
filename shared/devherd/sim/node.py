"""A node's files: /dev, /sys, /proc and /etc below a folder of an ordinary user, and what can happen to them.

Device nodes are plain files; their numbers are in an rdev table. A *slot* is a number the kernel gave out
(`/dev/x4`); a device is the hardware in it, known by its sysfs folder. Lose one device and boot again, and the
others move down a slot, which is how a replayed answer comes to mean other hardware.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from devherd.sim.files import NodeFiles
from devherd.sim.hardware import Hardware, HardwareError, Planted
from devherd.sim.nodespec import Devices, NodeSpec, fill
from devherd.sim.places import NodeRoot

_STATE = ".node.json"
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


class NodeError(Exception):
    """The node cannot do that; the text says why."""


def no_device(path: str, there: Sequence[str], kind: str = "") -> str:
    """Why a path is not taken, with what could be: a long list says how much of it is not shown."""
    more = f" and {len(there) - 8} more" if len(there) > 8 else ""
    return f"there is no {kind}device {path}; there are: {', '.join(there[:8]) or 'none'}{more}"


def _planted(files: NodeFiles, hardware: tuple[Hardware, ...]) -> Planted:
    try:
        return Planted(files, hardware)
    except HardwareError as error:
        raise NodeError(str(error)) from None


class Placed(Struct):
    """One device: the group it is of, its index there, the slot it has now, and whether it is there."""

    group: int
    index: int
    slot: int
    present: bool = True


class _State(Struct):
    spec: NodeSpec
    devices: list[Placed]
    hardware: tuple[Hardware, ...] = ()


class Node:
    """Build one with `build`, or `open` one that exists; every change is on disk when the call returns."""

    def __init__(self, root: str, state: _State) -> None:
        self.root = root
        self._files = NodeFiles(root)
        self._state = state
        self._planted = _planted(self._files, state.hardware)

    @classmethod
    def build(cls, spec: NodeSpec, root: str) -> Node:
        """Create the files below an empty or missing folder."""
        devices = [Placed(g, i, i) for g, group in enumerate(spec.devices) for i in range(group.count)]
        node = cls(root, _State(spec, devices, spec.hardware))
        for folder in ("dev", "sys/dev/char", "sys/dev/block", "sys/class", "sys/bus/pci/devices", "proc", "etc"):
            os.makedirs(os.path.join(root, folder), exist_ok=True)
        node._files.write("/etc/machine-id", spec.machine_id + "\n")
        node._files.new_boot_id()
        node._write_table()
        node._planted.plant()
        for device in devices:
            node._appear(device)
        node._save()
        return node

    @classmethod
    def open(cls, root: str) -> Node:
        """Take over a node that was built earlier. Raises NodeError when there is none."""
        try:
            with open(os.path.join(root, _STATE), "rb") as file:
                return cls(root, msgspec.json.decode(file.read(), type=_State))
        except FileNotFoundError as error:
            raise NodeError(f"there is no simulated node in {root}") from error

    # Where things are

    @property
    def spec(self) -> NodeSpec:
        """What it was built from."""
        return self._state.spec

    @property
    def rdev_table(self) -> str:
        """The file with device numbers, for `paths.rdev_table`."""
        return self._files.rdev_table

    @property
    def places(self) -> NodeRoot:
        """For the simulated kubelet's container runtime."""
        return NodeRoot(self.root, os.path.join(self.root, "dev"), os.path.join(self.root, "sys"), self.rdev_table)

    def paths(self) -> dict[str, str]:
        """The part of the settings' `paths` that points into this node."""
        return self._files.paths()

    def present(self) -> list[str]:
        """Device nodes that are there, as logical paths."""
        return [self._group(d).node_path(d.slot) for d in self._state.devices if d.present]

    def absent(self) -> list[str]:
        """Device nodes whose device is broken."""
        return [self._group(d).node_path(d.slot) for d in self._state.devices if not d.present]

    def thing(self, path: str) -> str:
        """The hardware behind a device node that is there: `sys:/devices/...`."""
        device = self._at(path, present=True)
        group = self._group(device)
        if group.bare:
            return f"{group.kind}:{group.major}:{group.minor + device.slot}"
        return "sys:" + self._group(device).sysfs(device.index, device.slot)

    def hardware(self, path: str) -> str:
        """The sysfs folder of the hardware behind a device node; stays the same when its number moves."""
        device = self._at(path, present=True)
        return self._group(device).hardware(device.index)

    # What happens

    def break_device(self, path: str) -> None:
        """The device falls off the bus: node, links and sysfs folder vanish."""
        device = self._at(path, present=True)
        self._vanish(device)
        device.present = False
        self._write_table()
        self._save()

    def heal_device(self, path: str) -> str:
        """A broken device comes back, in the slot it had; where that was given away, in the lowest free one.

        Returns the path it has now.
        """
        device = self._at(path, present=False)
        if path in self.present():
            taken = {d.slot for d in self._state.devices if d.present and d.group == device.group}
            device.slot = next(slot for slot in range(self._group(device).count) if slot not in taken)
        device.present = True
        self._write_table()
        self._appear(device)
        self._save()
        return self._group(device).node_path(device.slot)

    def renumber(self, moves: dict[str, str]) -> None:
        """Devices change slots, all at once: `{"/dev/x5": "/dev/x4"}` makes x4 what was x5. Swaps are fine."""
        moving = [(self._at(old, present=True), new) for old, new in moves.items()]
        targets = [(device, self._slot(device, new)) for device, new in moving]
        taken = {(d.group, d.slot) for d in self._state.devices if d.present} - {(d.group, d.slot) for d, _ in moving}
        for device, slot in targets:
            if (device.group, slot) in taken:
                raise NodeError(f"{self._group(device).node_path(slot)} is in use; break or move its device as well")
            taken.add((device.group, slot))
        for device, _ in targets:
            self._vanish(device)
        for device, slot in targets:
            device.slot = slot
        self._write_table()
        for device, _ in targets:
            self._appear(device)
        self._save()

    def alter(self, plugin: str, changes: dict[str, Any]) -> None:
        """Change what a plugin simulates: another state, another number, a fault. Raises NodeError."""
        try:
            self._planted.alter(plugin, changes)
        except HardwareError as error:
            raise NodeError(str(error)) from None
        self._state.hardware = self._planted.hardware
        self._write_table()
        self._save()

    def hardware_options(self) -> dict[str, dict[str, Any]]:
        """Plugin -> the options of what it simulates here, as they are now."""
        return {each.plugin: each.options for each in self._state.hardware}

    def reboot(self, *, compact: bool = True) -> None:
        """A new boot id; with `compact` the kernel numbers what it finds from 0, so devices after a lost one move."""
        for group in range(len(self.spec.devices)) if compact else ():
            found = [d for d in self._state.devices if d.group == group and d.present]
            node_path = self.spec.devices[group].node_path
            moves = {node_path(d.slot): node_path(n) for n, d in enumerate(found) if d.slot != n}
            if moves:
                self.renumber(moves)
        self._files.new_boot_id()

    @property
    def boot_id(self) -> str:
        """This boot's id."""
        return self._files.boot_id

    # Devices and slots

    def _group(self, device: Placed) -> Devices:
        return self.spec.devices[device.group]

    def _at(self, path: str, *, present: bool) -> Placed:
        for device in self._state.devices:
            if device.present == present and self._group(device).node_path(device.slot) == path:
                return device
        there = self.present() if present else self.absent()
        raise NodeError(no_device(path, there, "" if present else "broken "))

    def _slot(self, device: Placed, path: str) -> int:
        group = self._group(device)
        for slot in range(group.count):
            if group.node_path(slot) == path:
                return slot
        raise NodeError(f"{path} is no name a device of {group.path} can have")

    # Files

    def _appear(self, device: Placed) -> None:
        """As the kernel and udev do it: sysfs, then the node, then links."""
        group = self._group(device)
        path = group.node_path(device.slot)
        if not group.bare:
            self._appear_sysfs(group, device)
        self._files.write(path, "")
        for link in group.links:
            self._files.link(fill(link, device.index), path)

    def _appear_sysfs(self, group: Devices, device: Placed) -> None:
        self._appear_hardware(group, device.index)
        path, sysfs = group.node_path(device.slot), group.sysfs(device.index, device.slot)
        minor = group.minor + device.slot
        self._files.write(f"/sys{sysfs}/uevent", f"MAJOR={group.major}\nMINOR={minor}\nDEVNAME={path[5:]}\n")
        self._files.write(f"/sys{sysfs}/dev", f"{group.major}:{minor}\n")
        self._files.link(f"/sys{sysfs}/subsystem", f"/sys/class/{group.subsystem}")
        if group.parent:
            self._files.link(f"/sys{sysfs}/device", f"/sys{group.hardware(device.index)}")
        self._files.link(f"/sys/class/{group.subsystem}/{os.path.basename(path)}", f"/sys{sysfs}")
        self._files.link(f"/sys/dev/{'char' if group.kind == 'c' else 'block'}/{group.major}:{minor}", f"/sys{sysfs}")

    def _appear_hardware(self, group: Devices, index: int) -> None:
        folder = group.hardware(index)
        if not group.parent:
            return
        files = {name: fill(text, index) for name, text in group.files.items()}
        if group.numa:
            files["numa_node"] = str(group.numa[index % len(group.numa)])
        for name, text in files.items():
            self._files.write(f"/sys{folder}/{name}", text + "\n")
        address = os.path.basename(folder)
        if _PCI.fullmatch(address):
            self._files.write(f"/sys{folder}/uevent", f"PCI_SLOT_NAME={address}\n")
            self._files.link(f"/sys{folder}/subsystem", "/sys/bus/pci")
            self._files.link(f"/sys/bus/pci/devices/{address}", f"/sys{folder}")
        if group.driver:
            self._files.folder(f"/sys/bus/pci/drivers/{group.driver}")
            self._files.link(f"/sys{folder}/driver", f"/sys/bus/pci/drivers/{group.driver}")

    def _vanish(self, device: Placed) -> None:
        group = self._group(device)
        path, sysfs = group.node_path(device.slot), group.sysfs(device.index, device.slot)
        number = f"{group.major}:{group.minor + device.slot}"
        gone = [fill(link, device.index) for link in group.links] + [path]
        gone.append(f"/sys/dev/{'char' if group.kind == 'c' else 'block'}/{number}")
        gone.append(f"/sys/class/{group.subsystem}/{os.path.basename(path)}")
        folder = group.hardware(device.index)
        if group.parent and _PCI.fullmatch(os.path.basename(folder)):
            gone.append(f"/sys/bus/pci/devices/{os.path.basename(folder)}")
        for logical in gone:
            self._files.remove(logical)
        shutil.rmtree(self._files.real("/sys" + (folder if group.parent else sysfs)), ignore_errors=True)

    def _write_table(self) -> None:
        rows = []
        for device in self._state.devices:
            if device.present:
                group = self._group(device)
                rows.append(f"{group.node_path(device.slot)} {group.kind} {group.major} {group.minor + device.slot}")
        self._files.write_rdev_table([*rows, *self._planted.rows()])

    def _save(self) -> None:
        path = os.path.join(self.root, _STATE)
        with open(path + ".new", "wb") as file:
            file.write(msgspec.json.encode(self._state))
        os.replace(path + ".new", path)

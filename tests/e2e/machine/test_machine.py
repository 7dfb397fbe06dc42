"""A whole machine: what only a real boot, a real systemd and a real power cut can show."""

from __future__ import annotations

import json
import os
import random
import time

import pytest

from e2e.machine.node import Node, wrong

pytestmark = pytest.mark.timeout(7200)

BOOTS = int(os.environ.get("DEVHERD_E2E_BOOTS", "20"))
CUTS = 5
"""Power cuts while state is being written."""
_SUPERVISOR = "cat /run/devherd/supervisord.pid"
_LEFT = "cat /sys/fs/cgroup/system.slice/devherd.service/cgroup.procs 2>/dev/null | wc -l"


def test_first_boot_on_an_empty_disk(node: Node) -> None:
    """No kubelet folder, no state, no machine id: everything comes in one go, and no pod starts without its device."""
    seconds = node.machine.boot()
    report = node.settled()
    assert not wrong(report)
    assert set(report["state"].values()) <= {"ok"}, report["state"]
    version = node.machine.text("systemctl", "--version").splitlines()[0]
    assert node.machine.text("stat", "-fc", "%T", "/sys/fs/cgroup").strip() == "cgroup2fs"
    assert node.machine.text("cat", "/proc/1/comm").strip() == "systemd"
    print(f"\nfirst boot: agent after {seconds:.0f} s; {version}; kernel {node.machine.text('uname', '-r').strip()}")


def test_the_unit_is_ready_before_the_kubelet_starts(node: Node) -> None:
    show = ["systemctl", "show", "--value", "-p"]
    ready = int(node.machine.text(*show, "ActiveEnterTimestampMonotonic", "devherd"))
    kubelet = int(node.machine.text(*show, "ExecMainStartTimestampMonotonic", "kubelet"))
    assert 0 < ready < kubelet
    assert node.machine.text("stat", "-c", "%a", "/var/lib/kubelet/device-plugins").strip() == "750"


def test_cold_boots(node: Node) -> None:
    """Shut down or cut off, by turns. No pod is lost, none runs without its device or with another's."""
    faults = []
    for n in range(BOOTS):
        if n % 2:
            node.machine.shut_down()
        else:
            node.machine.cut()
        seconds = node.machine.boot()
        found = wrong(node.settled())
        faults += [f"boot {n}: {one}" for one in found]
        print(f"boot {n}: agent after {seconds:.0f} s; {found or 'no pod lost, no wrong device'}", flush=True)
    assert not faults


def test_power_cut_while_state_is_written(node: Node) -> None:
    """Each file is whole, or set aside with a word about it; the pods come back with their devices."""
    dice = random.Random(4)
    for n in range(CUTS):
        node.machine.start("/usr/bin/python3", "/usr/lib/machine/churn.py")
        node.machine.wait(lambda: "inventory" in " ".join(node.machine.report()["state"]), 60, "state is written")
        time.sleep(dice.uniform(1, 4) * node.machine.patience / 2)
        node.machine.cut()
        node.machine.boot()
        report = node.settled()
        assert not wrong(report)
        damaged = {name for name, verdict in report["state"].items() if verdict != "ok"}
        unexplained = {name for name in damaged if not name.endswith(".bad") or name[:-4] not in node.words()}
        print(f"cut {n}: {len(report['state'])} files, damaged: {sorted(damaged) or 'none'}", flush=True)
        assert not unexplained


@pytest.mark.parametrize(
    ("driver", "properties", "place", "resource", "count"),
    [
        ("virtserialport", {"bus": "bus.0", "chardev": "card1", "name": "org.devherd.card1"},
         "/dev/virtio-ports/org.devherd.card1", "port", 2),
        ("i6300esb", {}, "/dev/watchdog0", "watchdog", 1),
    ],
)  # fmt: skip
def test_hot_plug(node: Node, driver: str, properties: dict[str, str], place: str, resource: str, count: int) -> None:
    """A port, and a PCI card whose module udev loads: the plugin has it within a second of its node; so it goes."""
    waiting = _measure(node, place, resource, count)
    node.machine.plug(driver, "hot", **properties)
    came = json.loads(node.machine.finish(waiting))["seconds"]
    waiting = _measure(node, f"gone:{place}", resource, count - 1)
    node.machine.unplug("hot")
    went = json.loads(node.machine.finish(waiting))["seconds"]
    print(f"{driver}: came after {came * 1000:.0f} ms, went after {went * 1000:.0f} ms", flush=True)
    limit = 1.0 if node.machine.patience == 1 else 5.0  # An emulated processor is ten to fifty times slower.
    assert came <= limit
    assert went <= limit


def test_restart_and_stop(node: Node) -> None:
    """Pods run on with their devices; a stop leaves no process; a start has everything back."""
    before = node.settled()
    node.machine.text("systemctl", "restart", "devherd")
    after = node.registered()
    assert _pids(after) == _pids(before)
    assert not wrong(after)
    node.machine.text("systemctl", "stop", "devherd")
    assert node.machine.run("sh", "-c", _LEFT).out.strip() == "0"
    assert "Failed" not in node.machine.text("systemctl", "show", "-p", "Result", "devherd")
    node.machine.text("systemctl", "start", "devherd")
    assert _pids(node.registered()) == _pids(before)


def test_supervisord_is_killed(node: Node) -> None:
    """systemd ends what it left (KillMode=mixed) and starts it anew: one front, not two, and every resource back."""
    before = node.settled()
    old = node.machine.text("sh", "-c", _SUPERVISOR).strip()
    node.machine.text("kill", "-KILL", old)
    node.machine.wait(
        lambda: node.machine.run("sh", "-c", _SUPERVISOR).out.strip() not in ("", old), 60, "a new supervisord"
    )
    after = node.registered()
    assert after["front"] != before["front"]
    assert _pids(after) == _pids(before)
    fronts = node.machine.text("sh", "-c", "pgrep -fc '[d]evherd.front --plugin generic'").strip()
    assert fronts == "1"


def test_watcher_hangs(node: Node) -> None:
    """systemd's watchdog: a suite that says nothing any more is started anew, and pods do not notice."""
    node.machine.write("/run/systemd/system/devherd.service.d/quick.conf", "[Service]\nWatchdogSec=30\n")
    node.machine.text("systemctl", "daemon-reload")
    node.machine.text("systemctl", "restart", "devherd")
    before = node.registered()
    old = node.machine.text("sh", "-c", _SUPERVISOR).strip()
    watcher = node.machine.text("sh", "-c", "pgrep -f '[d]evherd_watcher --config'").split()[0]
    node.machine.text("kill", "-STOP", watcher)
    node.machine.wait(
        lambda: node.machine.run("sh", "-c", _SUPERVISOR).out.strip() not in ("", old), 180, "a new supervisord"
    )
    after = node.registered()
    assert _pids(after) == _pids(before)
    assert "atchdog" in node.machine.text("journalctl", "-b", "-u", "devherd", "--no-pager")


def test_out_of_memory(node: Node) -> None:
    """The kernel shoots one process of the unit: the unit goes on (OOMPolicy), and supervisord replaces it."""
    before = node.settled()
    main = node.machine.text("systemctl", "show", "--value", "-p", "MainPID", "devherd").strip()
    group = "/sys/fs/cgroup/system.slice/devherd.service"
    kills = f"grep '^oom_kill ' {group}/memory.events"
    node.machine.text("sh", "-c", f"echo $(($(cat {group}/memory.current) / 3)) >{group}/memory.max")
    try:
        node.machine.wait(lambda: node.machine.text("sh", "-c", kills).split()[1] != "0", 60, "the kernel shot one")
    finally:
        node.machine.text("sh", "-c", f"echo max >{group}/memory.max")
    after = node.registered()
    assert _pids(after) == _pids(before)
    assert node.machine.text("systemctl", "show", "--value", "-p", "MainPID", "devherd").strip() == main


def _measure(node: Node, place: str, resource: str, count: int) -> int:
    """Begin to measure; returns the command's number once it looks."""
    ready = "/run/hotplug.ready"
    node.machine.text("rm", "-f", ready)
    script = ("/usr/lib/devherd/bin/python", "-I", "/usr/lib/machine/hotplug.py")
    waiting = node.machine.begin(*script, place, f"example.com/{resource}", str(count))
    node.machine.wait(lambda: node.machine.run("test", "-e", ready).rc == 0, 60, "somebody looks")
    return waiting


def _pids(report: dict[str, object]) -> dict[str, object]:
    pods = report["pods"]
    assert isinstance(pods, dict)
    return {name: pod["pids"] for name, pod in pods.items()}

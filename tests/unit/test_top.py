"""`devherd top`: what is on the screen, what comes first, which keys do what."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_stub import Stub, device_of, front, resource_of, status_of, stub
from devherd.audit import EventFile
from devherd.cli.asking import Answers, Down
from devherd.cli.judge import findings
from devherd.cli.keys import Keys
from devherd.cli.main import main
from devherd.cli.top import Picture, TopFeed
from devherd.cli.topview import TopView, by_urgency
from devherd.cli.usage import Usage
from rich.console import Console

Json = dict[str, Any]
FUSE = "devherd.io/fuse"


def picture(devices: list[Json], *down: Down, **more: Any) -> Picture:
    resource = resource_of(FUSE, devices=len(devices), healthy=sum(item["healthy"] for item in devices))
    answers = Answers((status_of("generic", resource),), down)
    return Picture(1_790_000_120.0, answers, by_urgency(devices), findings(answers), **more)


def drawn(view: TopView, shown: Picture, height: int | None, width: int = 160) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, height=height, emoji=False, highlight=False).print(
        view.render(shown, height, width if height is not None else None)
    )
    return stream.getvalue().splitlines()


def devices(count: int) -> list[Json]:
    return [device_of(FUSE, f"id-{number:05}") for number in range(count)]


def event(kind: str, **fields: Any) -> Json:
    return {"time": 1_790_000_000.0, "program": "generic", "kind": kind, **fields}


def test_sick_devices_come_first_then_held_ones() -> None:
    found = devices(4)
    found[2] |= {"held_by": "default/train/main"}
    found[3] |= {"healthy": False, "reason": "the link is down", "kind": "link"}
    lines = [line for line in drawn(TopView("x"), picture(found), None) if line.startswith(FUSE) and "id-" in line]
    assert [line.split()[1] for line in lines] == ["id-00003", "id-00002", "id-00000", "id-00001"]
    assert "the link is down" in lines[0]
    assert "default/train/main" in lines[1]


def test_on_eighty_columns_every_row_is_one_line_and_the_sick_device_shows_its_reason() -> None:
    found = devices(3)
    found[1] |= {"held_by": "default/train-with-a-long-name/main"}
    found[2] |= {"healthy": False, "reason": "gone: /dev/accel/accel3 is gone", "kind": "gone"}
    lines = drawn(TopView("x"), picture(found), 24, width=80)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("RESOURCE") and "A CONTAINER GETS" in line for line in lines)
    assert any("id-00002" in line and "/dev/accel/accel3 is gone" in line for line in lines)


@pytest.mark.parametrize("height", [12, 24, 50])
def test_ten_thousand_devices_fit_on_any_screen(height: int) -> None:
    shown = picture(devices(10_000), events=[event("registered", resource=FUSE, ms=3.2)] * 50)
    began = time.monotonic()
    lines = drawn(TopView("x"), shown, height)
    assert time.monotonic() - began < 1
    assert any(line.startswith("10,000 devices, 0 unhealthy") for line in lines)
    if height > 12:
        assert len(lines) <= height
        assert any("1 to " in line for line in lines)


def test_keys_move_choose_and_leave() -> None:
    view, found = TopView("x"), devices(100)
    found[50] |= {"healthy": False, "reason": "gone"}
    shown = picture(found)
    view.press("page down")
    view.press("down")
    assert "22 to " in "\n".join(drawn(view, shown, 30))
    view.press("home")
    assert "1 to " in "\n".join(drawn(view, shown, 30))
    for _ in range(99):
        view.press("page down")
    assert "to 100 are shown" in "\n".join(drawn(view, shown, 30))
    view.press("u")
    lines = [line for line in drawn(view, shown, 30) if "id-" in line]
    assert [line.split()[1] for line in lines] == ["id-00050"]
    assert view.press("x")
    assert not view.press("q")


def test_a_silent_plugin_and_the_age_of_a_registration_are_shown() -> None:
    text = "\n".join(drawn(TopView("x"), picture(devices(1), Down("gpu", "no answer within 2 s")), None))
    assert re.search(r"gpu +down .*no answer within 2 s", text)
    assert re.search(rf"{FUSE} +registered +1 +1 +1 +2 min ago", text)


def test_events_of_today_are_shown_and_new_ones_follow(tmp_path: Path) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), devices(2)))
        with made.config.open("a") as file:
            file.write(f"  log: {made.folder}\n")
        trail = EventFile(str(made.folder / "events"), "generic")
        trail.append("registered", time.time() - 90_000, {"resource": "yesterday"})
        trail.write("registered", resource=FUSE, ms=3.2)
        from devherd.cli.place import find

        feed = TopFeed(find(str(made.config), None))
        first = feed.poll()
        assert [item["resource"] for item in first.events] == [FUSE]
        trail.write("verdict", resource=FUSE, id="id-1", healthy=False, reason="the link is down")
        assert [item["kind"] for item in feed.poll().events] == ["registered", "verdict"]
        assert len(first.devices) == 2


def test_once_is_a_document_or_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), devices(2)))
        assert main(["top", "--once", "--json", "--config", str(made.config)]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (len(document["devices"]), document["findings"], document["down"]) == (2, [], [])
        assert main(["top", "--config", str(made.config)]) == 0
        assert "id-00001" in capsys.readouterr().out


def test_nothing_running_is_said_and_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        assert main(["top", "--once", "--config", str(made.config)]) == 3
    assert "no plugin answers" in capsys.readouterr().out


def test_use_of_a_process_is_seen_from_the_second_look_on() -> None:
    usage = Usage()
    assert usage.look([os.getpid()])[os.getpid()].cpu is None
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    use = usage.look([os.getpid(), 2**22 + 1])
    assert list(use) == [os.getpid()]
    cpu = use[os.getpid()].cpu
    assert cpu is not None
    assert cpu > 0.05
    assert use[os.getpid()].memory > 1024 * 1024


def test_without_a_terminal_there_are_no_keys() -> None:
    assert Keys().wait(0.01) == ""


def screen(made: Stub, keys: bytes) -> tuple[int, str]:
    """Run top on a terminal of its own, press keys once something is drawn; exit code and all it wrote."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "LINES": "40", "COLUMNS": "150"}
    command = [sys.executable, "-m", "devherd.cli.main", "top", "--interval", "0.2", "--config", str(made.config)]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        written, deadline, pressed = b"", time.monotonic() + 30, False
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    written += os.read(master, 65536)
                except OSError:
                    break
            if not pressed and b"2 devices" in written:
                os.write(master, keys)
                pressed = True
        return process.wait(10), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode(errors="replace"))
    finally:
        os.close(master)
        process.kill()
        process.wait()


def test_on_a_terminal_it_is_live_and_q_ends_it() -> None:
    with stub() as made:
        found = devices(2)
        found[0] |= {"healthy": False, "reason": "the link is down"}
        made.serve("generic", front(status_of("generic", resource_of(FUSE, healthy=1)), found))
        code, text = screen(made, b"uq")
    assert code == 0
    assert "the link is down" in text
    assert text.count("devherd top") >= 2

"""Programs that fail, hang, crash again and again, wait for hardware, or were stopped on purpose."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from devherd.process import read_stat
from support.watchsite import WatchSite


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.state == "Z"


def test_a_front_that_hangs_is_restarted_and_the_others_are_not() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        site.start_kubelet()
        hung = site.pids()["one"]
        os.kill(hung, signal.SIGSTOP)
        site.until(lambda: site.trail("restart", name="one", pid=hung), what="its restart")
        # SIGTERM does not reach what is stopped; the watcher does not give up there.
        site.until(lambda: gone(hung), 30)
        site.until(lambda: site.pids().get("one", hung) != hung)
        assert "no answer" in site.trail("restart", name="one")[0]["reason"]
        assert site.count("two") == 1
        site.until(lambda: not site.watcher()["problems"])


def test_a_single_front_that_does_not_answer_is_restarted_too() -> None:
    with WatchSite("one") as site:
        site.start()
        mute = site.pids()["one"]
        site.mode("one", f"mute {mute}")
        site.until(lambda: site.pids().get("one", mute) != mute)
        assert site.count("one") == 2


def test_if_everything_looks_dead_it_reports_and_restarts_nothing() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        for name in site.names:
            site.mode(name, "mute")
        site.until(lambda: "none of the 2 fronts answers" in " ".join(site.watcher()["problems"]))
        time.sleep(1.0)
        assert (site.count("one"), site.count("two")) == (1, 1)
        for name in site.names:
            site.mode(name, "")
        site.until(lambda: site.watcher()["problems"] == [])
        assert (site.count("one"), site.count("two")) == (1, 1)
        for kind in ("heartbeat-stopped", "heartbeat-back"):
            site.until(lambda: {row["what"] for row in site.trail(kind)} == {"front one", "front two"})  # noqa: B023


def test_a_killed_front_is_back_sooner_than_supervisord_looks() -> None:
    with WatchSite("one") as site:
        site.start()
        site.until(lambda: site.supervised("one").get("state") == "running")
        took = []
        for _ in range(2):
            old = site.pids()["one"]
            began = time.monotonic()
            os.kill(old, signal.SIGKILL)
            site.until(lambda: site.pids().get("one", old) != old)  # noqa: B023 (used at once)
            took.append(site.events("one", "start")[-1][3] - began)
            site.until(lambda: site.supervised("one").get("state") == "running")
        assert min(took) < 0.6, took


def test_a_program_that_supervisord_gave_up_is_started_again_ever_more_slowly() -> None:
    with WatchSite("one", "two", retries=1) as site:
        site.mode("one", "fail")
        site.supervisor.start()
        site.until(lambda: len(site.trail("program-failed", name="one")) >= 3, 40)
        pauses = [row["retry_seconds"] for row in site.trail("program-failed", name="one")]
        assert pauses[:3] == [0.5, 1.0, 2.0]
        site.mode("one", "")
        site.until(lambda: "one" in site.pids())
        site.until(lambda: site.supervised("one").get("state") == "running")
        assert site.count("two") == 1


def test_a_crash_loop_is_slowed_down_and_whoever_stops_it_starts_at_once() -> None:
    """supervisord itself has no pause for a program that ends after it was RUNNING."""
    with WatchSite("one", "two", hold_first=3.0, hold_max=300.0) as site:
        site.start()
        site.mode("one", "crash")
        site.until(lambda: any(row["hold_seconds"] for row in site.trail("program-ended", name="one")), 30)
        crashes = site.count("one", "crash")
        assert crashes == 3
        held = site.until(lambda: site.supervised("one").get("held_seconds"))
        assert 0 < held <= 3.0
        # The launcher waits in the program's place, and says so.
        log = Path(site.layout.log, "one.log")
        site.until(lambda: "is held back" in log.read_text())
        assert site.running("one") == []
        site.until(
            lambda: len([row for row in site.trail("program-ended", name="one") if row["hold_seconds"]]) == 2, 30
        )
        assert site.trail("program-ended", name="one")[-1]["hold_seconds"] == 6.0
        site.mode("one", "")
        before = time.monotonic()
        site.ctl("restart", "one")
        site.until(lambda: site.running("one"))
        assert time.monotonic() - before < 5.0, "an operator's start does not wait"
        assert site.count("two") == 1


def test_a_hold_ends_by_itself_when_the_watcher_is_gone() -> None:
    with WatchSite("one", hold_first=2.0) as site:
        site.start()
        site.mode("one", "crash")
        site.until(lambda: site.supervised("one").get("held_seconds"), 30)
        site.mode("one", "")
        starts = site.count("one")
        site.ctl("stop", "watcher")
        site.until(lambda: site.count("one") == starts + 1)


@pytest.mark.parametrize("change", ["plugins.d/one.yaml", "devherd.yaml"])
def test_a_dormant_program_wakes_when_its_configuration_changes(change: str) -> None:
    with WatchSite("one", "two") as site:
        site.start()
        site.mode("one", "absent")
        site.until(lambda: site.supervised("one").get("dormant"))
        time.sleep(0.5)
        assert site.count("one") == 1
        site.mode("one", "")
        with open(site.layout.at("etc", change), "a") as file:
            file.write("\n# changed\n")
        site.until(lambda: site.count("one") == 2, what="waking")
        site.until(lambda: site.trail("restart", name="one", reason="its configuration changed"))
        assert site.count("two") == 1


def test_a_watcher_that_comes_back_knows_who_is_dormant_and_what_changed_meanwhile() -> None:
    with WatchSite("one") as site:
        site.start()
        site.mode("one", "absent")
        site.until(lambda: site.supervised("one").get("dormant"))
        site.until(lambda: "dormant" in Path(site.layout.state, "watcher.json").read_text())
        site.until(lambda: site.trail("dormant"))
        site.ctl("stop", "watcher")
        Path(site.layout.at("etc", "plugins.d", "one.yaml")).write_text("{}\n")
        site.mode("one", "")
        assert site.count("one") == 1
        site.ctl("start", "watcher")
        site.until(lambda: site.count("one") == 2)


def test_what_an_operator_stopped_stays_stopped_when_supervisord_starts_anew() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        site.ctl("stop", "one")
        site.until(lambda: site.supervised("one").get("stopped_by") == "operator")
        site.until(lambda: '"one"' in Path(site.layout.state, "watcher.json").read_text())
        for twos, how in ((2, signal.SIGTERM), (3, signal.SIGKILL)):
            if how is signal.SIGTERM:
                site.supervisor.stop()
            else:
                os.kill(site.supervisor.pid or 0, how)
            site.supervisor.start()
            site.until(lambda: site.count("two") == twos)  # noqa: B023 (used at once)
            site.until(lambda: site.ctl("status", "one").split()[1:2] == ["STOPPED"])
            assert site.count("one") == 1, "it did not even start"
        began = time.monotonic()
        site.ctl("start", "one")
        site.until(lambda: site.count("one") == 2)
        assert time.monotonic() - began < 5.0
        site.until(lambda: '"one"' not in Path(site.layout.state, "watcher.json").read_text())
        site.supervisor.stop()
        site.supervisor.start()
        site.until(lambda: site.count("one") == 3, what="it was started on purpose, so it starts again")


def test_a_stopped_program_starts_in_the_end_if_no_watcher_is_there_to_say_no() -> None:
    with WatchSite("one") as site:
        site.start()
        site.ctl("stop", "one")
        hold = Path(site.layout.run, "one.hold")
        site.until(hold.exists)
        site.supervisor.stop()
        watcher = Path(site.layout.at("etc", "supervisord.d", "watcher.conf"))
        watcher.write_text(watcher.read_text().replace("-m devherd_watcher", "-m devherd_nobody"))
        with pytest.raises(Exception, match="ready"):
            site.supervisor.start(timeout=2)
        site.until(lambda: site.count("one") == 2, 25)


def test_a_watcher_that_crashes_again_and_again_only_signals() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        for _ in range(6):
            old = site.watcher()["pid"]
            os.kill(old, signal.SIGKILL)
            site.until(lambda: site.watcher()["pid"] != old)  # noqa: B023 (used at once)
            time.sleep(1.2)
        assert site.watcher()["escalation"].startswith("off: the watcher started")
        site.mode("one", "mute")
        before = site.count("two", "SIGUSR1")
        site.start_kubelet()
        site.until(lambda: site.count("two", "SIGUSR1") > before)
        time.sleep(3.0)
        assert site.count("one") == 1

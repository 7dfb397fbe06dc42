"""After a kubelet change the watcher makes sure that every front is registered, and knows when to leave it alone."""

from __future__ import annotations

import os
import time

from support.watchsite import WatchSite


def test_registrations_are_confirmed_and_written_down() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        pid = site.start_kubelet()
        site.until(lambda: site.registration().get("state") == "confirmed")
        status = site.registration()
        assert status["pid"] == pid
        assert status["fronts"] == {name: {"registered": True, "why": ""} for name in ("one", "two")}
        site.until(lambda: site.trail("registrations-confirmed", pid=pid))
        up = site.trail("kubelet-up")
        assert [row["pid"] for row in up] == [pid]
        site.end_kubelet()
        site.until(lambda: site.trail("kubelet-down", pid=pid))
        site.until(lambda: not site.registration())
        assert (site.count("one"), site.count("two")) == (1, 1)


def test_a_front_that_missed_the_kubelet_is_signalled_again_then_restarted() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        blind = site.pids()["one"]
        site.mode("one", f"blind {blind}")
        site.start_kubelet()
        site.until(lambda: site.count("one", "SIGUSR1") >= 3, what="signalled again")
        assert site.count("two", "SIGUSR1") == 1, "who is registered is left alone"
        site.until(lambda: site.registration().get("state") == "confirmed", what="a new front heals it")
        assert site.pids()["one"] != blind
        assert site.count("two") == 1
        restarted = site.until(lambda: site.trail("restart", name="one"))
        assert restarted[0]["by"] == "watcher"
        assert "not noticed the kubelet" in restarted[0]["reason"]


def test_a_restart_that_does_not_help_is_not_repeated_but_reported() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        site.mode("one", "blind")
        site.start_kubelet()
        site.until(lambda: site.count("one") == 2, what="restarted once")
        site.until(lambda: "restarted for this already" in " ".join(site.watcher()["problems"]), 30)
        assert site.registration().get("state") == "unconfirmed"
        assert (site.count("one"), site.count("two")) == (2, 1)


def test_nothing_restarts_when_no_front_is_registered() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        for name in site.names:
            site.mode(name, "blind")
        site.start_kubelet()
        site.until(lambda: "no front is registered" in " ".join(site.watcher()["problems"]))
        time.sleep(1.0)
        assert (site.count("one"), site.count("two")) == (1, 1)
        for name in site.names:
            site.mode(name, "")
        site.until(lambda: site.registration().get("state") == "confirmed", what="what is reported stays true")
        assert site.watcher()["problems"] == []


def test_nothing_restarts_because_the_kubelet_is_sick() -> None:
    """One front only, which sees the kubelet and gets nothing from it: nobody proves that the kubelet works."""
    with WatchSite("one") as site:
        site.start()
        site.mode("one", "late")
        site.start_kubelet()
        site.until(lambda: "no other front proves" in " ".join(site.watcher()["problems"]))
        site.start_kubelet()
        site.until(lambda: site.registration().get("looks", 0) >= 5)
        assert site.count("one") == 1


def test_a_frozen_kubelet_costs_no_front() -> None:
    """It took a connection once, so it is known, and takes none when the fronts look unregistered."""
    with WatchSite("one", "two") as site:
        site.start()
        pid = site.start_kubelet(backlog=0)
        site.until(lambda: site.watcher()["kubelet"]["pid"] == pid)
        site.until(lambda: site.registration().get("looks", 0) >= 5)
        assert (site.count("one"), site.count("two")) == (1, 1)


def test_one_that_is_late_is_restarted_only_where_another_proves_that_the_kubelet_works() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        site.mode("one", f"late {site.pids()['one']}")
        site.start_kubelet()
        site.until(lambda: site.count("one") == 2)
        site.until(lambda: site.registration().get("state") == "confirmed")
        assert site.count("two") == 1


def test_a_kubelet_that_comes_twice_is_confirmed_as_the_last_one() -> None:
    with WatchSite("one") as site:
        site.start()
        pids = [site.start_kubelet() for _ in range(3)]
        site.until(lambda: site.registration().get("state") == "confirmed")
        assert site.registration()["pid"] == pids[-1]
        assert site.count("one") == 1


def test_without_escalation_it_signals_and_reports_only() -> None:
    with WatchSite("one", "two", escalate=False) as site:
        site.start()
        site.mode("one", "blind")
        site.start_kubelet()
        site.until(lambda: site.registration().get("looks", 0) >= 5)
        assert site.watcher()["escalation"] == "off"
        assert site.registration().get("state") == "unconfirmed"
        assert site.count("one") == 1


def test_a_new_watcher_repeats_nothing_and_goes_on_confirming() -> None:
    with WatchSite("one") as site:
        site.start()
        pid = site.start_kubelet()
        site.until(lambda: site.trail("registrations-confirmed"))
        old = site.watcher()["pid"]
        os.kill(old, 9)
        site.until(lambda: site.watcher()["pid"] != old)
        site.until(lambda: site.registration().get("state") == "confirmed")
        assert len(site.trail("kubelet-up", pid=pid)) == 1
        assert site.count("one") == 1

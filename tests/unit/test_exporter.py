"""From what programs say to what Prometheus reads: every figure, the 500 series, and odd answers of old programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_stub import resource_of, status_of
from devherd.expected import Expectation
from devherd_exporter import textfile
from devherd_exporter.catalog import BY_NAME, CATALOG, LIMIT
from devherd_exporter.config import Config, Tcp, Tls, validate
from devherd_exporter.cut import cut
from devherd_exporter.docs import RULES, alerts, main
from devherd_exporter.expose import answer, text
from devherd_exporter.figures import figures, reason_class
from devherd_exporter.gather import Gathered, Gatherer
from devherd_exporter.series import Series, as_histogram
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

ROOT = Path(__file__).parents[2]
ALLOCATE = {"count": 3, "seconds": 0.006, "buckets": [[0.001, 1], [0.005, 3]]}
COUNTERS = {"kubelets": 2, "scans": 9, "scan_failures": 1, "probe_hangs": 1, "probe_ends": 0, "allocate": ALLOCATE}
OF_RESOURCE = {"allocations": 7, "allocated": 9, "refusals": 2, "released": 4, "streams_lost": 3, "taken": 0}


def values(series: Series) -> dict[str, float]:
    """Every sample as Prometheus parses it: `name{label=value,...}` -> value."""
    found = {}
    for family in parse_text(text(series).decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, f"{name} twice"
            found[name] = sample.value
    return found


def front(name: str = "generic", *resources: dict[str, Any], **other: Any) -> dict[str, Any]:
    return status_of(name, *resources, now=1_790_000_100.0, counters=COUNTERS, events={"noted": 5, "lost": 1}, **other)


def resource(name: str = "devherd.io/tun", **other: Any) -> dict[str, Any]:
    return resource_of(name, counters=OF_RESOURCE, **other)


def of(*fronts: dict[str, Any], **other: Any) -> Gathered:
    return Gathered(fronts={one["plugin"]: one for one in fronts}, **other)


def test_figures_of_a_resource() -> None:
    row = resource(devices=5, healthy=3, unhealthy={"gone": 1, "stale": 1})
    found = values(figures(of(front("generic", row))))
    mine = {key: value for key, value in found.items() if "resource=devherd.io/tun" in key}
    where = "plugin=generic"
    assert mine == {
        f"devherd_registered{{{where},resource=devherd.io/tun}}": 1,
        f"devherd_registration_state{{{where},resource=devherd.io/tun,state=registered}}": 1,
        f"devherd_devices{{health=healthy,{where},reason=,resource=devherd.io/tun}}": 3,
        f"devherd_devices{{health=unhealthy,{where},reason=gone,resource=devherd.io/tun}}": 1,
        f"devherd_devices{{health=unhealthy,{where},reason=stale,resource=devherd.io/tun}}": 1,
        f"devherd_devices_held{{{where},resource=devherd.io/tun}}": 1,
        f"devherd_devices_left_out{{{where},resource=devherd.io/tun}}": 0,
        f"devherd_registrations_total{{{where},resource=devherd.io/tun}}": 2,
        f"devherd_registration_seconds{{{where},resource=devherd.io/tun}}": 0.00325,
        f"devherd_stream_age_seconds{{{where},resource=devherd.io/tun}}": 60,
        f"devherd_allocations_total{{{where},resource=devherd.io/tun}}": 7,
        f"devherd_allocated_devices_total{{{where},resource=devherd.io/tun}}": 9,
        f"devherd_allocation_refusals_total{{{where},resource=devherd.io/tun}}": 2,
        f"devherd_released_devices_total{{{where},resource=devherd.io/tun}}": 4,
        f"devherd_streams_lost_total{{{where},resource=devherd.io/tun}}": 3,
    }


def test_figures_of_a_plugin() -> None:
    skipped = [
        {"what": "/dev/x1", "rule": "r", "reason": "/dev/x1 is not a device node"},
        {"what": "/dev/x2", "rule": "r", "reason": "/dev/x2 is not a device node"},
        {"what": "0000:03:00.0", "rule": "r", "reason": "driver 'vfio-pci' is bound"},
    ]
    probe = {**front()["probe"], "state": "hung", "abandoned": [7, 8]}
    found = values(figures(of(front("generic", skipped=skipped, probe=probe, node_problems=["a", "b"]))))
    assert found["devherd_plugin_up{plugin=generic}"] == 1
    assert found["devherd_plugin_uptime_seconds{plugin=generic}"] == 100
    assert found["devherd_probe_up{plugin=generic}"] == 0
    assert found["devherd_probe_abandoned{plugin=generic}"] == 2
    assert found["devherd_probe_hangs_total{plugin=generic}"] == 1
    assert found["devherd_probe_scan_age_seconds{plugin=generic}"] == 2
    assert found["devherd_scans_total{plugin=generic}"] == 9
    assert found["devherd_kubelet_starts_total{plugin=generic}"] == 2
    assert found["devherd_node_problems{plugin=generic}"] == 2
    assert found["devherd_events_lost{plugin=generic}"] == 1
    assert found["devherd_skipped_devices{plugin=generic,reason=… is not a device node}"] == 2
    assert found["devherd_skipped_devices{plugin=generic,reason=driver … is bound}"] == 1
    assert found["devherd_allocate_seconds_bucket{le=0.001,plugin=generic}"] == 1
    assert found["devherd_allocate_seconds_bucket{le=+Inf,plugin=generic}"] == 3
    assert found["devherd_allocate_seconds_sum{plugin=generic}"] == 0.006


def test_whoever_does_not_answer_is_down_and_hides_nobody() -> None:
    silent = Gathered(fronts={"a": None, "b": front("b")}, programs=None, watcher=None)
    found = values(figures(silent))
    assert found["devherd_plugin_up{plugin=a}"] == 0
    assert found["devherd_plugin_up{plugin=b}"] == 1
    assert (found["devherd_supervisor_up"], found["devherd_watcher_up"], found["devherd_kubelet_up"]) == (0, 0, 1)
    assert not any("plugin=a" in key for key in found if "plugin_up" not in key)


def test_programs_and_watcher() -> None:
    rows = (
        {"name": "generic", "statename": "RUNNING", "pid": 4, "start": 100, "now": 160},
        {"name": "nvidia", "statename": "FATAL", "pid": 0, "start": 100, "now": 160},
    )
    watcher = {"signals": {"rounds": 3, "last": {"microseconds": 250}}, "restarts": {"count": 1}, "problems": ["x"]}
    found = values(figures(Gathered(programs=rows, watcher=watcher | {"kubelet": {"pid": 9}})))
    assert found["devherd_program_up{program=generic}"] == 1
    assert found["devherd_program_up{program=nvidia}"] == 0
    assert found["devherd_program_state{program=nvidia,state=FATAL}"] == 1
    assert found["devherd_program_uptime_seconds{program=generic}"] == 60
    assert "devherd_program_uptime_seconds{program=nvidia}" not in found
    assert found["devherd_watcher_signal_seconds"] == 0.00025
    assert (found["devherd_watcher_restarts_total"], found["devherd_watcher_problems"]) == (1, 1)
    assert found["devherd_kubelet_up"] == 1


def test_pods_are_shown_only_where_the_devices_were_asked_for() -> None:
    rows: list[Any] = [{"resource": "r/x", "id": str(i), "held_by": f"ns/pod{i % 2}/c"} for i in range(5)]
    rows += [{"resource": "r/x", "id": "u", "held_by": "uid/c"}, {"resource": "r/x", "id": "f", "held_by": None}]
    found = values(figures(Gathered(devices={"generic": {"devices": rows}})))
    assert found["devherd_pod_devices{namespace=ns,pod=pod0,resource=r/x}"] == 3
    assert found["devherd_pod_devices{namespace=ns,pod=pod1,resource=r/x}"] == 2
    assert not any("pod" in key for key in values(figures(of(front("generic", resource())))))


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("/dev/ttyUSB0 is gone", "… is gone"),
        ("0000:03:00.0: no driver", "… no driver"),
        ("the group 71 is shared with 0000:00:1f.6 and /dev/x", "the group … is shared with … and …"),
        ("", "no reason given"),
        ("x" * 500, "x" * 80),
    ],
)
def test_reasons_lose_what_varies(reason: str, shown: str) -> None:
    assert reason_class(reason) == shown


def test_the_most_frequent_reasons_are_shown_and_the_rest_is_one() -> None:
    words = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]
    skipped = [{"what": "x", "rule": "r", "reason": word} for n, word in enumerate(words) for _ in range(n + 1)]
    found = values(figures(of(front("generic", skipped=skipped))))
    shown = {key: value for key, value in found.items() if key.startswith("devherd_skipped")}
    assert shown["devherd_skipped_devices{plugin=generic,reason=hotel}"] == 8
    assert shown["devherd_skipped_devices{plugin=generic,reason=other}"] == 6
    assert (len(shown), sum(shown.values())) == (6, len(skipped))


def many(plugins: int, resources: int, reasons: int = 5) -> Gathered:
    unhealthy = {f"kind-{n}": 2 for n in range(reasons)}
    fronts = [
        front(
            f"plugin{p:02}",
            *(
                resource(f"e.com/r{p:02}-{r:03}", devices=20, healthy=20 - 2 * reasons, unhealthy=unhealthy)
                for r in range(resources)
            ),
        )
        for p in range(plugins)
    ]
    programs = tuple({"name": one["plugin"], "statename": "RUNNING", "pid": 1, "start": 1, "now": 2} for one in fronts)
    return of(*fronts, programs=programs, watcher={})


def test_fit_for_work_and_what_is_missing() -> None:
    row = resource(devices=5, healthy=3)
    wanted = (Expectation("devherd.io/tun", 5, "generic"), Expectation("a/gone", 2, "gone"))
    programs = ({"name": "generic", "statename": "RUNNING", "start": 1},)
    found = values(figures(of(front("generic", row), expected=wanted, programs=programs)))
    assert found["devherd_fit_for_work"] == 0
    assert found["devherd_devices_missing{plugin=generic,resource=devherd.io/tun}"] == 2
    assert found["devherd_devices_missing{plugin=gone,resource=a/gone}"] == 2
    found = values(figures(of(front("generic", row), expected=(Expectation("devherd.io/tun", 3, "generic"),))))
    assert found["devherd_fit_for_work"] == 1
    assert not any(key.startswith("devherd_devices_missing") for key in found)


@pytest.mark.parametrize(("plugins", "resources"), [(0, 0), (1, 1), (8, 2), (3, 12), (1, 100), (20, 5), (60, 3)])
def test_a_node_never_has_more_than_500_series_and_says_what_was_cut(plugins: int, resources: int) -> None:
    whole = figures(many(plugins, resources)).size
    series = cut(figures(many(plugins, resources)))
    found = values(series)
    assert len(found) == series.size <= LIMIT
    assert found["devherd_series"] == series.size
    said = {key: value for key, value in found.items() if key.startswith("devherd_series_cut")}
    assert len(said) == 5
    assert any(said.values()) == (whole > LIMIT - 6)


def test_totals_survive_the_merging_of_resources() -> None:
    series = cut(figures(many(3, 40)))
    found = values(series)
    for name, each in (("devherd_allocations_total", 7), ("devherd_registrations_total", 2), ("devherd_devices", 20)):
        shown = {key: value for key, value in found.items() if key.startswith(name + "{")}
        assert sum(shown.values()) == 120 * each, name
        assert any("resource=other" in key for key in shown), name
    assert found["devherd_stream_age_seconds{plugin=other,resource=other}"] == 60
    assert found["devherd_registered{plugin=other,resource=other}"] == 1
    assert found["devherd_series_cut{what=resources}"] > 80


def test_the_same_resources_are_shown_whatever_their_state() -> None:
    def shown(gathered: Gathered) -> set[str]:
        return {key for key in values(cut(figures(gathered))) if key.startswith("devherd_allocations_total")}

    healthy, sick = many(2, 40, reasons=0), many(2, 40, reasons=5)
    for status in sick.fronts.values():
        for row in (status or {})["resources"]:
            row |= {"stream_seconds": None, "state": "waiting"}
    assert shown(healthy) == shown(sick)


def test_one_that_is_not_registered_shows_in_the_merged_ones() -> None:
    gathered = many(1, 60)
    status = gathered.fronts["plugin00"]
    assert status is not None
    status["resources"][-1]["state"] = "refused"
    found = values(cut(figures(gathered)))
    assert found["devherd_registered{plugin=other,resource=other}"] == 0
    assert found["devherd_registration_state{plugin=other,resource=other,state=refused}"] == 1


def test_pods_are_the_first_to_go() -> None:
    rows = [{"resource": "r/x", "id": str(i), "held_by": f"ns/pod{i:04}/c"} for i in range(450)]
    found = values(cut(figures(Gathered(devices={"generic": {"devices": rows}}))))
    pods = {key: value for key, value in found.items() if "devherd_pod_devices" in key}
    assert len(pods) == 101
    assert sum(pods.values()) == 450
    assert found["devherd_series_cut{what=pods}"] == 350


def test_an_old_or_confused_program_costs_its_figures_only() -> None:
    confused: list[Any] = [
        {"plugin": "p"},
        {"plugin": "p", "resources": [None, 3, {"name": None, "devices": "many", "unhealthy": [1]}]},
        {"plugin": "p", "counters": {"allocate": {"count": 1, "seconds": float("nan"), "buckets": [[1]]}}},
        {"plugin": "p", "probe": 7, "skipped": [1, {"reason": None}], "kubelet": None, "config": []},
    ]
    for status in confused:
        found = values(cut(figures(of(status, front("good", resource())))))
        assert found["devherd_plugin_up{plugin=p}"] == 1
        assert found["devherd_allocations_total{plugin=good,resource=devherd.io/tun}"] == 7


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(part=st.sampled_from(sorted(front("p", resource()))), odd=JSON, row=st.sampled_from(sorted(resource())))
def test_whatever_a_status_holds_the_answer_can_be_parsed(part: str, odd: Any, row: str) -> None:
    series = cut(figures(Gathered(fronts={"p": front("p", resource() | {row: odd})} | {"q": {part: odd}})))
    assert values(series)["devherd_plugin_up{plugin=p}"] == 1
    list(parse_openmetrics(answer(series, "application/openmetrics-text; version=1.0.0")[0].decode()))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {},
        {"count": 1},
        {"count": 1, "seconds": 1, "buckets": [[0.1, 2]]},
        {"count": 2, "seconds": 1, "buckets": 5},
    ],
)
def test_a_histogram_that_no_client_would_accept_is_left_out(value: Any) -> None:
    assert as_histogram(value) is None


def test_the_format_is_the_one_asked_for() -> None:
    series = cut(figures(of(front("generic", resource()))))
    body, kind = answer(series, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    assert body.rstrip().endswith(b"# EOF")
    assert answer(series, "")[1].startswith("text/plain; version=0.0.4")


def test_a_front_that_was_stopped_or_sleeps_is_not_down_but_one_that_died_is(tmp_path: Path) -> None:
    gatherer = Gatherer(str(tmp_path), 0.2)
    for name in ("stopped", "asleep", "died", "watcher", "exporter"):
        (tmp_path / f"{name}.control.sock").touch()
    assert set(gatherer.gather().fronts) == {"stopped", "asleep", "died"}
    rows = (
        {"name": "stopped", "statename": "STOPPED"},
        {"name": "asleep", "statename": "EXITED", "exitstatus": 69},
        {"name": "died", "statename": "BACKOFF"},
    )
    for path in tmp_path.iterdir():
        path.unlink()
    assert set(gatherer._without_resting(gatherer.gather().fronts, rows)) == {"died"}
    assert set(gatherer.gather().fronts) == {"died"}


TLS = Tls("/etc/c.pem", "/etc/k.pem")


@pytest.mark.parametrize(
    ("tcp", "problems"),
    [
        (Tcp(9478), []),
        (Tcp(9478, "::1"), []),
        (Tcp(9478, "127.0.0.2"), []),
        (Tcp(9478, "0.0.0.0", TLS, "/etc/token"), []),
        (Tcp(9478, "0.0.0.0", None, "/etc/token"), ["set tcp.tls"]),
        (Tcp(9478, "10.1.2.3", TLS), ["set tcp.token_file"]),
        (Tcp(9478, "::"), ["set tcp.tls", "set tcp.token_file"]),
        (Tcp(9478, "localhost"), ["no IP address"]),
    ],
)
def test_what_others_can_reach_needs_tls_and_a_token(tcp: Tcp, problems: list[str]) -> None:
    found = [message for _, message in validate(Config(tcp=tcp))]
    assert len(found) == len(problems)
    assert all(part in message for part, message in zip(problems, found, strict=True))


def test_the_textfile_goes_where_node_exporter_looks_and_nowhere_else(tmp_path: Path) -> None:
    assert textfile.place("auto", str(tmp_path)) == ""
    folder = tmp_path / "var/lib/node_exporter/textfile_collector"
    folder.mkdir(parents=True)
    assert textfile.place("auto", str(tmp_path)) == f"{folder}/devherd.prom"
    assert textfile.place("none", str(tmp_path)) == ""
    assert textfile.place("/x/y.prom", str(tmp_path)) == "/x/y.prom"
    path = f"{folder}/devherd.prom"
    textfile.write(path, b"a 1\n")
    textfile.write(path, b"a 2\n")
    assert [one.name for one in folder.iterdir()] == ["devherd.prom"]
    assert Path(path).read_bytes() == b"a 2\n"
    assert Path(path).stat().st_mode & 0o777 == 0o644
    textfile.remove(path)
    textfile.remove(path)
    assert not list(folder.iterdir())
    with pytest.raises(OSError, match="No such file"):
        textfile.write("/nowhere/at/all.prom", b"")


def used(expression: str) -> Iterable[str]:
    """Metrics a PromQL expression asks for, histograms by their family."""
    import re

    for name in re.findall(r"\bdevherd_\w+", expression):
        yield re.sub(r"_(bucket|sum|count)$", "", name)


def test_alert_rules_ask_for_metrics_that_exist_and_lead_to_their_section() -> None:
    rules = alerts((ROOT / RULES).read_text())
    page = (ROOT / "docs/metrics.md").read_text()
    assert len(rules) >= 10
    for rule in rules:
        assert set(used(rule["expr"])) <= set(BY_NAME), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        place, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert (place, section) == ("docs/metrics.md", rule["alert"].lower())
        assert f"\n### {rule['alert']}\n" in page
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert set(yaml.safe_load((ROOT / RULES).read_text())) == {"groups"}


def test_the_page_is_up_to_date_and_a_change_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["--check"]) == 0
    (tmp_path / "docs").mkdir()
    (tmp_path / "packaging/alerts").mkdir(parents=True)
    (tmp_path / RULES).write_text((ROOT / RULES).read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["--check"]) == 1
    assert "make docs" in capsys.readouterr().err
    assert main([]) == 0
    assert (tmp_path / "docs/metrics.md").read_text() == (ROOT / "docs/metrics.md").read_text()


def test_the_catalog_is_sound() -> None:
    checks: dict[str, Callable[[str], bool]] = {
        "counter": lambda name: name.endswith("_total"),
        "gauge": lambda name: not name.endswith(("_total", "_count", "_sum", "_bucket", "_info_info")),
        "histogram": lambda name: name.endswith("_seconds"),
    }
    assert len(BY_NAME) == len(CATALOG)
    for metric in CATALOG:
        assert checks[metric.kind](metric.name), metric.name
        assert metric.help.endswith("."), metric.name

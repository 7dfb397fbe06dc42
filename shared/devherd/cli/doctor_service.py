"""The doctor on devherd itself: configuration, programs, plugins, what they keep."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from devherd.cli.doctor_site import LEFT_OUT, NOTE, OK_, PROBLEM, Check, Site
from devherd.cli.exits import Fault
from devherd.cli.judge import findings
from devherd.cli.plugins import manifests, vendor_manifests
from devherd.cli.words import count, listing


def configuration(site: Site) -> Iterator[Check]:
    """Every file is read as the plugins would read it, and belongs to whom it should."""
    from devherd.config import load_plugin_config, load_settings
    from devherd.config.problems import Problem

    name = "configuration"
    problems: list[Problem] = []
    files: list[str] = []
    if os.path.exists(site.place.config):
        files.append(site.place.config)
        problems += load_settings(site.place.config).problems
    try:
        known = manifests()
    except Fault as fault:
        known = {}
        yield Check(name, PROBLEM, fault.what, "Reinstall the package of that plugin, or remove it.")
    vendors, wrong = vendor_manifests(site.place.settings)
    known = {**known, **vendors}
    for text in wrong.values():
        yield Check(name, PROBLEM, text, "Correct `vendors` in devherd.yaml, then: devherd config check")
    for manifest in known.values():
        loaded = load_plugin_config(site.place.settings, manifest)
        files += [loaded.path] if loaded.found else []
        problems += loaded.problems
    for problem in problems:
        text = f"{problem.file}:{problem.line}: {problem.message}"
        yield Check(name, PROBLEM, text, problem.hint or "Check it again: devherd config check")
    yield from _strangers(site, set(known))
    if os.geteuid() == 0 and not site.private:
        yield from _changeable(name, files)
    if not problems and not wrong:
        yield Check(name, OK_, f"{count(len(files), 'file')} read without mistakes" if files else "none: defaults")


def _strangers(site: Site, known: set[str]) -> Iterator[Check]:
    folder = Path(site.paths.etc) / "plugins.d"
    for path in sorted(folder.glob("*")):
        if path.suffix != ".yaml" or path.stem not in known:
            text = f"{path} is read by no plugin"
            yield Check("configuration", NOTE, text, f"There are: {listing(sorted(known), 12)}; each reads NAME.yaml.")


def _changeable(name: str, files: list[str]) -> Iterator[Check]:
    from devherd.trust import changeable

    for text in sorted({why for path in files if (why := changeable(path))}):
        yield Check(name, PROBLEM, text, "Who can write there decides which host devices pods get.")


def programs(site: Site) -> Iterator[Check]:
    """supervisord answers, and every program is in the state it should be in."""
    name = "programs"
    if not site.programs:
        socket = Path(site.paths.run) / "supervisor.sock"
        if not os.path.lexists(socket):
            yield Check(name, PROBLEM, f"supervisord does not run ({socket} is missing)", "systemctl start devherd")
        else:
            remedy = "Are you root? Else see supervisord.log; systemctl restart devherd costs no pod."
            yield Check(name, PROBLEM, f"supervisord does not answer on {socket}", remedy)
        return
    bad = 0
    for item in site.programs:
        if item.state in ("BACKOFF", "FATAL", "UNKNOWN") or (item.state == "EXITED" and item.worth_telling()):
            bad += 1
            log = Path(site.paths.log) / f"{item.name}.log"
            yield Check(name, PROBLEM, f"{item.name} {item.words()}", f"Its last words: tail {log}")
        elif item.state == "STOPPED" and item.started:
            yield Check(name, NOTE, f"{item.name} {item.words()}")
    running = sum(item.state in ("RUNNING", "STARTING") for item in site.programs)
    if not bad:
        yield Check(name, OK_, f"{running} of {count(len(site.programs), 'program')} run")


def plugins(site: Site) -> Iterator[Check]:
    """What the plugins say of themselves: registration, probes, devices."""
    name = "plugins"
    found = findings(site.statuses)
    for item in found:
        verdict = PROBLEM if item.problem else NOTE
        yield Check(name, verdict, f"{item.where} {item.text}", item.hint)
    if not site.statuses.replies:
        yield Check(name, PROBLEM, "no plugin answers", f"Control sockets are looked for in {site.place.run}.")
    elif not any(item.problem for item in found):
        yield Check(name, OK_, f"{count(len(site.statuses.replies), 'plugin')} up, everything registered and healthy")


def duplicates(site: Site) -> Iterator[Check]:
    """Never two fronts for one plugin: an orphan of a killed supervisord would fight the new one."""
    name = "duplicates"
    fronts: dict[str, list[int]] = defaultdict(list)
    for entry in os.scandir(site.proc):
        if entry.name.isdigit():
            words = _words(f"{entry.path}/cmdline")
            if "devherd.front" in words and "devherd.launcher" not in words and site.place.config in words:
                fronts[_after(words, "--plugin")].append(int(entry.name))
    for plugin, pids in sorted(fronts.items()):
        if len(pids) > 1:
            which = listing([f"pid {pid}" for pid in sorted(pids)])
            mine = [pid for pid, known in site.our_pids().items() if known == plugin]
            remedy = f"Keep the one that answers (pid {mine[0]}), end the others." if mine else "End all but one."
            yield Check(name, PROBLEM, f"{plugin} has {len(pids)} fronts: {which}", remedy)
    if all(len(pids) < 2 for pids in fronts.values()):
        yield Check(name, OK_, f"{count(len(fronts), 'front')}, one for each plugin")


def _words(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read()).split("\0")
    except OSError:
        return []


def _after(words: list[str], option: str) -> str:
    at = words.index(option) + 1 if option in words else len(words)
    return words[at] if at < len(words) else "?"


def watcher(site: Site) -> Iterator[Check]:
    """The watcher answers and sees the kubelet the fronts see."""
    from devherd.control import ControlError, ask

    name = "watcher"
    path = Path(site.paths.run) / "watcher.control.sock"
    try:
        reply = ask(str(path), {"op": "status"}, timeout=2.0)
    except ControlError as error:
        hint = "Plugins register without it, some milliseconds later; restart it: supervisorctl restart watcher"
        yield Check(name, PROBLEM if site.programs else LEFT_OUT, f"gives no answer: {error}", hint)
        return
    kubelet = reply.get("kubelet")
    pid = kubelet.get("pid") if isinstance(kubelet, dict) else None
    seen = {int((item.get("kubelet") or {}).get("pid") or 0) for item in site.statuses.replies} - {0}
    if pid and seen and seen != {pid}:
        text = f"sees kubelet pid {pid}, plugins see {listing(str(item) for item in sorted(seen))}"
        yield Check(name, NOTE, text, "A moment after a kubelet restart this is normal; ask again.")
    else:
        yield Check(name, OK_, "answers" + (f", sees kubelet pid {pid}" if pid else ", sees no kubelet"))


def kept(site: Site) -> Iterator[Check]:
    """Files that outlive a process: none was damaged."""
    name = "state"
    folder = Path(site.paths.state)
    if not folder.is_dir():
        yield Check(name, LEFT_OUT, f"{folder} is not there yet")
        return
    bad = sorted(path for path in folder.rglob("*.bad"))
    for path in bad:
        remedy = "Nothing to do: it was set aside and made anew. Keep it for a report, or remove it."
        yield Check(name, NOTE, f"{path} was damaged", remedy)
    if os.geteuid() == 0 and not site.private:
        yield from _changeable(name, [str(folder)])
    if not bad:
        yield Check(name, OK_, f"{folder}: nothing damaged")

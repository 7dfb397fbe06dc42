"""`devherd run --once`: the walk on the simulated node, then on this machine's own device nodes."""

from __future__ import annotations

import time
from typing import Any

from devherd.cli.exits import ERROR, INTERRUPTED, OK
from devherd.cli.output import BAD, GOOD, QUIET, Out
from devherd.cli.own_devices import present, rules
from devherd.cli.steps import Steps
from devherd.cli.walk import QUICK, Walk, wish_for
from devherd.cli.words import count, listing, span
from devherd.run.instance import Instance, Wish
from devherd.sim.options import Options

Json = dict[str, Any]


def run_once(out: Out, name: str, node: str) -> int:
    """Both walks; prints the document or the summary, and returns the exit code."""
    began = time.monotonic()
    steps = Steps(out)
    timing = gaps()
    steps.line(
        f"Each simulated kubelet starts to work {timing['exec_gap_ms']:g} ms after a boot starts it, and admits its "
        f"first pod {timing['admit_gap_ms']:g} ms after kubelet.sock, as a real one was seen to do.",
        QUIET,
    )
    walks = [_simulated(steps, name, node)]
    found = present()
    if found and not walks[0].failed:
        steps.line("")
        walks.append(_own(steps, name))
    elif not found:
        steps.line("This machine has no device node the walk knows; the second walk is left out.", QUIET)
    document = as_document(walks, time.monotonic() - began)
    if out.as_json:
        out.document(document)
    _summary(steps, document)
    if document["interrupted"]:
        return INTERRUPTED
    return OK if document["ok"] else ERROR


def gaps() -> dict[str, float]:
    """The timing of the simulated kubelets, which is that of every simulation (milliseconds)."""
    return {"admit_gap_ms": Options().admit_gap_ms, "exec_gap_ms": Wish().exec_gap * 1000}


def as_document(walks: list[Walk], seconds: float) -> Json:
    """One document for all walks: sums where they can be summed, and each walk in full."""
    parts = [walk.as_json() for walk in walks]
    merged: Json = {"resources": {}, "reregistered_ms": {}}
    for part in parts:
        for key, into in merged.items():
            into.update(part[key])
    return {
        "ok": all(part["ok"] for part in parts),
        **merged,
        "pods_lost": sum(part["pods_lost"] for part in parts),
        "recovered": all(part["recovered"] for part in parts),
        "leftover": sum(part["leftover"] for part in parts),
        "seconds": round(seconds, 1),
        "settings": QUICK,
        "kubelet_options": gaps(),
        "interrupted": any(walk.interrupted for walk in walks),
        "walks": parts,
    }


def _simulated(steps: Steps, name: str, node: str) -> Walk:
    steps.head(f"The main job on the simulated node {node!r}")
    walk = Walk(Instance(wish_for(False, node=node), name), steps)
    walk.run()
    return walk


def _own(steps: Steps, name: str) -> Walk:
    found = present()
    names = listing((f"/dev/{item.pattern}" for item in found), 20)
    steps.head("The main job on this machine's own device nodes (offered to a simulated kubelet, never opened)")
    steps.line(f"  {names}", QUIET)
    walk = Walk(Instance(wish_for(True, {"generic": rules(found)}), name), steps, real=True)
    walk.run()
    return walk


def _summary(steps: Steps, document: Json) -> None:
    steps.line("")
    known = [ms for ms in document["reregistered_ms"].values() if ms is not None]
    slowest = f", the slowest {max(known):.1f} ms after its socket appeared" if known else ""
    text = (
        f"{count(len(document['resources']), 'resource')} registered again with a new kubelet{slowest}; "
        f"{count(document['pods_lost'], 'pod')} lost; {document['leftover']} left behind; "
        f"{span(document['seconds'])} in all"
    )
    steps.line(text, GOOD if document["ok"] else BAD)
    for walk in document["walks"]:
        if walk["error"]:
            steps.line(f"failed on {walk['node']}: {walk['error']}", BAD)
            for line in walk["log"]:
                steps.line(f"  {line}", QUIET)

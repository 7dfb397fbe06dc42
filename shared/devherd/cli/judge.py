"""Reads the fronts' status replies the way an operator would: what is wrong, where, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from devherd.cli.asking import Answers
from devherd.cli.patterns import waits
from devherd.cli.pulse import frozen
from devherd.cli.words import count, listing, span

Json = dict[str, Any]
SERVED = frozenset({"registered", "unverified"})
"""Registration states in which the kubelet has our stream open."""

_STATE_HINTS = {
    "waiting": "The kubelet does not listen yet; it is registered as soon as it does.",
    "refused": "The kubelet will refuse it again until the configuration or the kubelet changes.",
    "taken": "Another device plugin serves this resource on this node: stop that one, or rename this resource.",
    "stopped": "The plugin has stopped serving this resource.",
}


@dataclass(frozen=True)
class Finding:
    """Something worth saying. `problem`: the node is not as it should be; otherwise it is only worth knowing."""

    problem: bool
    where: str
    text: str
    hint: str = ""

    def as_json(self) -> Json:
        """The finding as it appears in documents."""
        return asdict(self)


def findings(answers: Answers) -> list[Finding]:
    """Everything worth saying about these status replies; problems first, in the order of the plugins."""
    found = [Finding(True, item.plugin, f"gives no answer: {item.why}") for item in answers.down]
    found += _kubelets(answers)
    for reply in answers.replies:
        found.extend(_of_front(reply))
    return sorted(found, key=lambda item: not item.problem)


def mute(answers: Answers) -> list[str]:
    """Sockets of kubelets that the fronts see and that answer nothing, as a frozen process does."""
    seen = {str(k.get("socket")) for r in answers.replies if (k := r.get("kubelet") or {}).get("state") == "up"}
    return sorted(path for path in seen if frozen(path))


def no_answer(answers: Answers) -> list[Finding]:
    """A finding for each kubelet that answers nothing. It takes a second to know, so that not every view asks."""
    hint = "It is frozen or overloaded: no pod can be admitted until it answers. Look at its own log."
    return [Finding(True, "kubelet", f"accepts and answers nothing on {path}", hint) for path in mute(answers)]


def _kubelets(answers: Answers) -> Iterator[Finding]:
    """One finding for each kubelet that is away, not one for each plugin and resource that waits for it."""
    waiting: dict[str, list[str]] = {}
    for reply in answers.replies:
        if _away(reply):
            socket = str((reply.get("kubelet") or {}).get("socket") or "kubelet.sock")
            names = [str(r["name"]) for r in reply.get("resources", ()) if _only_waits(reply, r)]
            waiting.setdefault(socket, []).extend(names)
    for socket, names in waiting.items():
        text = f"is away, nobody listens on {socket}"
        text += f"; {count(len(names), 'resource')} not registered: {listing(sorted(names))}" if names else ""
        yield Finding(True, "kubelet", text, "Each is registered as soon as the kubelet listens.")


def _away(reply: Json) -> bool:
    return (reply.get("kubelet") or {}).get("state") != "up"


def _only_waits(reply: Json, resource: Json) -> bool:
    """Whether the only thing wrong with its registration is that there is no kubelet."""
    return _away(reply) and not resource.get("draining") and resource.get("state") in ("waiting", "registering")


def unregistered(answers: Answers) -> list[str]:
    """Names of the resources the kubelet does not have, and of the plugins that give no answer."""
    names = [item.plugin for item in answers.down]
    for reply in answers.replies:
        names += [r["name"] for r in reply.get("resources", ()) if not r.get("draining") and r["state"] not in SERVED]
    return names


def _of_front(reply: Json) -> Iterator[Finding]:
    plugin = str(reply.get("plugin", "?"))
    yield from _of_probe(plugin, reply.get("probe") or {})
    for problem in (reply.get("config") or {}).get("problems", ()):
        where = f"{problem.get('file', '?')}:{problem.get('line', 0)}"
        yield Finding(True, plugin, f"{where}: {problem.get('message', '')}", problem.get("hint", ""))
    for text in reply.get("node_problems", ()):
        yield Finding(True, plugin, text)
    for text in reply.get("state_problems", ()):
        yield Finding(False, plugin, text)
    if reply.get("absent"):
        yield Finding(False, plugin, f"no hardware: {reply['absent']}")
    for resource in reply.get("resources", ()):
        yield from _of_resource(resource, _only_waits(reply, resource))
    refused = [item for item in reply.get("skipped", ()) if not waits(item)]
    if refused:
        first = shlex.quote(str(refused[0].get("what")))
        what = listing(str(item.get("what")) for item in refused)
        yield Finding(False, plugin, f"did not offer {what}", f"Why: devherd explain {first}")


def _of_probe(plugin: str, probe: Json) -> Iterator[Finding]:
    if probe.get("state") == "hung":
        doing, seconds = probe.get("doing") or "a request", span(probe.get("doing_seconds"))
        yield Finding(
            True,
            plugin,
            f"the probe (pid {probe.get('pid')}) hangs in {doing} since {seconds}",
            "Devices stay allocatable and are served from memory; the probe is replaced by itself.",
        )
    if probe.get("error"):
        yield Finding(True, plugin, f"the last scan failed: {probe['error']}")
    if probe.get("abandoned"):
        pids = listing(str(pid) for pid in probe["abandoned"])
        yield Finding(False, plugin, f"abandoned probes still hang in the kernel: pid {pids}")


def _of_resource(resource: Json, told: bool) -> Iterator[Finding]:
    """`told`: that there is no kubelet has been said already."""
    name, state = resource["name"], resource.get("state", "?")
    if resource.get("draining"):
        yield Finding(False, name, "was withdrawn and is served until no pod holds it")
    elif state not in SERVED and not told:
        error = f": {resource['error']}" if resource.get("error") else ""
        yield Finding(True, name, f"is not registered with the kubelet, {state}{error}", _STATE_HINTS.get(state, ""))
    elif state == "unverified":
        why = f" ({resource['error']})" if resource.get("error") else ""
        yield Finding(False, name, f"is registered, but the kubelet's list could not be checked{why}")
    sick = resource.get("devices", 0) - resource.get("healthy", 0)
    if sick > 0 and not resource.get("draining"):
        yield Finding(True, name, f"{count(sick, 'device')} unhealthy", f"Which, and why: devherd devices {name}")
    left_out = resource.get("left_out", 0)
    left_out = len(left_out) if isinstance(left_out, list) else int(left_out or 0)
    if left_out:
        yield Finding(True, name, f"{count(left_out, 'device')} left out: the list would pass the kubelet's 4 MiB")

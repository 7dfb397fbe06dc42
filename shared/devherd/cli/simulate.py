"""`devherd simulate`: pods, kubelet and hardware of a running simulation, from another terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from devherd.cli.app import App, common, json_option, make_out
from devherd.cli.asking import ask_fronts
from devherd.cli.exits import ERROR, OK, TIMEOUT, USAGE, Fault
from devherd.cli.link import Link
from devherd.cli.names import check_pod_name, choices, full_name
from devherd.cli.output import BAD, GOOD, QUIET
from devherd.cli.simset import help_text, meanings, parse
from devherd.cli.simview import NODE_FIGURES, NODE_HEADS, POD_HEADS, back, event_line, node_rows, pod_rows, settled, why
from devherd.cli.simview import reregistered as reregistered_of
from devherd.cli.words import count, listing, millis, short

Json = dict[str, Any]
PATIENCE = 30.0
"""Seconds to wait for resources and pods after a kubelet start, before saying what is still missing."""


@click.group(invoke_without_command=True)
@click.option("--from", "capture", metavar="FILE", help="Replay the node of a `devherd capture`, in the foreground.")
@click.option("--name", metavar="NAME", help="Name of the private instance, with --from.")
@json_option
@click.pass_context
def simulate(context: click.Context, capture: str | None, name: str | None, as_json: bool) -> int | None:
    """Act on a running simulation: pods, kubelet, reboot, broken devices.

    Start one in another terminal with `devherd run --simulate` (or `make run`), or replay a captured node:
    `devherd simulate --from FILE`.
    """
    if context.invoked_subcommand is not None:
        if capture:
            raise Fault("--from starts a simulation; it goes with no command", code=USAGE)
        if name:
            raise Fault("--name goes with --from", "To choose a running one: --instance NAME.", code=USAGE)
        return None
    if name and not capture:
        raise Fault("--name goes with --from", "Or start one: devherd run --simulate --name NAME.", code=USAGE)
    if not capture:
        click.echo(context.get_help())
        return USAGE
    from devherd.cli.run import run

    return int(context.invoke(run, simulate=None, capture=capture, once=False, name=name, keep=False, as_json=as_json))


@simulate.group()
def pod() -> None:
    """Add a pod to the simulated node, or remove one."""


@pod.command("add")
@click.argument("name")
@click.option("--request", "requests", multiple=True, metavar="RESOURCE=N", help="Devices it asks for; repeatable.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--wait", default=10.0, show_default=True, type=click.FloatRange(min=0), help="Seconds to wait for it.")
@common
def pod_add(app: App, name: str, requests: tuple[str, ...], namespace: str, wait: float) -> int:
    """Add a pod, and say what it got.

    A resource may be named without its domain when that is clear: --request fuse=1.
    Exits 1 when the kubelet rejects it, 5 when it neither runs nor failed in time.
    """
    check_pod_name(name, namespace)
    link = Link.to(app.place)
    wanted = _requests(link, requests)
    with app.out.progress(f"pod {name}"):
        made = link.kubelet("pod-add", within=wait + 10, name=name, namespace=namespace, requests=wanted, wait=wait)
    if app.out.as_json:
        app.out.document(made)
    else:
        _show_pod(app, made)
    return {"Running": OK, "Succeeded": OK, "Failed": ERROR}.get(made["phase"], TIMEOUT)


@pod.command("rm")
@click.argument("name")
@click.option("--namespace", default="default", show_default=True)
@common
def pod_rm(app: App, name: str, namespace: str) -> int:
    """Remove a pod; its devices are free again when this returns."""
    check_pod_name(name, namespace)
    reply = Link.to(app.place).kubelet("pod-rm", within=20.0, name=name, namespace=namespace, wait=10)
    if app.out.as_json:
        app.out.document(reply)
    else:
        app.out.say(f"pod {name} removed")
    return OK


@simulate.command()
@common
def pods(app: App) -> int:
    """All pods: state, devices, and why one does not run."""
    found = Link.to(app.place).pods()
    if app.out.as_json:
        app.out.document({"pods": found})
    elif found:
        app.out.table(POD_HEADS, pod_rows(found))
    else:
        app.out.say("no pods; add one: devherd simulate pod add NAME --request RESOURCE=1", QUIET)
    return OK


@simulate.command()
@common
def node(app: App) -> int:
    """The node's resources as the kubelet sees them."""
    found = Link.to(app.place).node()
    if app.out.as_json:
        app.out.document(found)
        return OK
    app.out.table(NODE_HEADS, node_rows(found), right=NODE_FIGURES)
    if found["frozen"]:
        app.out.say("The kubelet is frozen: it accepts and answers nothing.", BAD)
    elif found["healthz"] != "ok":
        app.out.say(f"The kubelet hangs in {found['loop']['doing']}: {found['healthz']}", BAD)
    return OK


@simulate.command()
@click.argument("action", type=click.Choice(("restart", "stop", "start", "kill", "freeze", "unfreeze")))
@common
def kubelet(app: App, action: str) -> int:
    """Restart, stop, start, kill or freeze the simulated kubelet.

    After a start: when each resource was allocatable again, counted from the kubelet's socket.
    """
    link = Link.to(app.place)
    before = _expected(link) if action == "restart" else _offered(app) if action == "start" else []
    with app.out.progress(f"kubelet {action}"):
        reply = link.runner("kubelet", action=action)
        node = _settled(link, before) if action in ("restart", "start") else None
    if node is not None:
        return _show_back(app, f"kubelet {action}ed (pid {node['pid']})", node, before, [])
    if app.out.as_json:
        app.out.document(reply)
    else:
        done = {"stop": "stopped", "kill": "killed", "freeze": "frozen: it accepts and answers nothing"}
        app.out.say(f"kubelet {done.get(action, 'goes on')}")
    return OK


@simulate.command()
@common
def reboot(app: App) -> int:
    """Power cut and boot: every process and container gone, a new boot id, then everything starts.

    Exits 1 when a pod that ran before was lost.
    """
    link = Link.to(app.place)
    before = _expected(link)
    running = [pod["name"] for pod in link.pods() if pod["phase"] == "Running"]
    with app.out.progress("rebooting the simulated node"):
        link.runner("reboot")
        node = _settled(link, before, running)
    return _show_back(app, "rebooted", node, before, _lost(link, running))


@simulate.command("break")
@click.argument("device")
@common
def break_(app: App, device: str) -> int:
    """A device falls off the bus: DEVICE is its path, like /dev/accel/accel3."""
    return _hardware(app, f"{device} is broken", "break", device=device)


@simulate.command()
@click.argument("device")
@common
def heal(app: App, device: str) -> int:
    """A broken device comes back."""
    reply = Link.to(app.place).runner("heal", device=device)
    if app.out.as_json:
        app.out.document(reply)
        return OK
    now = str(reply.get("device") or device)
    app.out.say(
        f"{device} is back" + (f" as {now}: its number belongs to another device by now" if now != device else "")
    )
    app.out.say(
        "It counts as healthy once it was fine for health.recover (10 s by default): devherd explain " + now, QUIET
    )
    return OK


@simulate.command()
@click.argument("moves", nargs=-1, required=True, metavar="OLD=NEW...")
@common
def renumber(app: App, moves: tuple[str, ...]) -> int:
    """The kernel numbers devices differently: /dev/accel/accel5=/dev/accel/accel4.

    All moves happen at once; swaps are fine. A pod must never get the wrong device through it.
    """
    pairs = dict(move.partition("=")[::2] for move in moves)
    if not all(pairs.values()):
        raise Fault("give each move as OLD=NEW, two device paths", code=USAGE)
    return _hardware(app, f"{count(len(pairs), 'device')} moved", "renumber", moves=pairs)


@simulate.command()
@click.argument("plugin")
@click.argument("options", nargs=-1, metavar="[OPTION=VALUE]...")
@common
def hardware(app: App, plugin: str, options: tuple[str, ...]) -> int:
    """Change the hardware that PLUGIN simulates: how much, of what kind, in what state.

    A fault is an option too: gpu-amd lost=[3] takes GPU 3 off the bus, lost=[] brings it back. Values are JSON; what is
    no JSON is text. Without OPTION the present ones are shown.
    """
    changes: dict[str, Any] = {}
    for word in options:
        key, equals, text = word.partition("=")
        if not equals:
            raise Fault(f"{word}: no =", "Write OPTION=VALUE, as in lost=[3].", code=USAGE)
        changes[key] = _json_or_text(text)
    if changes:
        return _hardware(app, f"{plugin}: {', '.join(options)}", "alter", plugin=plugin, options=changes)
    app.out.document(Link.to(app.place).runner("node").get("hardware", {}).get(plugin, {}))
    return OK


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@simulate.command("set", epilog=help_text())
@click.argument("options", nargs=-1, metavar="[OPTION=VALUE]...")
@common
def set_(app: App, options: tuple[str, ...]) -> int:
    """Change the simulated kubelet's timing and faults.

    Without OPTION all options are listed, with their present values and what they mean.
    """
    import json

    changes = parse(options)
    now = Link.to(app.place).kubelet("set", options=changes)["options"]
    if app.out.as_json:
        app.out.document(now)
    else:
        told = meanings()
        rows = [
            [key, json.dumps(value), told.get(key, "")] for key, value in now.items() if not options or key in changes
        ]
        app.out.table(("OPTION", "VALUE", "WHAT"), rows)
    return OK


@simulate.command()
@common
def log(app: App) -> int:
    """What happened in the simulated kubelet since it started."""
    events = Link.to(app.place).kubelet("log")["events"]
    if app.out.as_json:
        app.out.document({"events": events})
        return OK
    first = events[0]["t"] if events else 0.0
    for event in events:
        line = event_line(event) or Text(" ".join(f"{k}={v}" for k, v in event.items() if k not in ("seq", "t")), QUIET)
        app.out.console.print(Text(f"{(event['t'] - first) * 1000:>12,.1f} ms  ").append_text(line), soft_wrap=True)
    return OK


@simulate.command()
@json_option
def nodes(as_json: bool) -> int:
    """The nodes that ship with devherd: devherd run --simulate NODE."""
    from devherd.sim.nodespec import load, names

    out = make_out(as_json)
    found = {name: load(name) for name in names()}
    if as_json:
        out.document({name: {"title": spec.title} for name, spec in found.items()})
    else:
        out.table(("NODE", "WHAT IT HAS"), [[name, spec.title] for name, spec in found.items()])
    return OK


def _requests(link: Link, texts: Sequence[str]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    names = list(link.node()["resources"])
    for text in texts:
        name, sign, number = text.partition("=")
        if not name or (sign and not number.isdecimal()):
            raise Fault(f"--request {text!r} is neither RESOURCE nor RESOURCE=N", code=USAGE)
        full = full_name(name, names)
        if "/" not in name and not full:
            raise Fault(f"there is no resource {name!r}", choices(name, names, "No resource is there yet."))
        wanted[full or name] = int(number) if sign else 1
    return wanted


def _show_pod(app: App, made: Json) -> None:
    app.out.say(f"pod {made['name']}  {made['reason'] or made['phase']}", GOOD if made["phase"] == "Running" else BAD)
    if why(made):
        app.out.say(f"  {why(made)}")
    for container in made["containers"]:
        for resource, ids in container["devices"].items():
            app.out.say(f"  {resource}: {listing(map(short, ids))}")
        for item in (container["record"] or {}).get("nodes", ()):
            app.out.say(f"  {item['container_path']}  ({item['permissions']}, {item.get('number', '')})", QUIET)


def _hardware(app: App, text: str, op: str, **fields: Any) -> int:
    reply = Link.to(app.place).runner(op, **fields)
    if app.out.as_json:
        app.out.document(reply)
    else:
        app.out.say(text)
        app.out.say("See it: devherd devices", QUIET)
    return OK


def _offered(app: App) -> list[str]:
    """Resources that the plugins offer: those a kubelet that starts will have."""
    answers = ask_fronts(app.place, {"op": "status"})
    resources = [item for reply in answers.replies for item in reply.get("resources", ())]
    return [str(item["name"]) for item in resources if not item.get("draining")]


def _expected(link: Link) -> list[str]:
    """Resources that have devices now: those a kubelet must have again later."""
    try:
        found = link.node()["resources"]
    except Fault:
        return []
    return [name for name, item in found.items() if not item["stopped"]]


def _settled(link: Link, expected: Sequence[str], running: Sequence[str] = ()) -> Json:
    """The node once every expected resource is back and the pods have run or failed, or after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while True:
        node = link.node()
        pending = running and not all(settled(pod) for pod in link.pods() if pod["name"] in running)
        if (back(node, expected) and not pending) or time.monotonic() > deadline:
            return node
        time.sleep(0.02)


def _lost(link: Link, running: Sequence[str]) -> list[str]:
    phases = {pod["name"]: pod["phase"] for pod in link.pods()}
    return [name for name in running if phases.get(name) != "Running"]


def _show_back(app: App, done: str, node: Json, expected: Sequence[str], lost: Sequence[str]) -> int:
    times = reregistered_of(node)
    missing = [name for name in expected if not back(node, [name])]
    good = not missing and not lost
    if app.out.as_json:
        app.out.document({"pid": node["pid"], "reregistered_ms": times, "missing": missing, "pods_lost": list(lost)})
        return OK if good else ERROR
    app.out.say(done, GOOD if good else BAD)
    rows: list[list[str | Text]] = [[name, millis(times.get(name))] for name in times]
    if rows:
        app.out.table(("RESOURCE", "ALLOCATABLE AFTER"), rows, right=("ALLOCATABLE AFTER",))
    for name in missing:
        app.out.say(f"{name} is not back", BAD)
    for name in lost:
        app.out.say(f"pod {name} was lost; why: devherd simulate pods", BAD)
    return OK if good else ERROR

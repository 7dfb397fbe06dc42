"""`devherd run`: the whole system in the foreground, simulated or against this node's kubelet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devherd.cli.app import App, common
from devherd.cli.exits import ERROR, IN_USE, OK, USAGE, Fault
from devherd.cli.output import GOOD, QUIET
from devherd.cli.place import NODE_CONFIG, Place, read_settings
from devherd.cli.words import listing
from devherd.settings import Settings

if TYPE_CHECKING:
    from devherd.run.instance import Instance, Wish
    from devherd.run.leftovers import Leftovers
    from devherd.run.source import Source

DEFAULT_NODE = "workshop"


@click.command()
@click.option(
    "--simulate",
    is_flag=False,
    flag_value=DEFAULT_NODE,
    metavar="[NODE]",
    help=f"Simulate kubelet and node. NODE: a name from `devherd simulate nodes`, or a YAML file. [{DEFAULT_NODE}]",
)
@click.option("--from", "capture", metavar="FILE", help="Simulate the node of a `devherd capture` (or doctor bundle).")
@click.option("--once", is_flag=True, help="Walk the main job once, on simulated and on real device nodes, and exit.")
@click.option("--name", metavar="NAME", help="Name of the private instance, to run several.")
@click.option("--keep", is_flag=True, help="Keep the instance's folder (logs, state) after the end.")
@common
def run(app: App, simulate: str | None, capture: str | None, once: bool, name: str | None, keep: bool) -> int:
    """Run everything in the foreground until Ctrl-C, which leaves nothing behind.

    With --simulate: supervisord, the plugins, a kubelet and a node, all private, no root needed.
    Without: the same processes for this node's kubelet, with the rules in /etc/devherd (or --config); as root.
    Sockets, state and logs are then still in a private folder; it is named at the start.

    Exits 0 when Ctrl-C ended it; --once, which ends by itself, exits 130 when it was interrupted.
    """
    from devherd.run.instance import stop_on_signals
    from devherd.run.layout import InUse

    _refuse_nonsense(app, simulate, capture, once, name, keep)
    app.out.follows = not once
    try:
        with stop_on_signals():
            if once:
                from devherd.cli.once import run_once

                return run_once(app.out, name or "once", simulate or DEFAULT_NODE)
            if capture:
                wish = replayed(capture, keep)
            else:
                wish = _simulated(simulate, keep) if simulate else _for_this_node(app.config, keep)
            return foreground(app, wish, name or "default")
    except InUse as error:
        raise Fault(str(error), "Another name: --name NAME", code=IN_USE) from None
    except KeyboardInterrupt:
        if once:
            raise
        return OK


def _refuse_nonsense(
    app: App, simulate: str | None, capture: str | None, once: bool, name: str | None, keep: bool
) -> None:
    """Raises Fault for options that would only be ignored together, and for a name that cannot be one."""
    from devherd.run.layout import Layout

    wrong = {
        "--once walks a node whose devices it knows; leave --from out": once and capture,
        "--once brings its own configuration; leave --config out": once and app.config_given,
        "--once leaves nothing behind; leave --keep out": once and keep,
        "--simulate and --from both name the node; leave one out": simulate and capture,
        "--config is for this node; a simulated one brings its own": app.config_given and (simulate or capture),
        "--instance names an instance that runs; to name this one: --name": app.instance,
    }
    for text, given in wrong.items():
        if given:
            raise Fault(text, code=USAGE)
    try:
        Layout.named("default" if name is None else name)
    except ValueError as error:
        raise Fault(str(error), code=USAGE) from None


def foreground(app: App, wish: Wish, name: str) -> int:
    """Start an instance and show it until Ctrl-C. Raises InUse, Fault."""
    from devherd.cli.feed import Feed
    from devherd.cli.link import Link
    from devherd.cli.live import LiveView
    from devherd.run.instance import Instance
    from devherd.run.source import Source
    from devherd.run.supervisor import StartFailed

    instance = Instance(wish, name)
    try:
        with app.out.progress("starting supervisord and the plugins"):
            instance.start()
    except StartFailed as error:
        raise Fault(f"it did not start: {error}", "With --keep the logs stay where they are.") from None
    except KeyboardInterrupt:
        app.out.note("stopped before it ran, nothing left behind", GOOD)
        return OK
    source = Source(instance) if wish.source else None
    try:
        folder = Path(instance.layout.folder)
        place = Place(read_settings(instance.layout.config), instance.layout.config, folder)
        link = Link(folder) if wish.simulate_kubelet else None
        _announce(app, instance)
        device = instance.node.present()[0] if instance.node is not None and instance.node.present() else ""
        LiveView(app.out, Feed(place, link), _title(instance), lambda: _alive(app, instance, source), device).run()
    except KeyboardInterrupt:
        pass
    finally:
        with app.out.progress("stopping"):
            left = instance.stop()
        _farewell(app, instance, left)
    return ERROR if len(left) else OK


def _announce(app: App, instance: Instance) -> None:
    if app.out.as_json:
        layout = instance.layout
        ready = {"event": "ready", "pid": os.getpid(), "folder": layout.folder, "config": layout.config}
        app.out.document(ready, indent=None)
    else:
        app.out.note(f"running in {instance.layout.folder}")
    if instance.wish.source or not instance.wish.simulate_kubelet:
        _announce_private(app, instance)


def _announce_private(app: App, instance: Instance) -> None:
    """What of a node's configuration counts here, what does not, and how to reach this supervisord."""
    etc = instance.wish.settings.get("paths", {}).get("etc", Settings().paths.etc)
    given = instance.wish.source or "no devherd.yaml: defaults"
    app.out.note(f"settings: {given}; rules: {etc}/plugins.d; edits count after SIGHUP")
    app.out.note("private, whatever paths.run, state, log and cache say: sockets, state and logs are in that folder")
    ctl = f"{sys.executable} -m supervisor.supervisorctl -c {instance.layout.supervisor_config}"
    app.out.note(f"its supervisor: {ctl} signal HUP generic")


def _farewell(app: App, instance: Instance, left: Leftovers) -> None:
    what = [f"process {pid} ({command})" for pid, command in left.processes] + list(left.sockets)
    if app.out.as_json:
        app.out.document({"event": "stopped", "leftover": len(left), "leftover_what": what}, indent=None)
    elif what:
        app.out.note(f"had to be ended by force: {listing(what)}", "red")
    else:
        app.out.note("stopped, nothing left behind", GOOD)
    if instance.wish.keep:
        app.out.note(f"kept: {instance.layout.folder}", QUIET)


def _title(instance: Instance) -> str:
    node = instance.node
    if node is not None:
        return f"simulated node {node.spec.name!r}" + (f": {node.spec.title}" if node.spec.title else "")
    return "this node's devices and kubelet"


def _alive(app: App, instance: Instance, source: Source | None) -> None:
    """Raises Fault when a part is gone that nothing brings back, unless a reboot is simulated just now."""
    if source is not None and (news := source.follow()):
        app.out.note(news)
    if instance.has_kubelet and not instance.kubelet.helper_alive:
        raise Fault("the helper process of the simulated kubelet has ended, and the kubelet with it", "Start anew.")
    if instance.supervisor.pid is not None:
        return
    with instance.turn():
        if instance.supervisor.pid is None:
            raise Fault(f"supervisord has ended:\n{instance.supervisor.last_words()}")


def _simulated(node: str, keep: bool) -> Wish:
    from devherd.config import ConfigError
    from devherd.run.instance import Wish
    from devherd.sim.nodespec import load, names

    if "/" not in node and node not in names():
        raise Fault(f"there is no node {node!r}", f"There are: {', '.join(names())}; or give a file.", code=USAGE)
    try:
        spec = load(node)
    except ConfigError as error:
        raise Fault(f"{node} cannot be used:\n{error}") from None
    return Wish(node=spec, keep=keep)


def replayed(path: str, keep: bool = False) -> Wish:
    """The node of a capture, with its plugin configurations and settings. Raises Fault."""
    from devherd.capture.about import settings_of
    from devherd.capture.archive import Capture, CaptureError
    from devherd.run.instance import Wish

    try:
        capture = Capture.load(path)
        return Wish(node=capture, settings=settings_of(capture), keep=keep)
    except CaptureError as error:
        raise Fault(str(error)) from None


def _for_this_node(config: str | None, keep: bool) -> Wish:
    from devherd.run.instance import Wish
    from devherd.run.source import sections

    path = config or NODE_CONFIG
    settings = read_settings(path) if config or os.path.exists(path) else Settings()
    _check_this_node(settings)
    return Wish(
        node=None,
        simulate_kubelet=False,
        plugin_configs={},
        settings=sections(settings),
        keep=keep,
        source=os.path.abspath(path) if os.path.exists(path) else "",
    )


def _check_this_node(settings: Settings) -> None:
    """Refuse what can only fail, with what to do about it."""
    paths = settings.paths
    service = Path(paths.run) / "supervisor.sock"
    if service.exists():
        hint = "Stop it first (systemctl stop devherd), or ask it: devherd status."
        raise Fault(f"devherd runs on this node already ({service})", hint, code=IN_USE)
    folder = Path(paths.device_plugins)
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        hint = "Run it as root, or try it without: devherd run --simulate."
        raise Fault(f"{nearest}: permission denied; the kubelet's device plugin folder belongs to root", hint)

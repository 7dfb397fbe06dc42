"""`devherd detach` and `attach`: a plugin lets go of its driver, so that it can be unloaded or a device be reset."""

from __future__ import annotations

import getpass
from typing import Any

import click

from devherd.cli.app import App, common
from devherd.cli.asking import ask_fronts, ask_one, sockets
from devherd.cli.exits import IN_USE, OK, USAGE, Fault
from devherd.cli.output import BAD, GOOD, QUIET
from devherd.cli.words import count, listing

IN_TIME = 30.0
"""Seconds for a probe that is busy in its driver to be given up."""


@click.command()
@click.argument("what", metavar="PLUGIN|DEVICE...", nargs=-1, required=True)
@click.option("--reason", default="", help="Shown with every device that cannot be had meanwhile.")
@common
def detach(app: App, what: tuple[str, ...], reason: str) -> int:
    """Have a plugin let go of its driver.

    Its probe ends, and with it every handle on the hardware; the plugin stays registered. Devices that no pod holds
    become Unhealthy: all of the plugin's, or the DEVICEs named. Held ones stay as they are, and pods keep running.
    Lasts until `devherd attach`, over restarts, not over a boot. Exits 4 while pods hold what was meant.
    """
    plugin, names = _meant(app, what)
    request = {"op": "detach", "names": names, "reason": reason, "by": getpass.getuser()}
    reply = ask_one(sockets(app.place.run)[plugin], request, timeout=IN_TIME)
    users = list(reply.get("in_use", ()))
    if app.out.as_json:
        app.out.document({"plugin": plugin, "detached": True, "in_use": users})
    else:
        app.out.say(f"{plugin} has let go of its driver", GOOD)
        for user in users:
            app.out.say(f"  in use: {user['resource']} {user['id']}, held by {user['held_by']}", BAD)
        app.out.say(f"Back again: devherd attach {plugin}", QUIET)
    return IN_USE if users else OK


@click.command()
@click.argument("plugin")
@click.option(
    "--after-reset", is_flag=True, help="What was detached was reset: faults that only a reset ends are over."
)
@common
def attach(app: App, plugin: str, after_reset: bool) -> int:
    """Have a plugin take its driver back after `devherd detach`."""
    known = sockets(app.place.run)
    if plugin not in known:
        raise Fault(f"there is no plugin {plugin!r}", f"There are: {listing(sorted(known))}.", code=USAGE)
    reply = ask_one(known[plugin], {"op": "attach", "by": getpass.getuser(), "after_reset": after_reset})
    if app.out.as_json:
        app.out.document({"plugin": plugin, "detached": False, "was_detached": bool(reply.get("was_detached"))})
    elif reply.get("was_detached"):
        app.out.say(f"{plugin} looks at its hardware again", GOOD)
    else:
        app.out.say(f"{plugin} was not detached: nothing has changed", QUIET)
    return OK


def _meant(app: App, what: tuple[str, ...]) -> tuple[str, list[str]]:
    """The plugin, and the device ids in it; none: all of them. Raises Fault."""
    known = sockets(app.place.run)
    if what[0] in known:
        if len(what) > 1:
            raise Fault("a plugin and devices were named", "Name a plugin, or devices of one plugin.", code=USAGE)
        return what[0], []
    answers = ask_fronts(app.place, {"op": "devices"})
    owners: dict[str, dict[str, Any]] = {}
    for reply in answers.replies:
        for device in reply.get("devices", ()):
            for name in (device["id"], *device.get("things", ())):
                owners.setdefault(str(name), {})[str(reply["plugin"])] = str(device["id"])
    unknown = [name for name in what if name not in owners]
    if unknown:
        raise Fault(
            f"there is no plugin or device {listing(unknown)}",
            f"Plugins: {listing(sorted(known))}; devices: devherd devices.",
            code=USAGE,
        )
    plugins = {plugin for name in what for plugin in owners[name]}
    if len(plugins) > 1:
        raise Fault(f"these are of {count(len(plugins), 'plugin')}", "Name devices of one plugin.", code=USAGE)
    return plugins.pop(), sorted(set(what))

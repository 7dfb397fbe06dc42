"""What the watcher asks of supervisord, over its XML-RPC socket. Runs in a chore's child only: the client's code is
large, and supervisord may be slow to answer.
"""

from __future__ import annotations

import os
import shlex
from itertools import pairwise
from typing import Any

URL = "SUPERVISOR_SERVER_URL"
"""Environment variable in which supervisord tells its children where it listens."""

STOPPED_STATES = ("STOPPED", "EXITED", "FATAL", "UNKNOWN")


def look(config: str) -> list[dict[str, Any]]:
    """Every program: its name, state, exit status, and which plugin it is. Raises what the RPC raises."""
    server = _server()
    settings = _settings(config)
    commands = {_full(item): item for item in server.getAllConfigInfo()}
    rows = []
    for info in server.getAllProcessInfo():
        name = _full(info)
        configured = commands.get(name, {})
        command = shlex.split(str(configured.get("command", "")))
        rows.append(
            {
                "name": name,
                "state": str(info["statename"]).lower(),
                "pid": int(info["pid"]),
                "exit": int(info["exitstatus"]),
                "was_started": bool(info["start"]),
                "exitcodes": [int(code) for code in configured.get("exitcodes", [])],
                **_plugin(command, settings),
            }
        )
    return rows


def start(name: str) -> bool:
    """Start a program that is in a stopped state; True also when it is under way already."""
    import xmlrpc.client

    server = _server()
    state = str(server.getProcessInfo(name)["statename"])
    if state == "UNKNOWN":
        # supervisord refuses to start what it lost track of; taken out and put back in it is new.
        group = name.partition(":")[0]
        server.removeProcessGroup(group)
        server.addProcessGroup(group)
        state = str(server.getProcessInfo(name)["statename"])
    if state not in STOPPED_STATES:
        return True
    try:
        return bool(server.startProcess(name, False))
    except xmlrpc.client.Fault as fault:
        if "ALREADY_STARTED" in fault.faultString:
            return True
        raise


def stop(name: str) -> bool:
    """Stop a program; True also when it does not run."""
    server = _server()
    if str(server.getProcessInfo(name)["statename"]) in (*STOPPED_STATES, "STOPPING"):
        return True
    return bool(server.stopProcess(name, False))


def _server() -> Any:
    import xmlrpc.client

    from supervisor.xmlrpc import SupervisorTransport

    url = os.environ.get(URL, "")
    if not url.startswith("unix://"):
        raise ValueError(f"supervisord has no Unix socket ({URL}={url!r}); programs cannot be started or stopped")
    transport = SupervisorTransport(os.environ.get("SUPERVISOR_USERNAME"), None, serverurl=url)
    return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor


def _full(item: Any) -> str:
    name, group = str(item["name"]), str(item["group"])
    return name if name == group else f"{group}:{name}"


def _plugin(command: list[str], settings: Any) -> dict[str, Any]:
    options = dict(pairwise(command))
    plugin, reference = options.get("--plugin", ""), options.get("--manifest", "")
    if "devherd.front" not in command or not plugin:
        return {"plugin": "", "wakes_on": []}
    try:
        return {"plugin": plugin, "wakes_on": _wakes_on(plugin, reference, settings)}
    except Exception as error:
        return {"plugin": plugin, "wakes_on": [], "problem": f"{plugin}: {type(error).__name__}: {error}"}


def _wakes_on(plugin: str, reference: str, settings: Any) -> list[str]:
    from devherd.trust import refuse_vendor
    from devherd.vendor import load_object

    if not reference:
        return []
    refused = refuse_vendor(plugin, reference, settings)
    if refused:
        raise PermissionError(refused)
    return list(load_object(reference).wakes_on)


def _settings(config: str) -> Any:
    from devherd.config import load_settings
    from devherd.settings import Settings

    return load_settings(config).value or Settings()

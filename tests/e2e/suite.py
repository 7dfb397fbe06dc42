"""devherd on the real node: its own supervisord, watcher and plugins, started as the package starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devherd.control import ControlError, ask
from devherd.run.instance import Instance, Wish

from e2e import sandbox
from e2e.node import DEVICE_PLUGINS, POD_RESOURCES
from e2e.programs import wait

MAJOR = 240
"""Local and experimental use, by the kernel's list of device numbers."""
GENERIC = "generic"
_PROGRAM = """
[program:{name}]
command = {python} -I -m devherd.launcher --name {name} --lock {run}/{name}.lock --nofile 4096
  -- {python} -m devherd.front --plugin {name} --manifest {manifest} --config {config}
environment = NOTIFY_SOCKET="",PYTHONPATH="{here}"
startsecs = 1
startretries = 1000
autorestart = unexpected
exitcodes = 69
stopwaitsecs = 15
stopasgroup = true
killasgroup = true
redirect_stderr = true
stdout_logfile = {log}/{name}.log
"""


class Devices:
    """Device nodes in the sandbox's /dev: `/dev/<family>/<family><n>`, numbered so that each is known by its number."""

    def __init__(self, families: Mapping[str, int]) -> None:
        self._minors: dict[str, int] = {}
        for index, (family, count) in enumerate(sorted(families.items())):
            for n in range(count):
                self._minors[self.path(family, n)] = 256 * index + n
        for path in self._minors:
            self.appear(path)

    @staticmethod
    def path(family: str, n: int) -> str:
        """The n-th device's node."""
        return f"/dev/{family}/{family}{n}"

    def number(self, path: str) -> tuple[int, int]:
        """Major and minor number."""
        return MAJOR, self._minors[path]

    def appear(self, path: str) -> None:
        """Plug it in."""
        if not os.path.exists(path):
            sandbox.make_node(path, *self.number(path))

    def vanish(self, path: str) -> None:
        """Pull it out."""
        os.unlink(path)


def rule(name: str, family: str, **more: Any) -> dict[str, Any]:
    """A rule of the generic plugin: each node of a family is a device of `name`."""
    return {"name": name, "groups": [{"paths": [{"path": f"/dev/{family}/{family}*"}], **more}]}


class Suite(Instance):
    """devherd under supervisord. `plugins` maps a program's name to the rules it serves.

    `generic` is the program as it is shipped; other names are more programs of the same vendor, each with its own front
    and probe. `vendors` has programs of other vendors: name -> manifest (found beside this file) and configuration.
    """

    def __init__(
        self,
        plugins: Mapping[str, Sequence[Mapping[str, Any]]],
        settings: Mapping[str, Any] | None = None,
        name: str = "e2e",
        vendors: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        paths = {"device_plugins": str(DEVICE_PLUGINS), "pod_resources": POD_RESOURCES, "cdi": "/var/run/cdi"}
        others = dict(vendors or {})
        more = [plugin for plugin in (*plugins, *others) if plugin != GENERIC]
        merged = {"paths": paths, **({"vendors": more} if more else {}), **(settings or {})}
        self._plugins = {
            plugin: json.dumps({"domain": "example.com", "devices": list(rules)}) for plugin, rules in plugins.items()
        }
        self._plugins |= {plugin: json.dumps(config) for plugin, (_, config) in others.items()}
        self._manifests = {plugin: manifest for plugin, (manifest, _) in others.items()}
        wish = Wish(
            node=None,
            simulate_kubelet=False,
            plugin_configs=self._plugins,
            settings=merged,
            programs=["watcher", *([GENERIC] if GENERIC in plugins else [])],
        )
        super().__init__(wish, name)

    def _prepare(self) -> None:
        super()._prepare()
        layout = self.layout
        for plugin in self._plugins:
            if plugin != GENERIC:
                program = _PROGRAM.format(
                    name=plugin,
                    manifest=self._manifests.get(plugin, f"more_generic:{plugin}"),
                    python=sys.executable,
                    here=Path(__file__).parent,
                    run=layout.run,
                    config=layout.config,
                    log=layout.log,
                )
                Path(layout.at("etc", "supervisord.d", f"{plugin}.conf")).write_text(program)

    @property
    def programs(self) -> tuple[str, ...]:
        """The plugins' program names."""
        return tuple(self._plugins)

    def configure(self, plugin: str, rules: Sequence[Mapping[str, Any]]) -> None:
        """Write other rules of a plugin and have them read."""
        self.reconfigure(plugin, {"domain": "example.com", "devices": list(rules)})

    def reconfigure(self, plugin: str, config: Mapping[str, Any]) -> None:
        """Write another configuration of a plugin and have it read."""
        path = Path(self.layout.at("etc", "plugins.d", f"{plugin}.yaml"))
        path.write_text(json.dumps(config))
        os.kill(self.front(plugin)["pid"], signal.SIGHUP)

    def front(self, plugin: str = GENERIC) -> dict[str, Any]:
        """A front's status. Raises ControlError."""
        return ask(self.layout.at("run", f"{plugin}.control.sock"), {"op": "status"})

    def holder(self, plugin: str, resource: str) -> str:
        """Who holds the first held device of a resource, by PodResources; empty: nobody, or not known yet."""
        rows = ask(self.layout.at("run", f"{plugin}.control.sock"), {"op": "devices"})["devices"]
        return next((str(row["held_by"]) for row in rows if row["resource"] == resource and row["held_by"]), "")

    def watcher(self) -> dict[str, Any]:
        """The watcher's status. Raises ControlError."""
        return ask(self.layout.at("run", "watcher.control.sock"), {"op": "status"})

    def states(self) -> dict[str, dict[str, Any]]:
        """Resource -> what its front says of it; a front that does not answer has none."""
        return {one["name"]: one for plugin in self._plugins for one in self._resources(plugin)}

    def _resources(self, plugin: str) -> list[dict[str, Any]]:
        try:
            return list(self.front(plugin)["resources"])
        except ControlError:
            return []

    def wait_registered(self, *resources: str, timeout: float = 60.0) -> None:
        """Wait until each resource's list is confirmed by the kubelet."""

        def look() -> bool:
            states = self.states()
            return all(states.get(name, {}).get("state") == "registered" for name in resources)

        wait(look, timeout, f"registered: {', '.join(resources)}", every=0.02)

    def healthy(self, resource: str) -> int:
        """How many healthy devices the front lists; -1 when it does not know the resource."""
        return int(self.states().get(resource, {}).get("healthy", -1))

    def supervisorctl(self, *arguments: str) -> str:
        """As an operator does it."""
        command = [sys.executable, "-m", "supervisor.supervisorctl", "-c", self.layout.supervisor_config, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def crash(self) -> None:
        """A power cut: every process is gone, and what was in /run."""
        self.supervisor.crash()
        self._clear_run()

    def boot(self, timeout: float = 60.0) -> None:
        """Start as a boot does; returns when the watcher is ready, which is when systemd goes on."""
        self.supervisor.start(timeout)

    def power_cycle(self) -> None:
        """Both, and the fronts serve what they served before: what a boot waits for before the kubelet starts."""
        before = {one: state["healthy"] for one, state in self.states().items()}
        self.crash()
        self.boot()
        wait(lambda: {one: self.healthy(one) for one in before} == before, 60, f"served: {before}", every=0.02)

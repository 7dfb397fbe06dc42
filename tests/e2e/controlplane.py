"""etcd, an API server and a scheduler on loopback: enough of a cluster for one node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.programs import Program, wait

_ETCD, _PEER, _API = 12379, 12380, 16443
_TOKEN = "e2e"


class ControlPlane:
    """One. `programs` maps etcd, kube-apiserver, kube-scheduler and kubectl to their paths."""

    def __init__(self, folder: Path, programs: Mapping[str, Path]) -> None:
        self._folder = folder
        self._programs = programs
        self.kubeconfig = folder / "kubeconfig"
        self.etcd = Program("etcd", folder)
        self.api = Program("kube-apiserver", folder)
        self.scheduler = Program("kube-scheduler", folder)

    def start(self) -> None:
        """Start all three, each when the one before answers."""
        self._write_files()
        self.etcd.start(self._etcd())
        wait(lambda: self._health(f"http://127.0.0.1:{_ETCD}/health"), 60, f"etcd\n{self.etcd.tail()}")
        self.api.start(self._api())
        wait(self._ready, 120, "the API server is ready")
        self.scheduler.start(
            [
                str(self._programs["kube-scheduler"]),
                *("--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port", "0"),
            ]
        )

    @property
    def running(self) -> bool:
        """Whether the API server runs."""
        return self.api.running

    def wait_ready(self, node: str, timeout: float = 90.0) -> None:
        """Wait until the node counts as ready."""

        def ready() -> bool:
            conditions = self.get("node", node).get("status", {}).get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        wait(ready, timeout, f"node {node} is ready", every=0.3)

    def stop(self) -> None:
        """Stop all three."""
        for program in (self.scheduler, self.api, self.etcd):
            program.stop(signal.SIGTERM, timeout=20)

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Run kubectl; `text` is its standard input."""
        command = [str(self._programs["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, document: Mapping[str, Any]) -> None:
        """Create or change one object."""
        self.kubectl("apply", "-f", "-", text=json.dumps(document))

    def get(self, *arguments: str) -> dict[str, Any]:
        """Objects as a document; empty when there is none."""
        text = self.kubectl("get", *arguments, "-o", "json", check=False)
        return dict(json.loads(text)) if text.strip() else {}

    def resources(self, node: str) -> dict[str, tuple[int, int]]:
        """Extended resource -> (capacity, allocatable) of the node object."""
        status = self.get("node", node).get("status", {})
        capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
        return {name: (int(count), int(allocatable.get(name, 0))) for name, count in capacity.items() if "/" in name}

    def _ready(self) -> bool:
        return self.kubectl("get", "--raw", "/readyz", check=False).strip() == "ok"

    def _health(self, url: str) -> bool:
        done = subprocess.run(
            [str(self._programs["kubectl"]), "--server", url.rpartition("/")[0], "get", "--raw", "/health"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        return "true" in done.stdout

    def _write_files(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "tokens.csv").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
        key = self._folder / "sa.key"
        if not key.exists():
            subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
            public = ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(self._folder / "sa.pub")]
            subprocess.run(public, check=True, capture_output=True)
        cluster = {"server": f"https://127.0.0.1:{_API}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        self.kubeconfig.write_text(json.dumps(document))
        os.chmod(self.kubeconfig, 0o600)

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{_ETCD}", f"http://127.0.0.1:{_PEER}"
        return [
            *(str(self._programs["etcd"]), "--data-dir", str(self._folder / "etcd-data"), "--log-level", "warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", "--unsafe-no-fsync"),
        ]

    def _api(self) -> list[str]:
        folder = self._folder
        return [
            *(str(self._programs["kube-apiserver"]), "--etcd-servers", f"http://127.0.0.1:{_ETCD}"),
            *("--service-cluster-ip-range", "10.96.0.0/24", "--service-account-issuer", "https://e2e"),
            *("--service-account-key-file", str(folder / "sa.pub")),
            *("--service-account-signing-key-file", str(folder / "sa.key")),
            *("--authorization-mode", "AlwaysAllow", "--token-auth-file", str(folder / "tokens.csv")),
            *("--cert-dir", str(folder / "certs"), "--bind-address", "127.0.0.1", "--secure-port", str(_API)),
            *("--advertise-address", "10.99.0.1", "--allow-privileged=true"),
            *("--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition"),
        ]

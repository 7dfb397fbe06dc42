"""Node labels about NVIDIA GPUs, named as NVIDIA's GPU feature discovery names them.

Where that program runs nothing is written: two sources of one label take turns.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from devherd.host.nfd import label_value
from devherd.host.sysfs import Sysfs

from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.gpus import Found, Gpu, MigDevice
from devherd_gpu.nvidia.resources import Plan, Unit

if TYPE_CHECKING:
    from devherd.host import Host

PREFIX = "nvidia.com/"
THEIR_FILE = "gfd"
THEIR_PROGRAM = b"gpu-feature-discovery"
_LOOK_AGAIN = 600.0
"""Seconds between two looks through the processes."""

# Compute capability to the architecture's name, as CUDA's documents have them.
_FAMILIES = {
    (12, 0): "blackwell",
    (10, 0): "blackwell",
    (9, 0): "hopper",
    (8, 9): "ada-lovelace",
    (8, 0): "ampere",
    (7, 5): "turing",
    (7, 0): "volta",
    (6, 0): "pascal",
    (5, 0): "maxwell",
    (3, 0): "kepler",
}


class Theirs:
    """Whether GPU feature discovery is at work here."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._looked = -_LOOK_AGAIN
        self._running = False

    def active(self) -> bool:
        """True when its file or its process is here."""
        if os.path.exists(os.path.join(self._host.paths.features, THEIR_FILE)):
            return True
        if time.monotonic() - self._looked >= _LOOK_AGAIN:
            self._looked, self._running = time.monotonic(), self._process()
        return self._running

    def _process(self) -> bool:
        folder = self._host.paths.proc
        try:
            pids = [name for name in os.listdir(folder) if name.isdecimal()]
        except OSError:
            return False
        return any(self._is_theirs(os.path.join(folder, pid, "cmdline")) for pid in pids)

    @staticmethod
    def _is_theirs(path: str) -> bool:
        try:
            with open(path, "rb") as file:
                return THEIR_PROGRAM in file.read(512).partition(b"\0")[0]
        except OSError:
            return False


def labels(host: Host, config: Config, found: Found, plan: Plan) -> dict[str, str]:
    """Every label; empty without a GPU. A property that GPUs of one name do not share has no label."""
    whole = [gpu for gpu in found.gpus if gpu.pci and not gpu.lost]
    if not whole:
        return {}
    result = {
        "gpu.machine": label_value(Sysfs(host).text("/sys/class/dmi/id/product_name") or "unknown"),
        "mig.capable": str(any(gpu.compute >= (8, 0) and _can_mig(gpu) for gpu in whole)).lower(),
        "mps.capable": str(all(gpu.compute >= (3, 5) for gpu in whole)).lower(),
        **_versions(found),
    }
    if config.mig != "none":
        result["mig.strategy"] = config.mig
    for name in sorted({unit.name for unit in plan.units}):
        result |= _resource(name, [unit for unit in plan.units if unit.name == name])
    return {f"{PREFIX}{key}": value for key, value in result.items() if value}


def _can_mig(gpu: Gpu) -> bool:
    """Data centre GPUs of the generations that have MIG."""
    return gpu.mig or any(
        model in gpu.name for model in ("A100", "A30", "H100", "H200", "H20", "GH200", "B200", "GB200")
    )


def _versions(found: Found) -> dict[str, str]:
    major, _, rest = found.driver.partition(".")
    minor, _, revision = rest.partition(".")
    cuda = found.cuda
    return {
        "cuda.driver-version.full": found.driver,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.runtime-version.full": f"{cuda[0]}.{cuda[1]}" if cuda[0] else "",
        "cuda.runtime-version.major": str(cuda[0]) if cuda[0] else "",
        "cuda.runtime-version.minor": str(cuda[1]) if cuda[0] else "",
        # The names before 0.15, which many selectors still use.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": str(cuda[0]) if cuda[0] else "",
        "cuda.runtime.minor": str(cuda[1]) if cuda[0] else "",
    }


def _resource(name: str, units: Sequence[Unit]) -> dict[str, str]:
    """The labels of one resource: `gpu.product`, or `mig-1g.10gb.product` under mig: mixed."""
    short = name.partition("/")[2].removesuffix(".shared")
    share = units[0].share
    replicas = share.replicas if share else 1
    gpus = [unit.target.gpu for unit in units]
    migs = [unit.target.mig for unit in units if unit.target.mig is not None]
    shared = "-SHARED" if share and name.partition("/")[2] == short else ""
    profile = _same(mig.profile.replace("+", ".") for mig in migs)
    product = _same(gpu.name for gpu in gpus)
    found = {
        "product": label_value(product + (f"-MIG-{profile}" if profile else "")) + shared if product else "",
        "count": str(len(units)),
        "replicas": str(replicas),
        "memory": _same(str(mig.memory) for mig in migs) or _same(str(gpu.memory >> 20) for gpu in gpus if gpu.memory),
        "sharing-strategy": share.mode if share else "none",
        **_slices(migs),
    }
    if not migs:
        found |= _architecture(gpus) | {"mode": "compute"}
    return {f"{short}.{key}": value for key, value in found.items()}


def _architecture(gpus: Sequence[Gpu]) -> dict[str, str]:
    major, minor = (_same(str(gpu.compute[n]) for gpu in gpus if any(gpu.compute)) for n in (0, 1))
    return {
        "compute.major": major,
        "compute.minor": minor,
        "family": _same(family(gpu.compute) for gpu in gpus),
    }


def _slices(migs: Sequence[MigDevice]) -> dict[str, str]:
    return {
        "slices.gi": _same(str(mig.slices) for mig in migs),
        "multiprocessors": _same(str(mig.multiprocessors) for mig in migs if mig.multiprocessors),
    }


def family(compute: tuple[int, int]) -> str:
    """The architecture of a compute capability; `undefined` for none that is known."""
    fitting = [known for known in _FAMILIES if known[0] == compute[0] and known <= compute]
    return _FAMILIES[max(fitting)] if fitting else "undefined"


def _same(values: Iterable[str]) -> str:
    """The one value that all have; empty when they differ or there is none."""
    counts = Counter(values)
    return next(iter(counts)) if len(counts) == 1 else ""

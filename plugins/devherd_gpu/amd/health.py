"""Evidence about AMD GPUs from sysfs: KFD's nodes, RAS counters, retired memory, temperatures, the metrics exporter.

A suspended GPU (runtime power management) is not read: a look at its sensors would wake it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from devherd.host import Host
from devherd.host.pci import FOLDER as PCI
from devherd.host.sysfs import Sysfs
from devherd.values import Clears, Evidence, Severity

from devherd_gpu.amd import exporter
from devherd_gpu.amd.config import Health
from devherd_gpu.amd.gpus import Gpu

_COUNT = re.compile(r"^(ue|ce):\s*(\d+)", re.MULTILINE)
_ERRORS = re.compile(r"(\w+)_err_count")
_PAGE = re.compile(r"^0x[0-9a-f]+\s*:\s*0x[0-9a-f]+\s*:\s*([RPF])", re.MULTILINE | re.IGNORECASE)
_TEMPERATURE = re.compile(r"(temp\d+)_input")


def compute(gpus: Iterable[Gpu]) -> Iterator[Evidence]:
    """Whether KFD has a node for each partition: without one no program can compute on it."""
    for gpu in gpus:
        for part in gpu.partitions:
            thing = part.thing if len(gpu.partitions) > 1 else gpu.thing
            reason = f"{part.id} has no KFD node: the compute driver does not serve it (see dmesg)"
            yield Evidence(thing, "kfd", part.kfd is None, reason)


class Checks:
    """Looks at GPUs again and again. It remembers RAS counters, because only an increase is news."""

    def __init__(self, host: Host, config: Health) -> None:
        self._host = host
        self._sysfs = Sysfs(host)
        self._config = config
        self._uncorrectable: dict[tuple[str, str], int] = {}

    def check(self, gpus: Iterable[Gpu]) -> Iterator[Evidence]:
        """One round."""
        gpus = tuple(gpus)
        yield from self._exporter(gpus)
        for gpu in gpus:
            folder = f"{PCI}/{gpu.address}"
            if self._sysfs.text(f"{folder}/power/runtime_status") == "suspended":
                continue
            yield from self._ras(gpu, folder)
            yield from self._pages(gpu, folder)
            yield from self._heat(gpu, folder)

    def _exporter(self, gpus: Iterable[Gpu]) -> Iterator[Evidence]:
        place = self._config.exporter
        said = exporter.unhealthy(self._host.path(place)) if place else None
        for gpu in gpus if said is not None else ():
            bad = gpu.address in (said or ())
            yield Evidence(gpu.thing, "exporter", bad, "AMD's metrics exporter calls it unhealthy")

    def _ras(self, gpu: Gpu, folder: str) -> Iterator[Evidence]:
        """Uncorrectable errors (Documentation/gpu/amdgpu/ras.rst). They count from the driver's load on."""
        for name in self._sysfs.names(f"{folder}/ras"):
            block = _ERRORS.fullmatch(name)
            if block is None:
                continue
            counts = {key: int(value) for key, value in _COUNT.findall(self._sysfs.text(f"{folder}/ras/{name}") or "")}
            if "ue" in counts:
                yield from self._uncorrected(gpu, block[1], counts["ue"])

    def _uncorrected(self, gpu: Gpu, block: str, count: int) -> Iterator[Evidence]:
        before = self._uncorrectable.setdefault((gpu.address, block), count)
        self._uncorrectable[gpu.address, block] = count
        most = self._config.uncorrectable_max
        if most and count > most:
            reason = f"{count} uncorrectable {block} errors since the driver was loaded, more than {most}"
            yield Evidence(gpu.thing, "ras-count", True, reason, clears=Clears.REBOOT)
        reason = f"{count - before} new uncorrectable {block} error(s)"
        yield Evidence(gpu.thing, f"ras-{block}", count > before, reason)

    def _pages(self, gpu: Gpu, folder: str) -> Iterator[Evidence]:
        """Bad pages of the memory: R retired, P to be retired at the next reset, F could not be retired."""
        text = self._sysfs.text(f"{folder}/ras/gpu_vram_bad_pages")
        if text is None:
            return
        kinds = [kind.upper() for kind in _PAGE.findall(text)]
        broken, waiting = kinds.count("F"), kinds.count("P")
        reason = f"{broken} bad memory page(s) could not be retired"
        yield Evidence(gpu.thing, "bad-pages", broken > 0, reason, clears=Clears.REBOOT)
        reason = f"{waiting} bad memory page(s) will be retired at the next reset"
        yield Evidence(gpu.thing, "pending-pages", waiting > 0, reason, Severity.SOFT)

    def _heat(self, gpu: Gpu, folder: str) -> Iterator[Evidence]:
        """Millidegrees against the sensor's own critical value (Documentation/hwmon/sysfs-interface.rst)."""
        hot: list[str] = []
        for place in self._sysfs.names(f"{folder}/hwmon"):
            for name in self._sysfs.names(f"{folder}/hwmon/{place}"):
                if match := _TEMPERATURE.fullmatch(name):
                    hot += self._sensor(f"{folder}/hwmon/{place}/{match[1]}")
        yield Evidence(gpu.thing, "heat", bool(hot), "; ".join(hot), Severity.SOFT)

    def _sensor(self, sensor: str) -> list[str]:
        now, limit = self._sysfs.integer(f"{sensor}_input"), self._sysfs.integer(f"{sensor}_crit")
        most = self._config.temperature_max * 1000 or limit
        if now is None or not most or now < most:
            return []
        label = self._sysfs.text(f"{sensor}_label") or sensor.rpartition("/")[2]
        return [f"{label} {now // 1000} °C, limit {most // 1000} °C"]

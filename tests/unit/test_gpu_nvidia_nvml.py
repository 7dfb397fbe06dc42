"""The two stand-ins for NVML say the same: the C library, loaded by pynvml as the real one would be, and the one
in the process. Every call that the plugin makes is compared."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import devherd_gpu.nvidia
import pytest
from devherd_gpu.nvidia.nvml import Nvml, NvmlError
from devherd_gpu.nvidia.signs import fabric_info
from devherd_gpu.nvidia.standin import StandIn
from devherd_gpu.nvidia.standinstate import Ecc, Fabric, Gpu, NvLink, Pcie, Remapped
from support.nvmlbuild import binding, install, no_compiler
from support.nvmlstate import SimDriver, gpus, mig, mig_uuid, uuid

pytestmark = pytest.mark.skipif(bool(no_compiler()), reason=no_compiler() or "there is a compiler")

OF_SYSTEM = {
    "nvmlInit": (),
    "nvmlSystemGetDriverVersion": (),
    "nvmlSystemGetNVMLVersion": (),
    "nvmlSystemGetCudaDriverVersion_v2": (),
    "nvmlDeviceGetCount": (),
}
PLAIN = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetSupportedEventTypes",
)
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "nvmlDeviceGetTotalEccErrors": [(0, 0), (1, 0), (0, 1), (1, 1)],
    "nvmlDeviceGetFieldValues": [([230, 1, 82],)],
    "nvmlDeviceGetTemperature": [(0,)],
    "nvmlDeviceGetTemperatureThreshold": [(0,), (1,), (2,), (3,)],
    "nvmlDeviceGetNvLinkState": [(0,), (1,), (17,)],
    "nvmlDeviceGetNvLinkVersion": [(0,), (17,)],
    "nvmlDeviceGetNvLinkRemotePciInfo": [(0,), (1,), (17,)],
    "nvmlDeviceGetMigDeviceHandleByIndex": [(0,), (2,), (3,)],
    "nvmlDeviceGetGpuInstanceById": [(7,), (9,), (70,)],
    "nvmlDeviceGetGpuInstanceProfileInfo": [(0,), (1,), (17,)],
    "nvmlDeviceSetComputeMode": [(3,)],
}
FOUND_BY = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId")
BELOW = (
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
    "nvmlShutdown",
)
FIELDS = (
    "total",
    "free",
    "used",
    "busId",
    "domain",
    "bus",
    "device",
    "pciDeviceId",
    "pciSubSystemId",
    "multiprocessorCount",
    "gpuInstanceSliceCount",
    "computeInstanceSliceCount",
    "memorySizeMB",
    "sharedCopyEngineCount",
    "sharedDecoderCount",
    "id",
    "sliceCount",
    "instanceCount",
    "profileId",
    "name",
    "nvmlReturn",
    "fieldId",
)


class Both:
    """One driver, seen through both."""

    def __init__(self, root: Path, made: tuple[Gpu, ...], **fields: Any) -> None:
        self.driver = SimDriver(str(root), made, **fields)
        self.compiled = binding(install(root))
        self.inside = StandIn(self.driver.path)

    def same(self, function: str, *args: Any) -> Any:
        """Call in both; what came is compared and returned."""
        return self.compare(function, lambda api: getattr(api, function)(*args))

    def compare(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        """The same with a whole sequence of calls: `call` gets one of the two, and the arguments."""
        answers = [answer(api, call, *args) for api in (self.compiled, self.inside)]
        assert answers[0] == answers[1], what
        return answers[0]


def answer(api: Any, call: Callable[..., Any], *args: Any) -> Any:
    """What a call returned, in a form that can be compared; or the number of its error."""
    try:
        return plain(api, call(api, *args))
    except api.NVMLError as error:
        return ("error", error.value)


def plain(api: Any, value: Any) -> Any:
    """Structures by those of their fields that matter, handles by whose they are."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (int, str, type(None))):
        return value
    if hasattr(value, "value") and isinstance(value.value, int):
        return value.value
    if handle(value):
        return ("handle", answer(api, lambda api: api.nvmlDeviceGetUUID(value)))
    fields = [name for name in FIELDS if isinstance(getattr(value, name, None), (int, bytes, str))]
    if fields:
        found = {name: plain(api, getattr(value, name)) for name in fields}
        if "fieldId" in found:
            found["value"] = value.value.ullVal
        return found
    if type(value).__name__ in ("_Instance", "LP_struct_c_nvmlGpuInstance_t"):
        return "an instance"
    return [plain(api, one) for one in value] if hasattr(value, "__len__") else "opaque"


def handle(value: Any) -> bool:
    return type(value).__name__ in ("Handle", "LP_struct_c_nvmlDevice_t")


def answer_of(api: Any, function: str, *args: Any) -> Any:
    """What a call returned; None when it failed."""
    try:
        return getattr(api, function)(*args)
    except api.NVMLError:
        return None


def devices(api: Any) -> Iterator[tuple[str, Any]]:
    """Every GPU and MIG device that there is a handle for."""
    for index in range(api.nvmlDeviceGetCount()):
        gpu = answer_of(api, "nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            continue
        yield f"{index}", gpu
        for place in range(7):
            mig = answer_of(api, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, place)
            if mig is not None:
                yield f"{index}:{place}", mig


LINKS = (NvLink(0, "0000:11:00.0"), NvLink(1, "0000:c0:00.0", active=False, version=3))


def plain_gpus() -> tuple[Gpu, ...]:
    return gpus(3)


def rich_gpus() -> tuple[Gpu, ...]:
    """One of each kind."""
    return (
        *gpus(
            1,
            nvlinks=LINKS,
            ecc=Ecc(1, 2, 3, 4),
            remapped=Remapped(1, 2, 1, 1),
            retired_pending=1,
            recovery_action=2,
            fabric=Fabric(3, 5, "01234567-89ab-cdef-0123-456789abcdef", 7, 9),
            pcie=Pcie(4, 5, 8, 16, 3),
            addressing_mode=1,
            fields={"82": 4711},
            clock_reasons=0x44,
            virtualization=3,
            name='A "card" of 80 GB — ünïcode',
        ),
        *gpus(2, mig=mig(1))[1:],
        *gpus(3, mig=None, ecc=None, remapped=None, recovery_action=None, pcie=None)[2:],
        *gpus(4, errors={"nvmlDeviceGetHandle*": "ok", "*": "gpu_is_lost"})[3:],
        *gpus(5, errors={"nvmlDeviceGetMemoryInfo": "unknown", "nvmlDeviceGetName": "reset_required"})[4:],
        *gpus(6, gone=True)[5:],
        *gpus(7, errors={"*": "gpu_is_lost"})[6:],
        *gpus(8, compute=(10, 1), temperature=91)[7:],
    )


@pytest.mark.parametrize("made", [plain_gpus, rich_gpus])
def test_both_answer_each_question_about_each_gpu_alike(tmp_path: Path, made: Callable[[], tuple[Gpu, ...]]) -> None:
    both = Both(tmp_path, made(), topology=((uuid(0), uuid(1), 10),))
    for function, args in OF_SYSTEM.items():
        both.same(function, *args)
    for index in (*range(8), 99):
        both.same("nvmlDeviceGetHandleByIndex", index)
        both.same("nvmlDeviceGetHandleByUUID", uuid(index))
        both.same("nvmlDeviceGetHandleByUUID", mig_uuid(1, index))
    for address in ("00000000:10:00.0", "0000:16:00.0", "nonsense"):
        both.compare(f"by {address}", by_address, address)
    names = both.compare("devices", lambda api: [name for name, _ in devices(api)])
    assert len(names) >= 3
    for function, args in [(name, ()) for name in PLAIN] + [(n, a) for n, some in ARGUMENTS.items() for a in some]:
        for name in names:
            both.compare(f"{function}{args} of {name}", about, function, name, *args)


def by_address(api: Any, address: str) -> Any:
    return api.nvmlDeviceGetHandleByPciBusId(address if isinstance(api, StandIn) else address.encode())


def about(api: Any, function: str, name: str, *args: Any) -> Any:
    return getattr(api, function)(dict(devices(api))[name], *args)


def ancestor(api: Any, one: int, other: int) -> Any:
    handles = [api.nvmlDeviceGetHandleByIndex(index) for index in (one, other)]
    return api.nvmlDeviceGetTopologyCommonAncestor(*handles)


def test_both_tell_of_fabric_topology_and_instances_alike(tmp_path: Path) -> None:
    both = Both(tmp_path, rich_gpus(), topology=((uuid(0), uuid(1), 10),))
    both.same("nvmlInit")

    def fabric(api: Any) -> Any:
        info = fabric_info(Nvml(api), api.nvmlDeviceGetHandleByIndex(0))
        return [list(info.clusterUuid), info.status, info.cliqueId, info.state, info.healthMask]

    assert both.compare("fabric", fabric)[1:] == [5, 7, 3, 9]
    for one, other in ((0, 1), (1, 0), (0, 2)):
        both.compare("topology", ancestor, one, other)

    def instances(api: Any, gi: int = 8, ci: int = 0) -> Any:
        gpu = api.nvmlDeviceGetHandleByIndex(1)
        instance = api.nvmlDeviceGetGpuInstanceById(gpu, gi)
        info = api.nvmlGpuInstanceGetInfo(instance)
        part = api.nvmlComputeInstanceGetInfo(api.nvmlGpuInstanceGetComputeInstanceById(instance, ci))
        return [info.id, info.profileId, part.id, part.profileId]

    assert both.compare("instances", instances) == [8, 19, 0, 0]
    both.compare("no such compute instance", lambda api: instances(api, ci=5))
    both.compare("no such GPU instance", lambda api: instances(api, gi=1))


@pytest.mark.parametrize(
    "state",
    [
        {"init": "driver_not_loaded"},
        {"init": "lib_rm_version_mismatch"},
        {"init": "library_not_found"},
        {"errors": {"nvmlInitWithFlags": "unknown"}},
        {"errors": {"nvmlDeviceGetC*": "timeout"}},
    ],
)
def test_both_fail_alike_and_recover(tmp_path: Path, state: dict[str, Any]) -> None:
    both = Both(tmp_path, plain_gpus())
    both.same("nvmlDeviceGetCount")  # before nvmlInit
    both.same("nvmlInit")
    both.driver.change(**state)
    both.same("nvmlDeviceGetCount")
    both.same("nvmlInit")
    both.driver.change(init="ok", errors={})
    both.same("nvmlInit")
    assert both.same("nvmlDeviceGetCount") == 3
    both.same("nvmlShutdown")
    both.same("nvmlDeviceGetCount")


def test_both_see_a_change_at_once_and_no_change_in_rubbish(tmp_path: Path) -> None:
    both = Both(tmp_path, plain_gpus())
    both.same("nvmlInit")
    both.driver.change(gpus=gpus(5))
    assert both.same("nvmlDeviceGetCount") == 5
    Path(both.driver.path).write_text('{"gpus": [')
    assert both.same("nvmlDeviceGetCount") == 5
    Path(both.driver.path).unlink()
    both.same("nvmlDeviceGetCount")
    both.same("nvmlInit")


def test_both_deliver_the_same_events(tmp_path: Path) -> None:
    both = Both(tmp_path, rich_gpus())
    both.driver.event(0, data=1)  # before there is a set
    both.same("nvmlInit")
    sets = {}
    for api in (both.compiled, both.inside):
        events = sets[api] = api.nvmlEventSetCreate()
        for index in (0, 1):
            api.nvmlDeviceRegisterEvents(api.nvmlDeviceGetHandleByIndex(index), 0x8, events)
    both.driver.event(1, data=79, gi=8, ci=0)
    both.driver.event(2, data=13)
    both.driver.event(0, type=2)
    both.driver.event(0, data=48)
    both.driver.lose(0)

    def wait(api: Any) -> Any:
        event = api.nvmlEventSetWait_v2(sets[api], 50)
        same = event.device == api.nvmlDeviceGetHandleByIndex(1)
        if api is both.compiled:
            import ctypes

            known = api.nvmlDeviceGetHandleByIndex(1)
            same = ctypes.addressof(event.device.contents) == ctypes.addressof(known.contents)
        return [same, event.eventType, event.eventData, event.gpuInstanceId, event.computeInstanceId]

    assert both.compare("first", wait) == [True, 8, 79, 8, 0]
    assert both.compare("second", wait) == [False, 8, 48, 0xFFFFFFFF, 0xFFFFFFFF]
    assert both.compare("none", wait) == ("error", 10)
    both.compare("free", lambda api: api.nvmlEventSetFree(sets[api]))
    both.compare(
        "an event that the GPU does not have",
        lambda api: api.nvmlDeviceRegisterEvents(api.nvmlDeviceGetHandleByIndex(1), 0x60, api.nvmlEventSetCreate()),
    )


def test_both_hang_for_as_long_as_the_file_says(tmp_path: Path) -> None:
    both = Both(tmp_path, plain_gpus())
    both.same("nvmlInit")
    handles = {api: api.nvmlDeviceGetHandleByIndex(1) for api in (both.compiled, both.inside)}
    both.driver.gpu(1, hang=("nvmlDeviceGetM*",))
    answers: list[int] = []

    def ask(api: Any) -> None:
        answers.append(api.nvmlDeviceGetMinorNumber(handles[api]))

    threads = [threading.Thread(target=ask, args=(api,)) for api in handles]
    for thread in threads:
        thread.start()
    both.compare("others go on", lambda api: api.nvmlDeviceGetMinorNumber(api.nvmlDeviceGetHandleByIndex(0)))
    both.compare("other calls go on", lambda api: api.nvmlDeviceGetUUID(handles[api]))
    time.sleep(0.1)
    assert answers == []
    both.driver.gpu(1, hang=())
    for thread in threads:
        thread.join(20)
    assert answers == [1, 1]


def test_every_call_of_the_plugin_is_compared() -> None:
    folder = Path(next(iter(devherd_gpu.nvidia.__path__)))
    texts = [path.read_text() for path in folder.glob("*.py") if not path.name.startswith("standin")]
    called = {name for text in texts for name in re.findall(r'"(nvml[A-Z]\w+)"', text)}
    assert len(called) > 30
    assert called <= {*OF_SYSTEM, *PLAIN, *ARGUMENTS, *FOUND_BY, *BELOW}


def test_the_plugins_own_wrapper_reads_the_library(tmp_path: Path) -> None:
    both = Both(tmp_path, rich_gpus())
    nvml = Nvml(both.compiled)
    nvml.call("nvmlInit")
    assert nvml.pci(nvml.by_index(0)) == "0000:10:00.0"
    assert [index for index, _ in nvml.mig_handles(nvml.by_index(1))] == [0, 1, 2]
    assert nvml.optional("nvmlDeviceGetRemappedRows", nvml.by_index(2)) is None
    with pytest.raises(NvmlError):
        nvml.uuid(nvml.by_index(3))

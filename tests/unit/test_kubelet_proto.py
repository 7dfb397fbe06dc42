"""The contracts on the wire are the kubelet's, and the stubs are what the contracts say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import podresources_v1_pb2 as pr

ROOT = Path(__file__).resolve().parents[2]


def test_checked_in_stubs_match_the_contracts() -> None:
    done = subprocess.run([sys.executable, ROOT / "proto" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_method_names_are_the_kubelets() -> None:
    names = {
        f"/{service.full_name}/{method.name}"
        for file in (pb.DESCRIPTOR, pr.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert names == {
        "/v1beta1.Registration/Register",
        "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        "/v1beta1.DevicePlugin/ListAndWatch",
        "/v1beta1.DevicePlugin/GetPreferredAllocation",
        "/v1beta1.DevicePlugin/Allocate",
        "/v1beta1.DevicePlugin/PreStartContainer",
        "/v1.PodResourcesLister/List",
        "/v1.PodResourcesLister/GetAllocatableResources",
        "/v1.PodResourcesLister/Get",
    }


def test_field_numbers_are_the_kubelets() -> None:
    """A spot check by bytes: what a real kubelet or plugin would write."""
    register = pb.RegisterRequest(version="v", endpoint="e", resource_name="r")
    assert register.SerializeToString() == b"\x0a\x01v\x12\x01e\x1a\x01r"
    device = pb.Device(ID="a", health="Healthy")
    device.topology.nodes.add(ID=1)
    assert pb.ListAndWatchResponse(devices=[device]).SerializeToString() == (
        b"\x0a\x12\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
    )
    asked = pb.PreferredAllocationRequest()
    asked.container_requests.add(available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=2)
    assert asked.SerializeToString() == b"\x0a\x08\x0a\x01a\x12\x01b\x18\x02"
    answer = pb.ContainerAllocateResponse()
    answer.cdi_devices.add(name="n")
    answer.devices.add(container_path="c", host_path="h", permissions="p")
    answer.mounts.add(container_path="c", host_path="h", read_only=True)
    assert answer.SerializeToString() == (
        b"\x12\x08\x0a\x01c\x12\x01h\x18\x01" + b"\x1a\x09\x0a\x01c\x12\x01h\x1a\x01p" + b"\x2a\x03\x0a\x01n"
    )
    listed = pr.ContainerDevices(resource_name="r", device_ids=["a"])
    assert listed.SerializeToString() == b"\x0a\x01r\x12\x01a"

"""Which files of a node a capture takes: what plugins read to tell, place and judge devices, and nothing else.

A list of what is taken, not of what is left out: reading an attribute nobody asked for may wake a device, block in a
driver or give a secret away. A plugin adds what only it knows (`Manifest.captures`).
"""

from __future__ import annotations

import re

CLASSES = (
    "accel", "drm", "fpga", "fpga_bridge", "fpga_manager", "fpga_region", "infiniband", "infiniband_mad",
    "infiniband_verbs", "kfd", "mei", "net", "nvidia", "nvme", "tty", "vfio", "vfio-dev", "xrt",
)  # fmt: skip
"""Folders of /sys/class whose devices with hardware behind them are taken."""

BUSES = ("auxiliary", "pci", "platform-fpga", "usb", "vdpa")
"""Buses of /sys/bus all of whose devices are taken."""

ATTRIBUTE_GROUPS = {
    # Documentation/ABI/testing/sysfs-devices*
    "every device": "dev uevent numa_node local_cpulist local_cpus modalias power_state enable",
    # Documentation/ABI/testing/sysfs-bus-pci
    "PCI": """vendor device class revision subsystem_vendor subsystem_device sriov_numvfs sriov_totalvfs
        sriov_drivers_autoprobe current_link_speed current_link_width max_link_speed max_link_width acpi_index label
        aer_dev_correctable aer_dev_nonfatal aer_dev_fatal reset_method""",
    # Documentation/ABI/testing/sysfs-bus-usb
    "USB": """idVendor idProduct bcdDevice busnum devnum serial product manufacturer bInterfaceNumber bInterfaceClass
        interface speed""",
    # Documentation/ABI/testing/sysfs-class-net
    "network": """address operstate carrier duplex mtu type dev_id dev_port ifindex phys_port_name phys_switch_id
        sfnum""",
    # Documentation/ABI/stable/sysfs-class-infiniband
    "InfiniBand": """node_guid sys_image_guid node_type node_desc fw_ver hw_rev hca_type board_id state phys_state rate
        link_layer lid sm_lid cap_mask ibdev port abi_version""",
    # Documentation/ABI/testing/sysfs-class-fpga-*, sysfs-platform-dfl-*; XRT's driver
    "FPGA": """name status compat_id interface_id afu_id id ports_num bitstream_id bitstream_metadata dfl_id feature_id
        logic_uuids interface_uuids user_pf mgmt_pf instance VBNV timestamp serial_num""",
    # amdgpu, i915, xe, and the topology of KFD
    "GPU": """unique_id product_name product_number mem_info_vram_total gpu_busy_percent current_compute_partition
        available_compute_partition current_memory_partition ras_features vbios_version gt_cur_freq_mhz device_type
        gpu_id properties""",
}
ATTRIBUTES = frozenset(word for words in ATTRIBUTE_GROUPS.values() for word in words.split())
"""Names of attributes that are read, wherever they are below a device that is taken."""

FOLDERS = re.compile(
    r"ports|[0-9]{1,4}|gids|pkeys|gid_attrs|ndevs|types|counters|hw_counters|errors|pr|region[0-9]+|rom\S*|nodes"
)
"""Attribute groups below a device: their folders are entered; in those of InfiniBand every file is read."""
READ_ALL = re.compile(r"gids|pkeys|ndevs|types|counters|hw_counters")

LINKS = re.compile(r"subsystem|driver|device|iommu_group|physfn|virtfn[0-9]+|module|bus|ibdev")
"""Links that are taken from a device's folder; their targets need not be."""

PROC = (
    "/proc/version", "/proc/devices", "/proc/driver/nvidia/version", "/proc/driver/nvidia/gpus/*/information",
    "/proc/driver/nvidia-caps/*", "/proc/driver/nvidia-nvlink/*", "/proc/sys/fs/inotify/*",
)  # fmt: skip
SYS = (
    *(f"/sys/module/{name}/version" for name in ("nvidia", "amdgpu", "i915", "mlx5_core", "ib_core", "sfc", "xocl")),
    "/sys/module/ib_core/parameters/netns_mode",
    "/sys/devices/system/node/online",
    "/sys/devices/system/node/node*/cpulist",
    "/sys/devices/system/node/node*/distance",
    "/sys/kernel/iommu_groups/*/name",
    "/sys/class/kfd/kfd/topology/nodes/*/*",
    "/sys/class/kfd/kfd/topology/generation_id",
)
"""Single files of a node, as patterns."""

BORING = re.compile(
    r"/dev/(?:pts|shm|mqueue|hugepages|disk|mapper|block|char|bsg|snd|input|cpu|bus/usb|dma_heap|net/vlan)(?:/|$)"
    r"|/dev/(?:tty|tty[0-9]+|tty[p-zabcde][0-9a-f]|pty.*|vcs.*|ptmx|console|loop[0-9]+.*|ram[0-9]+|sd[a-z]+.*|sg[0-9]+"
    r"|sr[0-9]+|nvme.*|vd[a-z]+.*|dm-[0-9]+|md[0-9]+|mem|kmem|port|kcore|fd|std(?:in|out|err)|core|log|initctl)$"
)
"""Device nodes that a capture leaves out unless a plugin offers or names them."""

CMDLINE = re.compile(
    r"(?:intel_iommu|amd_iommu|iommu|pci|pcie_aspm|hugepages|hugepagesz|default_hugepagesz|nvidia\S*|isolcpus|mitigations|quiet)(?:=|$|\.)"
)
"""Words of the kernel's command line that are taken; others may hold anything."""

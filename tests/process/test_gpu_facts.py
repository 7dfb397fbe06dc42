"""Which tests show that devherd does better, for each of the ten facts that users of the vendors' GPU plugins meet.

A fact without its test fails here. What is the front's and not a vendor's own is shown with the generic plugin: all
plugins have the same front.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FACTS = {
    1: (
        "no vendor's plugin brings an NVIDIA GPU back, and a kubelet restart makes it forget the bad ones",
        "process/test_gpu_nvidia_sick::test_fact_01_a_gpu_with_a_transient_xid_comes_back_and_a_proven_bad_one_does_not",
        "process/test_gpu_nvidia_sick::test_fact_01_over_a_reboot_only_what_it_does_not_end_is_bad",
        "process/test_gpu_nvidia_runs::test_a_gpu_that_an_xid_proved_bad_stays_bad_over_restarts",
    ),
    2: (
        "one lost GPU takes down the node",
        "process/test_gpu_nvidia_sick::test_fact_02_a_lost_gpu_costs_no_other_one",
        "process/test_gpu_nvidia_runs::test_a_lost_gpu_of_eight_leaves_seven_before_and_after_a_kubelet_restart",
        "unit/test_gpu_nvidia_health::test_fact_02_an_xid_of_a_lost_gpu_that_cannot_say_its_name_lowers_that_gpu_only",
        "unit/test_gpu_nvidia_files::test_a_lost_gpu_costs_no_preference",
        "unit/test_gpu_nvidia_discovery::test_reboot_with_gpu_3_of_8_missing_never_leads_a_container_to_another_gpu",
    ),
    3: (
        "an Xid on a shared GPU marks one of its shares; events of MIG devices are dropped",
        "process/test_gpu_nvidia_sick::test_fact_03_an_xid_lowers_all_shares_of_its_gpu_and_only_those",
        "process/test_gpu_nvidia_sick::test_fact_03_an_xid_of_a_mig_instance_lowers_the_shares_of_that_instance_only",
    ),
    4: (
        "a dropped stream is never noticed, or ends the process",
        "process/test_gpu_streams::test_fact_04_a_dropped_stream_is_opened_again",
        "process/test_situation_kubelet::test_stream_cancelled_by_a_living_kubelet",
        "process/test_situation_kubelet::test_ok_without_a_stream_is_registered_again",
    ),
    5: (
        "Intel: the first change after a kubelet restart is swallowed and stops the new server",
        "process/test_gpu_intel_runs::test_changes_after_a_kubelet_restart_reach_the_kubelet_each_time",
    ),
    6: (
        "Intel: the scan stops for ever at the second change",
        "process/test_gpu_intel_runs::test_changes_after_a_kubelet_restart_reach_the_kubelet_each_time",
    ),
    7: (
        "AMD: a kubelet restart ends the process; NUMA -1 is sent; an unknown id gets /dev/kfd",
        "process/test_gpu_streams::test_fact_07_kubelet_restarts_end_no_process",
        "process/test_front::test_a_kubelet_restart_costs_one_register_call_and_no_pod",
        "process/test_gpu_amd_runs::test_a_lost_gpu_is_that_gpu_only_before_and_after_a_kubelet_restart",
        "unit/test_gpu_amd::test_an_unknown_numa_node_is_unset",
        "unit/test_gpu_intel::test_an_unknown_numa_node_is_unset",
        "unit/test_gpu_nvidia_discovery::test_an_unknown_numa_node_is_unset",
        "process/test_situation_host::test_an_unhealthy_or_unknown_id_is_refused_shortly",
    ),
    8: (
        "AMD: preferred allocation of 63 partitions takes seconds",
        "unit/test_gpu_amd::test_any_size_of_64_partitions_is_answered_at_once",
    ),
    9: (
        "nobody says why a device is Unhealthy, and nobody has metrics or health over HTTP",
        "process/test_gpu_nvidia_runs::test_explain_gpu_says_of_every_gpu_where_it_is_and_why",
        "process/test_exporter_runs::test_what_happens_on_the_node_shows_in_its_figures",
    ),
    10: (
        "speed and memory are no lead of ours: they stay within bounds (figures: docs/benchmarks.md)",
        "process/test_gpu_nvidia_runs::test_the_probe_stays_small",
        "process/test_gpu_nvidia_sick::test_a_hung_driver_keeps_nobody_waiting",
    ),
}


def test_every_fact_has_a_test() -> None:
    assert sorted(FACTS) == list(range(1, 11))
    assert all(len(row) > 1 for row in FACTS.values())


@pytest.mark.parametrize("where", sorted({where for _, *tests in FACTS.values() for where in tests}))
def test_the_test_exists(where: str) -> None:
    file, name = where.split("::")
    text = (TESTS / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", text, re.M), where

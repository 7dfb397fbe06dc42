"""What hurts users of the vendors' plugins most, each with the tests that show that it does not happen here.

The numbers are those of the ten facts that the GPU plugins were designed from. A test that is gone is missed here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

FACTS = {
    1: (  # an Unhealthy GPU never comes back, and a bad one is forgotten by a kubelet restart
        "process/test_gpu_nvidia_sick.py::test_fact_01_a_gpu_with_a_transient_xid_comes_back_and_a_proven_bad_one_does_not",
        "process/test_gpu_nvidia_sick.py::test_fact_01_over_a_reboot_only_what_it_does_not_end_is_bad",
        "process/test_gpu_amd_runs.py::test_a_gpu_the_compute_driver_dropped_comes_back_by_policy",
    ),
    2: (  # one lost GPU takes the node down
        "process/test_gpu_nvidia_sick.py::test_fact_02_a_lost_gpu_costs_no_other_one",
        "process/test_gpu_amd_runs.py::test_a_lost_gpu_is_that_gpu_only_before_and_after_a_kubelet_restart",
        "unit/test_gpu_nvidia_files.py::test_a_lost_gpu_costs_no_preference",
    ),
    3: (  # an Xid marks one of four shares
        "process/test_gpu_nvidia_sick.py::test_fact_03_an_xid_lowers_all_shares_of_its_gpu_and_only_those",
        "process/test_gpu_nvidia_sick.py::test_fact_03_an_xid_of_a_mig_instance_lowers_the_shares_of_that_instance_only",
        "process/test_gpu_intel_runs.py::test_heat_takes_all_shares_of_that_card_and_no_other",
    ),
    4: (  # a dropped stream is never noticed
        "process/test_situation_kubelet.py::test_stream_cancelled_by_a_living_kubelet",
    ),
    5: (  # the first change after a kubelet restart is swallowed and stops the new server
        "process/test_gpu_intel_runs.py::test_changes_after_a_kubelet_restart_reach_the_kubelet_each_time",
    ),
    6: (  # the second change of the number of devices blocks the scan for ever
        "process/test_gpu_intel_runs.py::test_changes_after_a_kubelet_restart_reach_the_kubelet_each_time",
    ),
    7: (  # every kubelet restart ends the process; NUMA node -1; an unknown id gets half an answer
        "process/test_front.py::test_a_kubelet_restart_costs_one_register_call_and_no_pod",
        "unit/test_gpu_amd.py::test_an_unknown_numa_node_is_unset",
        "process/test_situation_host.py::test_an_unhealthy_or_unknown_id_is_refused_shortly",
    ),
    8: (  # preferred allocation takes seconds
        "unit/test_gpu_amd.py::test_any_size_of_64_partitions_is_answered_at_once",
        "unit/test_gpu_nvidia_files.py::test_pairs_joined_by_nvlink_stay_together",
    ),
    9: (  # nobody says why a device is unhealthy
        "process/test_gpu_nvidia_sick.py::test_fact_01_a_gpu_with_a_transient_xid_comes_back_and_a_proven_bad_one_does_not",
        "process/test_gpu_nvidia_runs.py::test_explain_gpu_says_of_every_gpu_where_it_is_and_why",
        "process/test_exporter_runs.py::test_what_happens_on_the_node_shows_in_its_figures",
    ),
}
"""Fact 10 is about speed and memory: figures of `make bench`, never an assertion."""


@pytest.mark.parametrize("fact", sorted(FACTS))
def test_every_fact_has_its_tests(fact: int) -> None:
    for place in FACTS[fact]:
        file, _, name = place.partition("::")
        text = (TESTS / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), place

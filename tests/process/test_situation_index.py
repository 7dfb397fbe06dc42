"""Which test is for which situation: the kubelet contract's section 8b, and what else can happen to a node.

A situation without its test fails here. What needs a real kubelet is in tests/e2e and not in this list.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONTRACT = {
    1: "test_front::test_a_kubelet_restart_costs_one_register_call_and_no_pod",
    2: "test_situation_kubelet::test_kubelet_killed_during_register",
    3: "test_situation_kubelet::test_kubelet_away_at_start",
    4: "test_situation_kubelet::test_folder_missing_at_start_is_left_to_the_kubelet",
    5: "test_situation_kubelet::test_stale_socket_of_a_dead_kubelet",
    6: "test_situation_kubelet::test_socket_seen_long_before_it_listens",
    7: "test_situation_kubelet::test_signals_and_events_many_times_over_register_once",
    8: "test_situation_kubelet::test_kubelet_created_twice_within_milliseconds",
    9: "test_situation_kubelet::test_a_reused_inode_is_no_reason_to_miss_a_kubelet",
    10: "test_situation_kubelet::test_a_refused_name_is_told_and_others_live",
    11: "test_situation_kubelet::test_own_socket_removed_while_the_kubelet_is_down",
    12: "test_situation_kubelet::test_register_that_hangs_longer_than_its_deadline_is_made_again",
    13: "test_situation_kubelet::test_ok_without_a_stream_is_registered_again",
    14: "test_situation_kubelet::test_stream_cancelled_by_a_living_kubelet",
    15: "test_situation_kubelet::test_two_streams_at_once_on_one_socket_are_both_fed",
    16: "test_situation_kubelet::test_own_socket_removed_by_somebody_is_put_back",
    17: "test_situation_kubelet::test_folder_replaced",
    18: "test_situation_host::test_inotify_limit_reached",
    19: "test_situation_host::test_front_killed_at_any_moment_of_its_start",
    20: "test_situation_host::test_a_second_front_started_beside_a_living_one_leaves_with_a_clear_text",
    21: "test_situation_host::test_disk_full",
    22: "test_situation_host::test_clock_moved",
    23: "test_situation_host::test_a_file_in_the_way_of_our_folder_is_named_and_healed",
    24: "test_front::test_a_device_that_goes_is_unhealthy_within_a_second_and_one_that_returns_is_healthy",
    25: "test_situation_host::test_a_flapping_device_is_unhealthy_at_once_and_healthy_ever_later",
    26: "test_front::test_a_hung_probe_changes_nothing_for_pods_and_is_replaced",
    27: "test_situation_host::test_an_unhealthy_or_unknown_id_is_refused_shortly",
    28: "test_situation_host::test_kubelet_gone_in_the_middle_of_allocate",
    29: "test_situation_host::test_kubelet_gone_in_the_middle_of_allocate",
    30: "test_soak::test_reboots_cost_no_pod",
    31: "test_scale::test_a_list_over_four_mebibytes_keeps_held_ids_and_what_fits_and_says_what_it_left_out",
    32: "test_situation_kubelet::test_many_dead_streams_do_not_starve_allocate",
    33: "test_situation_kubelet::test_kubelet_frozen_while_devices_change",
    34: "test_situation_supervision::test_kubelet_restarts_without_a_watcher",
    35: "test_situation_kubelet::test_podresources_empty_after_a_restart_releases_nothing",
    36: "test_situation_host::test_sigterm_in_the_middle_of_allocations_ends_in_time",
    37: "test_situation_host::test_descriptors_exhausted",
    38: "test_situation_kubelet::test_pings_and_silence_cut_no_stream",
    39: "test_situation_kubelet::test_kubelet_sock_is_a_folder",
}
OTHERS = {
    "socket re-created in one kubelet's life": (
        "test_situation_kubelet::test_socket_created_anew_in_one_kubelets_life"
    ),
    "old and new kubelet's stream at once": ("test_situation_kubelet::test_old_and_new_stream_at_once_of_two_kubelets"),
    "front SIGKILLed": "test_front::test_a_killed_front_takes_its_probe_along_and_its_successor_serves_the_same_pods",
    "SIGUSR1 during import": "test_situation_host::test_signals_during_import_neither_kill_nor_get_lost",
    "supervisord SIGKILLed": ("test_situation_supervision::test_supervisord_killed_leaves_one_front_and_every_pod"),
    "supervisord started twice": "test_situation_supervision::test_supervisord_started_twice",
    "watcher crash-looping": "test_situation_supervision::test_kubelet_restarts_without_a_watcher",
    "configuration broken at reload": "test_situation_host::test_configuration_broken_at_reload",
    "memory limit hit": "test_situation_host::test_front_hits_its_memory_limit",
    "another server, other list": (
        "test_situation_rivals::test_a_rival_that_took_the_list_is_named_and_left_alone_until_it_goes"
    ),
    "another server, streams cut": (
        "test_situation_rivals::test_a_rival_for_which_our_stream_is_cut_again_and_again_is_named_and_not_fought"
    ),
    "a vendor misbehaves": "test_situation_isolation::test_a_misbehaving_vendor_changes_no_figure_of_another",
    "everything at random": "test_storm::test_storm",
}


def test_every_row_of_the_contract_has_a_test() -> None:
    assert sorted(CONTRACT) == list(range(1, 40))


@pytest.mark.parametrize("where", sorted({*CONTRACT.values(), *OTHERS.values()}))
def test_the_test_exists(where: str) -> None:
    file, name = where.split("::")
    text = (HERE / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", text, re.M), where

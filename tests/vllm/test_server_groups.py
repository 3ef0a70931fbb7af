"""Which ranks share a server, and which devices it gets."""

from __future__ import annotations

import pytest
from tiny_engine import build_settings

from ippo_cli.config.errors import ConfigError, EngineError
from ippo_cli.config.vllm import device_slots
from ippo_cli.rollout.vllm.shared_server import assign_slot, find_group, this_machine, visible_devices


@pytest.mark.parametrize(
    ("machines", "ranks_per_server", "num_slots", "expected"),
    [
        ("aaaa", None, 1, [(0, 1, 2, 3)]),
        ("aaaa", 1, 1, [(0,), (1,), (2,), (3,)]),
        ("aaaaa", 2, 1, [(0, 1), (2, 3), (4,)]),
        ("aaaaa", None, 2, [(0, 1, 2), (3, 4)]),
        ("aa", None, 4, [(0,), (1,)]),
        ("aabb", None, 1, [(0, 1), (2, 3)]),
        ("abab", None, 1, [(0, 2), (1, 3)]),
        ("aabb", 3, 1, [(0, 1), (2, 3)]),
    ],
)
def test_groups(machines: str, ranks_per_server: int | None, num_slots: int, expected: list[tuple[int, ...]]) -> None:
    for ranks in expected:
        for rank in ranks:
            group = find_group(rank, machines, ranks_per_server, num_slots)
            assert (group.ranks, group.leader) == (ranks, ranks[0])
            local = [other for other in expected if machines[other[0]] == machines[rank]]
            assert (group.index, group.count) == (local.index(ranks), len(local))


def test_servers_are_spread_over_devices() -> None:
    slots = device_slots((4, 5, 6, 7), build_settings(engine_args={"tensor_parallel_size": 2}))
    assert slots is not None
    assert slots == [(4, 5), (6, 7)]
    pairs = [find_group(rank, "aaaa", None, len(slots)) for rank in (0, 2)]
    # Two models in two groups: each pair of devices has a server of each model.
    assert [[assign_slot(number, group, slots) for group in pairs] for number in (0, 1)] == [slots, slots]
    one = find_group(0, "aaaa", 4, len(slots))
    assert [assign_slot(number, one, slots) for number in (0, 1)] == slots


@pytest.mark.parametrize("devices", [(), (4, 5, 6)])
def test_devices_that_are_no_whole_parts_are_refused(devices: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"gives each server 2 devices, and \d are given.*a multiple of 2"):
        device_slots(devices, build_settings(engine_args={"tensor_parallel_size": 2}))


def test_device_numbers_count_visible_devices() -> None:
    assert visible_devices((1, 2), {}) == "1,2"
    assert visible_devices((1, 2), {"CUDA_VISIBLE_DEVICES": "5, 6,GPU-8ac"}) == "6,GPU-8ac"
    with pytest.raises(EngineError, match="CUDA_VISIBLE_DEVICES=5,6 has no device number 2"):
        visible_devices((1, 2), {"CUDA_VISIBLE_DEVICES": "5,6"})


def test_processes_with_another_temporary_folder_are_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    here = this_machine()
    assert here == this_machine()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert this_machine() != here

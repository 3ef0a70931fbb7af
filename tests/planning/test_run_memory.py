"""Memory of ranks that hold different models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import small_config

from ippo_cli.config import vllm
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.checks import check_config
from ippo_cli.config.schema import Config
from ippo_cli.planning import trained_memory
from ippo_cli.planning.memory import GIB
from ippo_cli.planning.model_specs import ModelSpecs, read_model_specs
from ippo_cli.planning.plan import show_memory
from ippo_cli.planning.resources import estimate_run_memory, memory_error, memory_warning
from ippo_cli.planning.run_memory import Machine, RunMemory, estimate_server_memory, ranks_with_same_models
from ippo_cli.tasks.task import load_task

KL = "algorithm.kl.reward.coef=0.1"


def placed_config(root: Path, placement: dict[str, Any], *overrides: str) -> Config:
    config, _ = small_config(root, *overrides)
    return replace(config, launch=replace(config.launch, placement=placement))


def estimate(config: Config, ranks: int, device: str = "cuda") -> tuple[ModelSpecs, RunMemory]:
    task = load_task(config.task, config.seed)
    specs, sizes = read_model_specs(config, task), compute_batch_sizes(config, ranks, len(task.train))
    groups = ranks_with_same_models(config, ranks)
    memory = {group: estimate_run_memory(config, sizes, task, specs, ranks, device, group[0]) for group in groups}
    return specs, RunMemory(memory)


@pytest.fixture
def placed_run(tmp_path) -> tuple[Config, ModelSpecs, RunMemory]:
    config = placed_config(tmp_path, {"actor": "0-2", "critic": "3-4", "reference": 4}, KL)
    check_config(config, 5)
    return config, *estimate(config, 5)


def test_each_rank_has_the_models_that_are_placed_on_it(placed_run) -> None:
    _, _, memory = placed_run
    models = {ranks: [model.name for model in (*own.trained, *own.frozen)] for ranks, own in memory.by_ranks.items()}
    assert models == {
        (0, 1, 2): ["low actor", "high actor"],
        (3,): ["low critic", "high critic"],
        (4,): ["low critic", "high critic", "low reference", "high reference"],
    }
    actors, critics, both = memory.by_ranks.values()
    assert actors.kv_cache_bytes > 0 == critics.kv_cache_bytes
    assert both.resident_bytes == critics.resident_bytes + sum(model.weight_bytes for model in both.frozen)


def test_a_model_needs_what_it_needs_in_a_run_of_as_many_ranks(placed_run, tmp_path) -> None:
    _, _, memory = placed_run
    three, two = (estimate(small_config(tmp_path, KL)[0], ranks)[1].highest for ranks in (3, 2))
    assert [model.memory for model in memory.by_ranks[0, 1, 2].trained] == [
        m.memory for m in three.trained if m.is_actor
    ]
    assert [model.memory for model in memory.by_ranks[(3,)].trained] == [
        m.memory for m in two.trained if not m.is_actor
    ]


def test_a_rank_with_a_reference_alone_reads_rows(tmp_path) -> None:
    config = placed_config(tmp_path, {"actor": "0-2", "reference": 3}, KL)
    alone = estimate(config, 4)[1].by_ranks[(3,)]
    assert not alone.trained
    assert alone.certain_bytes == sum(model.weight_bytes for model in alone.frozen)
    assert alone.bytes_by_phase["targets"] >= alone.certain_bytes + alone.frozen_scoring_bytes > alone.certain_bytes


def test_errors_and_warnings_name_the_ranks(placed_run) -> None:
    config, _, memory = placed_run
    least, most = (f([own.certain_bytes for own in memory.by_ranks.values()]) for f in (min, max))
    (worst,) = (ranks for ranks, own in memory.by_ranks.items() if own.certain_bytes == most)

    def machine(room: float) -> Machine:
        return Machine(device="cuda", host_bytes=1000 * GIB, gpu_bytes=int(room), ranks=5, ranks_per_device=1)

    reason = memory_error(config, memory, machine((least + most) / 2))
    assert reason is not None
    assert f"on rank{'s' if len(worst) > 1 else ''} {'4' if worst == (4,) else '0-2'} (low " in reason
    assert memory_error(config, memory, machine(most + 1)) is None
    warning = memory_warning(memory, machine(most + 1))
    assert warning is not None
    assert " on rank" in warning


def test_ranks_of_a_machine_share_its_memory(placed_run) -> None:
    config, _, memory = placed_run
    by_rank = [own.certain_bytes for ranks, own in memory.by_ranks.items() for _ in ranks]
    whole = sum(by_rank)
    for room, fits in ((whole + 1, True), (whole - 1, False)):
        machine = Machine(device="cpu", host_bytes=int(room), gpu_bytes=0, ranks=5, ranks_per_device=5)
        assert (memory_error(config, memory, machine) is None) is fits


def test_output_has_a_table_for_each_group_of_ranks(placed_run, capsys) -> None:
    _, _, memory = placed_run
    show_memory(memory, Machine(device="cuda", host_bytes=GIB, gpu_bytes=GIB, ranks=5, ranks_per_device=1))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in lines if line.startswith("on ranks")] == [
        [ranks, "of", "5"] for ranks in ("0-2", "3", "4")
    ]


def test_devices_of_servers(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "find_spec", lambda name: object())
    config = placed_config(tmp_path, {"rollout": "2-3"}, "rollout=vllm", "rollout.vllm.mode=server")
    specs, memory = estimate(config, 2)
    sampler = memory.highest.sampler
    assert sampler is not None
    assert sampler.weights == sampler.caches == 0, "engines are not on the ranks' devices"
    servers = estimate_server_memory(config, specs.shapes, 2, 8)
    assert servers is not None
    assert servers.devices == (2, 3)
    assert servers.weight_bytes == sum(4 * shape.actor.parameters for shape in specs.shapes.values())
    small = Machine(device="cuda", host_bytes=GIB, gpu_bytes=int(servers.weight_bytes) - 1, ranks=2, ranks_per_device=1)
    assert "gives device 2-3 of each machine to servers" in str(memory_error(config, RunMemory({}, servers), small))
    roomy = Machine(device="cuda", host_bytes=GIB, gpu_bytes=int(servers.weight_bytes), ranks=2, ranks_per_device=1)
    assert memory_error(config, RunMemory({}, servers), roomy) is None
    assert "rollout may need" in str(memory_warning(RunMemory({}, servers), roomy))


def test_measurement_of_agents_gradients_needs_their_shares(tmp_path: Path) -> None:
    sizes = {}
    for every in (0, 1):
        config, _ = small_config(tmp_path, "team=shared_policy", f"team.role_gradients_every={every}")
        for ranks in (1, 2):
            _, memory = estimate(config, ranks)
            (actor, critic) = next(iter(memory.by_ranks.values())).trained
            sizes[every, ranks] = actor, critic
    for place in (0, 1):
        without, one, two = (sizes[key][place] for key in ((0, 1), (1, 1), (1, 2)))
        assert without.measuring_bytes == 0
        parameters = one.shape.trained_parameters
        assert one.measuring_bytes - one.training_bytes == parameters * (one.bytes_per_weight + 4 + 2 * 4)
        assert two.measuring_bytes - two.training_bytes == parameters * (two.bytes_per_weight + 4 + 4)
        assert one.update_bytes == max(without.update_bytes, one.measuring_bytes) > without.update_bytes


def planned_copies(config: Config, ranks: int, device: str) -> list[float]:
    """By trained model, float32 copies of its trained weights that a measurement holds beside a micro-batch's."""
    models = next(iter(estimate(config, ranks, device)[1].by_ranks.values())).trained
    needed = [(model, model.measuring_bytes and model.measuring_bytes - model.training_bytes) for model in models]
    return [max(size / model.shape.trained_parameters - model.bytes_per_weight, 0.0) / 4 for model, size in needed]


def test_pilot_plans_gradients_of_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pilot on one CPU holds is counted in `tests/pilot`."""
    pilot = small_config(tmp_path, "mode=pilot", "team=shared_policy")[0]
    actor, critic = planned_copies(pilot, 1, "cpu")
    assert critic == 0
    assert planned_copies(small_config(tmp_path, "team=shared_policy")[0], 1, "cpu")[0] == 0
    assert planned_copies(pilot, 1, "cuda")[0] == 2, "one gradient and its share, before it moves to the host"
    assert planned_copies(pilot, 2, "cuda")[0] == 1.5
    assert planned_copies(pilot, 2, "cpu")[0] == actor - 32 / 2, "only the parts are sharded"
    monkeypatch.setattr(trained_memory, "MAX_PILOT_BYTES", 2**10)
    assert planned_copies(pilot, 1, "cpu")[0] == actor - 2 * 12, "four parts of both agents"
    model_parallel = replace(pilot, deepspeed=replace(pilot.deepspeed, sequence_parallel=2))
    assert planned_copies(model_parallel, 2, "cpu")[0] == 0

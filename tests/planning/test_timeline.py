"""The time line of `mode=plan`: seconds of phases computed by hand, and their order on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config import vllm
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.hardware import world_size
from ippo_cli.config.schema import Config
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.episode_length import EpisodeLength
from ippo_cli.planning.phase_times import Phase, Stage, missing_time_reason, phase_times
from ippo_cli.planning.timeline import format_chart, schedule_phases

ACTOR = ModelShape(sizes=(600, 400), layers=2, hidden=8, intermediate_size=8, kv_width=5, vocabulary=10)
CRITIC = replace(ACTOR, sizes=(500,))
# 6 tokens of the prompt and 4 of the response
LENGTH = EpisodeLength(turns=1, sequence_tokens=10, row_tokens=10)
SHAPES = {"solo": AgentShapes(actor=ACTOR, critic=CRITIC, length=LENGTH, weights_source="")}
# Per second: 500 000 operations and 50 000 bytes of a device, with its efficiency; 10^6 bytes between devices.
PLAN = [
    *("mode=plan", "plan=h100", "plan.devices=4", "plan.per_machine=4", "plan.peak_tflops=1e-6", "plan.mfu=0.5"),
    *("plan.memory_bandwidth=1e-4", "plan.decode_efficiency=0.5", "plan.link_bandwidth=1e-3"),
    *("plan.network_bandwidth=1e-5", "plan.host_bandwidth=1e-4"),
]
RUN = [
    *("task=sorting_solo", "actor.dtype=bf16", "critic.dtype=bf16", "algorithm=ppo", "algorithm.ppo_epochs=3"),
    *("rollout.buffer_size=8", "algorithm.mini_batch_size=8", "rollout.max_new_tokens=4", "deepspeed=zero1"),
]


def compose(*overrides: str) -> Config:
    config = load_config(normalize_arguments([*PLAN, *RUN, *overrides]))
    check_config(config, world_size(config, None))
    return config


def seconds(config: Config) -> dict[str, float]:
    ranks = world_size(config, None)
    phases = phase_times(config, SHAPES, compute_batch_sizes(config, ranks, 8), ranks)
    return {phase.name.removeprefix("solo "): phase.seconds for phase in phases}


def test_seconds_of_phases_on_their_ranks() -> None:
    found = seconds(compose("launch.placement={actor: 0-1, critic: 2-3}"))
    # Two ranks have 4 rows each. Step t reads 2000 bytes of weights, and 40 bytes for each of 6 + t tokens of a row.
    prefill = 2 * 1000 * 4 * 6 / 500_000
    decoding = (4 * 2000 + 4 * 40 * (6 + 7 + 8 + 9)) / 50_000
    assert found == {
        "rollout": pytest.approx(prefill + decoding),
        "values": pytest.approx(2 * 500 * 80 / (2 * 500_000)),
        "actor update": pytest.approx(3 * 6 * 1000 * 80 / (2 * 500_000)),
        "critic update": pytest.approx(3 * 6 * 500 * 80 / (2 * 500_000)),
    }


def test_rows_beyond_a_decode_batch_read_the_weights_again() -> None:
    few, many = (seconds(compose(f"rollout.decode_batch_size={size}"))["rollout"] for size in (1, 2))
    assert few - many == pytest.approx(4 * 2000 / 50_000)  # 2 rows on each of 4 ranks


def test_references_and_recomputed_activations_add_passes() -> None:
    plain = seconds(compose())
    found = seconds(compose("algorithm.kl.reward.coef=0.1", "actor.gradient_checkpointing=true"))
    assert found["reference"] == pytest.approx(2 * 1000 * 80 / (4 * 500_000))
    assert found["actor update"] == pytest.approx(plain["actor update"] * 8 / 6)


def test_shared_responses_add_rows_to_passes_and_updates() -> None:
    keys = ("task=sorting_peers", "actor.dtype=bf16", "rollout.buffer_size=8", "rollout.max_new_tokens=4")
    keys = (*keys, "algorithm=hacpo", "algorithm.mini_batch_size=8", "deepspeed=zero1")
    shapes = {name: SHAPES["solo"] for name in ("first", "second")}
    found = []
    alone = ("team.share_rollouts=false", *(f"algorithm.cross_agent.{key}=null" for key in CROSS_AGENT))
    for more in ((), alone):
        config = load_config(normalize_arguments([*PLAN, *keys, *more]))
        check_config(config, 4)
        phases = phase_times(config, shapes, compute_batch_sizes(config, 4, 8), 4)
        found.append({phase.name: phase.seconds for phase in phases})
    shared, own = found
    for name in ("first logprobs", "second logprobs", "first actor update", "second actor update"):
        assert shared[name] == pytest.approx(2 * own[name])
    assert shared["first rollout"] == own["first rollout"]


CROSS_AGENT = ("exponent", "clip_range", "capability_window")
VINE = (
    *(key for key in RUN if "critic" not in key),
    *("algorithm=vine_ppo", "algorithm.kl.loss.coef=0", "rollout.num_generations=2"),
    *("algorithm.monte_carlo.every=2", "algorithm.monte_carlo.continuations=3"),
)


def test_continuations_add_prefill_of_states_and_decoding_of_the_rest() -> None:
    config = load_config(normalize_arguments([*PLAN, *VINE]))
    # 3 continuations from the prompt of 4 groups, with 4 tokens ahead, and after 2 tokens of 8 responses: 96 tokens in
    # 36 episodes. Each of 4 ranks has 3 states to read and 9 rows with a mean of 8/3 tokens.
    later = 8 / 3
    prefill = 2 * 1000 * 3 * (6 + 4 - later) / 500_000
    read = later * 2000 + 40 * 9 * (later * (10 - later) + later * (later - 1) / 2)
    assert seconds(config)["continuations"] == pytest.approx(prefill + read / 50_000)
    assert "continuations" not in seconds(compose())


def test_gradients_are_summed_over_the_network() -> None:
    config = compose("plan.per_machine=2", "plan.peak_tflops=1")
    # A ring sends the gradients twice, of 1000 weights in bf16; 3 steps.
    assert seconds(config)["actor update"] == pytest.approx(3 * 2 * 2000 * 3 / 4 / 10_000)


def test_servers_sample_beside_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "find_spec", lambda name: object())
    servers = ["rollout=vllm", "rollout.vllm.mode=server", "launch.placement={rollout: 2-3}"]
    config = compose(*servers, "plan.devices=8")
    ranks = world_size(config, None)
    phases = phase_times(config, SHAPES, compute_batch_sizes(config, ranks, 8), ranks)
    found = {phase.name.removeprefix("solo "): phase for phase in phases}
    assert ranks == 4
    assert found["rollout"].devices == {4, 5, 6, 7}, "numbers after those of all ranks"
    assert found["logprobs"].devices == {0, 1, 2, 3}
    assert found["weights"].devices == set(range(8))
    assert found["weights"].seconds == pytest.approx(2 * 2000 / 100_000)
    chart = format_chart(schedule_phases(phases), ranks, (2, 3))
    assert chart[0].split("|")[0].split()[:4] == ["solo", "rollout", "servers", "2-3"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["actor.dtype=fp32"], "plan.peak_tflops is the speed in bf16, and solo has a model in fp32"),
        (["reward.measure_credit_every=1"], "the number of replayed turns is not known"),
        (
            ["reward.credit_assignment=counterfactual", "reward.credit_alternatives=2"],
            "the number of replayed turns is not known",
        ),
    ],
)
def test_reasons_for_no_time_line(overrides: list[str], reason: str) -> None:
    assert missing_time_reason(compose(*overrides), SHAPES) == reason


def test_unknown_speeds() -> None:
    config = load_config([])
    assert "the speeds of the devices are not known" in str(missing_time_reason(config, SHAPES))
    with pytest.raises(ConfigError, match=r"plan.peak_tflops=1e-06 must be set together with the other speeds of plan"):
        compose("plan.mfu=null")


def phase(name: str, stage: Stage, taken_s: float, devices: set[int]) -> Phase:
    return Phase(name=name, stage=stage, seconds=taken_s, devices=frozenset(devices), policy="a")


PHASES = [
    phase("rollout", Stage.rollout, 3.0, {3}),
    phase("reference", Stage.scoring, 2.0, {2}),
    phase("logprobs", Stage.scoring, 1.0, {0, 1}),
    phase("actor", Stage.update, 4.0, {0, 1}),
    phase("critic", Stage.update, 2.0, {2}),
    phase("weights", Stage.transfer, 1.0, {0, 1, 3}),
]


def test_updates_on_other_devices_overlap() -> None:
    timeline = schedule_phases(PHASES)
    assert timeline.seconds == 3 + (2 + 1) + 4 + 1
    assert {bar.phase.name: (bar.start, bar.end) for bar in timeline.bars} == {
        "rollout": (0, 3),
        "reference": (3, 5),
        "logprobs": (5, 6),
        "actor": (6, 10),
        "critic": (6, 8),
        "weights": (10, 11),
    }
    assert timeline.busy == {
        frozenset({0, 1}): pytest.approx(6 / 11),
        frozenset({2}): pytest.approx(4 / 11),
        frozenset({3}): pytest.approx(4 / 11),
    }


def test_a_rollout_ahead_overlaps_with_training() -> None:
    timeline = schedule_phases(PHASES, ahead=1)
    assert timeline.seconds == (2 + 1) + 4 + 1
    assert {bar.phase.name: bar.start for bar in timeline.bars}["rollout"] == 0
    long = [replace(PHASES[0], seconds=9.0), *PHASES[1:]]
    assert schedule_phases(long, ahead=1).seconds == 9 + 1, "training waits for the rollout"


def test_no_overlap_on_the_same_devices() -> None:
    shared = [replace(part, devices=frozenset({0})) for part in PHASES]
    assert schedule_phases(shared, ahead=0).seconds == schedule_phases(shared, ahead=1).seconds == 13


def test_chart() -> None:
    timeline = schedule_phases([replace(part, seconds=part.seconds / 1.1) for part in PHASES])
    assert format_chart(timeline, 3, (7,)) == [
        "  rollout              servers 7             2.73 s  |###########                             |",
        "  reference            rank 2                1.82 s  |          ########                      |",
        "  logprobs             ranks 0-1            0.909 s  |                  ####                  |",
        "  actor                ranks 0-1             3.64 s  |                     ###############    |",
        "  critic               rank 2                1.82 s  |                     ########           |",
        "  weights              0-1, servers 7       0.909 s  |                                    ####|",
    ]

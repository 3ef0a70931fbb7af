"""Generation by inference engines: transfers of weights, their verification, and episodes that do not wait."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine, use_fake_engines
from players import DRAWS, ROLLOUT, Players, Rounds, transcript

from ippo_cli.config.errors import EngineError, PreemptionRequested
from ippo_cli.rollout.engine_generator import EngineGenerator, request_seed
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.generator import Request, SamplingStream
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step


def make_generator(
    players: Players, verify_every: int = 1, poll: Any = None, **options: Any
) -> tuple[EngineGenerator, list[FakeEngine]]:
    engines: list[FakeEngine] = []
    sampling = dict.fromkeys(players.policies, ROLLOUT)
    generator = EngineGenerator(
        players.policies,
        ROLLOUT,
        sampling,
        poll,
        engines=use_fake_engines(players.policies, engines, **options),
        verify_every=verify_every,
    )
    return generator, engines


def requests(count: int, agent: str = "low") -> list[Request]:
    return [Request(agent=agent, prompt=[5 + row, 6], episode=row, index=row, turn=0) for row in range(count)]


def change_weights(players: Players, agent: str) -> None:
    policy = players.policies[agent].policy
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.3)
    policy.copies += 1


def test_weights_are_transferred_when_they_change() -> None:
    players = Players("low", "high")
    generator, (low, high) = make_generator(players)
    for _ in range(2):
        generator.start_collection()
    assert (low.loads, high.loads) == ([1], [1])
    change_weights(players, "low")
    generator.start_collection()
    assert (low.loads, high.loads) == ([1, 2], [1])
    for name, parameter in players.policies["low"].policy.lm.named_parameters():
        assert torch.equal(dict(low.lm.named_parameters())[name], parameter)
    assert generator.take_metrics()["time/weights"] > 0
    assert generator.take_metrics()["time/weights"] == 0


def test_agents_with_one_model_share_an_engine() -> None:
    players = Players("low", "high")
    players.policies["high"].held_policy = players.policies["low"].policy
    _, engines = make_generator(players)
    assert len(engines) == 1


def test_completions_have_the_version_of_their_weights() -> None:
    players = Players("low")
    generator, _ = make_generator(players)
    for version in (1, 2):
        generator.start_collection()
        for completion in generator.generate(("low",), requests(3), DRAWS):
            assert completion.versions is not None
            assert completion.versions.tolist() == [version] * len(completion.ids)
        change_weights(players, "low")


@pytest.mark.parametrize("fault", ["corrupt", "skip"])
def test_wrong_tensor_is_named(fault: str) -> None:
    players = Players("low", "high")
    generator, (_, high) = make_generator(players)
    generator.start_collection()
    change_weights(players, "high")
    name, _ = next(iter(players.policies["high"].policy.lm.named_parameters()))
    setattr(high, fault, name)
    with pytest.raises(EngineError, match=f"transfer 2 to the engine of high failed: {name} differ"):
        generator.start_collection()


def test_weights_of_another_agent_are_found() -> None:
    players = Players("low", "high")
    generator, (low, _) = make_generator(players)
    low.replacement = dict(players.policies["high"].policy.lm.named_parameters())
    with pytest.raises(EngineError, match=r"transfer 1 to the engine of low failed: .* and .* more tensors differ"):
        generator.start_collection()


@pytest.mark.parametrize(("verify_every", "found_at"), [(1, 2), (2, 3), (0, None)])
def test_verification_interval(verify_every: int, found_at: int | None) -> None:
    players = Players("low")
    generator, (low,) = make_generator(players, verify_every)
    generator.start_collection()
    low.corrupt, _ = next(iter(players.policies["low"].policy.lm.named_parameters()))
    failed = None
    for transfer in range(2, 5):
        change_weights(players, "low")
        try:
            generator.start_collection()
        except EngineError:
            failed = transfer
            break
    assert failed == found_at


def test_samples_do_not_depend_on_the_order_of_completion() -> None:
    plain, held = Players("low"), Players("low")
    found = []
    for players, hold in ((plain, 0), (held, 3)):
        generator, _ = make_generator(players, hold=hold)
        generator.start_collection()
        found.append([one.ids.tolist() for one in generator.generate(("low",), requests(8), DRAWS)])
    assert found[0] == found[1]
    assert len({tuple(ids) for ids in found[0]}) > 4


def test_seed_depends_on_every_part_of_a_request() -> None:
    base = requests(1)[0]
    others = [
        Request(agent="high", prompt=base.prompt, episode=0, index=0, turn=0),
        Request(agent="low", prompt=base.prompt, episode=0, index=1, turn=0),
        Request(agent="low", prompt=base.prompt, episode=0, index=0, turn=1),
    ]
    seeds = {request_seed(DRAWS, request) for request in [base, *others]}
    seeds.add(request_seed(SamplingStream(seed=4, purpose="train/1"), base))
    seeds.add(request_seed(SamplingStream(seed=3, purpose="train/2"), base))
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("error", ["preemption", "engine"])
def test_requests_are_aborted_after_an_error(error: str) -> None:
    players = Players("low")

    def poll(*_: Any) -> None:
        if error == "preemption":
            raise PreemptionRequested

    generator, (low,) = make_generator(players, poll=poll)
    generator.start_collection()
    low.broken = error == "engine"
    with pytest.raises(PreemptionRequested if error == "preemption" else EngineError):
        generator.generate(("low",), requests(4), DRAWS)
    assert not low.requests
    low.broken = False
    assert generator.step() == []


STEPS = 6


class RandomlySlow(Rounds):
    """Every step takes up to 1.2 seconds, at random."""

    def length(self, row: int) -> int:
        return STEPS

    def step(self, actions: Mapping[str, Action]) -> Step:
        time.sleep(delay(self.row, self.number))
        return super().step(actions)


def delay(row: int, number: int) -> float:
    return 1.2 * random.Random(f"{row}/{number}").random() ** 3


def test_slow_environment_delays_only_its_episode() -> None:
    players = Players("low", "high", with_engines=True)
    rows = range(12)
    expected = players.play(Rounds, rows[:1])
    began = time.perf_counter()
    found = players.play(RandomlySlow, rows, workers=12, max_new_tokens=1)
    seconds = time.perf_counter() - began
    slowest = max(sum(delay(row, number) for number in range(STEPS)) for row in rows)
    in_steps = sum(max(delay(row, number) for row in rows) for number in range(STEPS))
    assert in_steps > 1.5 * slowest, "waiting for each other would take this long"
    assert seconds < 1.3 * slowest
    assert len(transcript(found[0])) == 2 * STEPS
    assert expected[0].failure is None


def test_closed_generators_leave_their_engines_to_later_ones() -> None:
    players = Players("low", "high")
    made: list[FakeEngine] = []
    pool = use_fake_engines(players.policies, made)
    sampling = dict.fromkeys(players.policies, ROLLOUT)
    texts = []
    for count in (2, 4):
        generators = [
            EngineGenerator(players.policies, ROLLOUT, sampling, engines=pool, verify_every=1)
            for _ in range(count // 2)
        ]
        assert len(made) == count
        for generator in generators:
            generator.start_collection()
            texts.append([one.text for one in generator.generate(("low",), requests(4), DRAWS)])
            generator.finish_collection()
        for generator in generators:
            generator.close()
        change_weights(players, "low")
    assert texts[0] != texts[1] == texts[2]
    pool.close()
    assert all(engine.is_closed for engine in made)


def test_engines_that_are_not_reused_end_with_their_generator() -> None:
    players = Players("low")
    made: list[FakeEngine] = []
    shared = use_fake_engines(players.policies, made)
    pool = EnginePool(shared.acquire, reuses=False)
    generator = EngineGenerator(
        players.policies, ROLLOUT, dict.fromkeys(players.policies, ROLLOUT), engines=pool, verify_every=1
    )
    generator.start_collection()
    generator.close()
    assert [engine.is_closed for engine in made] == [True]


def test_time_of_environments_is_measured_with_one_worker() -> None:
    players = Players("low", "high", with_engines=True)
    pool = EnvironmentPool(RandomlySlow)
    players.play(pool, [0], max_new_tokens=1)
    assert pool.seconds > 0.9

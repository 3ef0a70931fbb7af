"""Credit assignment in whole iterations: replays, baselines, and no side effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import (
    assert_resume_is_exact,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    stopping_reward,
    train,
    train_on_two_ranks,
)

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.config.schema import Dtype
from ippo_cli.models.actor import Policy, load_causal_lm, load_tokenizer
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.counterfactual import replace_answer
from ippo_cli.rewards.score import compute_raw_scores
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import HfGenerator, Request, SamplingStream, sampling_settings
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Batch, Episode

SHORT = ("num_iterations=3", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
ON_A_BASE = ("actor=tiny_lora", "actor.rank=4", "critic=adapter", "critic.rank=4", "team=shared_base")
DIFFERENCE = "reward.credit_assignment=difference"
HEARD = (
    "task.agents.low.template='{letters}{heard}<'",
    "task.agents.high.template='{letters}{heard}>'",
    "rollout.max_new_tokens=4",
)
SEQUENTIAL = ("task.protocol=sequential", *HEARD)
DIALOGUE = ("task.protocol=dialogue", "task.num_turns=2", *HEARD)
FREE_RIDER = """
def reward(examples, responses):
    return {"team": [text.count("a") + len(text) / 7 for text in responses["low"]]}
"""


def spoken(episodes: Sequence[Episode]) -> list[list[tuple[str, str]]]:
    return [[(turn.agent, turn.completion.text) for turn in one.turns] for one in episodes]


def first_batch(trainer: Trainer) -> tuple[Batch, SamplingStream]:
    return trainer.collector.schedule.batch(0, 0, 1), SamplingStream(seed=trainer.config.seed, purpose="train/0")


class Apart:
    """Reference: generate every turn again, with the initial policies of the given agents."""

    def __init__(self, trainer: Trainer, agent: str) -> None:
        self.source, self.agent = trainer.collector, agent

    def context_limit(self, agent: str) -> int:
        return self.source.generator.context_limit(agent)

    def start_collection(self) -> None:
        self.source.generator.start_collection()

    def finish_collection(self) -> None:
        self.source.generator.finish_collection()

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        return [(agent,) for agent in agents]

    def generate(self, agents: Sequence[str], requests: Any, draws: SamplingStream, *, on_finished: Any = None) -> Any:
        assert self.source.initial_generator is not None
        if agents != (self.agent,):
            return self.source.generator.generate(agents, requests, draws)
        own = replace(draws, purpose=f"{draws.purpose}/initial")
        return self.source.initial_generator.generate(agents, requests, own)


def moved(trainer: Trainer) -> None:
    """Weights that differ strongly from the initial ones."""
    torch.manual_seed(1)
    with torch.no_grad():
        for agent in trainer.state.team.values():
            for weight in agent.policy.engine.module.parameters():
                weight.add_(torch.randn_like(weight) * 0.3)


@pytest.mark.parametrize("protocol", [(), SEQUENTIAL, DIALOGUE], ids=["parallel", "sequential", "dialogue"])
def test_baseline_is_score_of_fully_replayed_episodes(tmp_path: Path, protocol: Sequence[str]) -> None:
    with open_trainer(tmp_path, *SHORT, *protocol, DIFFERENCE) as trainer:
        moved(trainer)
        asked: list[tuple[str, int]] = []
        write = trainer.collector.generator.generate
        trainer.collector.generator.generate = lambda agents, requests, *rest, **more: (  # type: ignore[method-assign]
            asked.append((*agents, len(requests))),
            write(agents, requests, *rest, **more),
        )[1]
        experience = experience_of(trainer)
        result = list(asked)
        batch, draws = first_batch(trainer)
        for name in ("low", "high"):
            replayed = collect(
                trainer.collector.environments, trainer.collector.formats, batch, Apart(trainer, name), draws
            )
            assert spoken(replayed) != spoken(experience.episodes)
            config = trainer.config.reward
            weights = dict.fromkeys(("low", "high"), config)
            reward = trainer.collector.rewards.reward
            there = compute_raw_scores(reward, replayed, weights, [name], config).numbers[name]
            here = compute_raw_scores(reward, experience.episodes, weights, [name], config).numbers[name]
            assert torch.equal(experience.scores[name].score, here - there)
            assert torch.equal(experience.scores[name].raw, here)
            assert bool(experience.scores[name].score.any())
        if not protocol:  # no agent observes another: responses of others are not regenerated
            assert result == [("low", 16), ("high", 16)]
        elif protocol is SEQUENTIAL:  # `high` observes `low`, and responds again if its response differs
            assert result[:2] == [("low", 16), ("high", 16)]
            assert [agent for agent, _ in result[2:]] == ["high"]


@pytest.mark.slow
def test_agent_without_influence_gets_no_credit(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(FREE_RIDER)
    own = ["reward=function", f"reward.function={tmp_path / 'reward.py'}:reward"]
    plain = [
        "algorithm=reinforce_plus_plus",
        "algorithm.mini_batch_size=16",
        "algorithm.kl.reward.coef=0",
        "algorithm.advantage_normalization=false",
    ]
    for how in ("difference", "counterfactual", "leave_out"):
        keys = [*SHORT, *own, *plain, "rollout.num_generations=4", f"reward.credit_assignment={how}"]
        row = rows(train(tmp_path, *keys))[-1]
        assert row[f"high/credit/{how}/zero_fraction"] == 1.0
        assert row[f"high/credit/{how}/std"] == 0.0
        assert row["high/targets/zero_advantage_fraction"] == 1.0
        assert row["high/policy/grad_norm"] == 0.0
        assert row["high/score/mean"] == row["low/score/mean"] > 0
        assert row["low/credit/" + how + "/std"] > 0
        assert row["low/policy/grad_norm"] > 0


@pytest.mark.slow
def test_logging_credit_does_not_change_training(tmp_path: Path) -> None:
    plain = train(tmp_path, *SHORT, *DIALOGUE)
    measured = train(tmp_path, *SHORT, *DIALOGUE, "reward.measure_credit_every=2")
    for without, row in zip(rows(plain), rows(measured), strict=True):
        more = {key: value for key, value in row.items() if key not in without}
        assert without.items() <= row.items()
        assert any("credit/difference/mean" in key for key in more) == (row["iteration"] == 2)
        assert all("/credit/" in key or "/kl/" in key for key in more)
    expected, found = final_weights(plain), final_weights(measured)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_initial_weights_replay_after_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*SHORT, *stopping_reward(tmp_path), DIFFERENCE, "actor.learning_rate=0.01"]
    whole = assert_resume_is_exact(tmp_path, monkeypatch, *keys, at_call=7)
    assert rows(whole)[-1]["low/credit/difference/std"] > 0


@pytest.mark.slow
def test_shared_base_replays_with_adapters_off(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *SHORT, *ON_A_BASE, DIFFERENCE) as trainer:
        moved(trainer)
        for _ in range(2):
            experience, _ = trainer.step()
        config, folder = trainer.config, str(trainer.run.folder / "initial" / "shared")
        model = Policy(load_causal_lm(folder, None, Dtype.fp32)).eval()
        plain = FrozenAgent(name="low", tokenizer=load_tokenizer(folder, None), held_policy=model)
        agents = list(config.task.agents)
        generator = HfGenerator(dict.fromkeys(agents, plain), config.rollout, sampling_settings(config.task))
        reward = build_reward(config.reward, config.task.agents)
        for name in agents:
            result = [(episode, episode.turns_of_agent(name)[0]) for episode in experience.episodes]
            requests = [
                Request(agent=name, prompt=turn.prompt, episode=place, index=episode.index, turn=0)
                for place, (episode, turn) in enumerate(result)
            ]
            draws = SamplingStream(seed=config.seed, purpose="train/1/initial")
            written = generator.generate((name,), requests, draws)
            assert [one.text for one in written] != [turn.completion.text for _, turn in result]
            replayed = [
                replace_answer(episode, name, (one, not one.finished))
                for one, (episode, _) in zip(written, result, strict=True)
            ]
            weights = dict.fromkeys(agents, config.reward)
            there = compute_raw_scores(reward, replayed, weights, [name], config.reward).numbers[name]
            assert torch.equal(experience.scores[name].credit["difference"], experience.scores[name].raw - there)


@pytest.mark.core
@pytest.mark.slow
def test_two_ranks_with_zero3_replay_as_one_rank(tmp_path: Path) -> None:
    layered = ["deepspeed=zero3", "rollout.zero3_gather=layer", "rollout.buffer_size=6"]
    own = [*SHORT, "num_iterations=1", *layered, *SEQUENTIAL, DIFFERENCE]
    alone = rows(train(tmp_path, *own))[-1]
    folder = train_on_two_ranks(tmp_path / "two", *own)
    both = rows(folder)[-1]
    result = [key for key in alone if "/credit/" in key or "/score/" in key]
    assert any("/credit/" in key for key in result)
    assert {key: both[key] for key in result} == pytest.approx({key: alone[key] for key in result}, abs=1e-5)

"""Episodes of several turns in real runs: targets worked out by hand, isolation, rewards that stream, exact resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import a_trainer, final_weights, new_run, rows, train

from ippo_cli.algorithms.targets import Algorithm
from ippo_cli.config.errors import Preempted
from ippo_cli.config.schema import Credit, Truncation, TurnValue
from ippo_cli.rollout.generator import HfGenerator
from ippo_cli.training.process import run_training
from ippo_cli.training.signals import PreemptionHandler
from ippo_cli.training.trainer import Stopwatch, Trainer
from ippo_cli.types import Rollout

pytestmark = pytest.mark.slow

MARKET = '''
class Market:
    """Pays what its script says, whatever is said. Even seeds end, odd ones are cut and told something."""

    def reset(self, seed):
        self.seed, self.number = seed, 0
        return {"low": "a?"}, {}

    def step(self, action):
        self.number += 1
        if self.number == 1:
            return {"low": "b?", "high": "c?"}, {"low": 1.0, "high": 0.5}, False, False, {}
        if self.number == 2:
            return {"high": "d?"}, {"high": 2.0, "mute": -1.0}, False, False, {}
        cut = self.seed % 2 == 1
        return ({"low": "the end", "high": "over"} if cut else {}), {"low": 4.0}, not cut, cut, {}

    def close(self):
        pass


def make():
    return Market()
'''
SHORT = [
    "reward=environment",
    "task=environment",
    "rollout.max_new_tokens=2",
    "rollout.min_new_tokens=2",
    "actor.alphabet=printable",
    "evaluation.every=0",
    "algorithm.advantage_normalization=false",
]


def agents(*names: str) -> list[str]:
    made = ",".join(f'{name}:{{template:"{{observation}}"}}' for name in names)
    return ["~task.agents.player", f"+task.agents={{{made}}}"]


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A trainer whose agents low and high speak twice; each turn has two tokens. Nobody asks the third one."""
    root = tmp_path_factory.mktemp("market")
    (root / "market.py").write_text(MARKET)
    world = [f"task.environment={root / 'market.py'}:make", *agents("low", "high", "mute")]
    with a_trainer(root, *SHORT, *world, "rollout.buffer_size=4", "rollout.context_limit=64") as trainer:
        yield trainer


@pytest.fixture(scope="module")
def experience(market: Trainer) -> Any:
    found, _ = market.experience(0, Stopwatch())
    assert {one.truncation for one in found.episodes} == {"", "environment"}
    return found


# Values are .25 everywhere, gamma and lambda are .5. `low` is paid 1 for its first turn, and for its second one the 4
# that fall at the last step, in which it does not act. `high` is paid .5 before it has acted, which counts for its
# first turn, and 2 for that turn itself. Rewards stand on the last token of a turn; delta = r + .5 V' - V.
#
# low, by token: deltas          -.125    .875   -.125   3.75     with a bootstrap 4 + .5 * .25 - .25 = 3.875 at the end
#   A = delta + .25 A'            .14453125  1.078125  .8125  3.75
# low, by turn:  deltas                    .875           3.75
#   A = delta + .25 A'                    1.8125          3.75
# high, by token: deltas         -.125   2.375   -.125   -.25     with a bootstrap 0 + .125 - .25 = -.125 at the end
#   A                             .45703125  2.328125  -.1875  -.25
# high, by turn:  deltas                  2.375           -.25
#   A                                     2.3125          -.25
BY_HAND = {
    ("low", "token", False): [0.14453125, 1.078125, 0.8125, 3.75],
    ("low", "token", True): [0.146484375, 1.0859375, 0.84375, 3.875],
    ("low", "turn", False): [1.8125, 1.8125, 3.75, 3.75],
    ("low", "turn", True): [1.84375, 1.84375, 3.875, 3.875],
    ("high", "token", False): [0.45703125, 2.328125, -0.1875, -0.25],
    ("high", "token", True): [0.458984375, 2.3359375, -0.15625, -0.125],
    ("high", "turn", False): [2.3125, 2.3125, -0.25, -0.25],
    ("high", "turn", True): [2.34375, 2.34375, -0.125, -0.125],
}


def value_heads(trainer: Trainer) -> Iterator[Any]:
    for agent in trainer.state.agents.values():
        assert agent.critic is not None
        yield agent.critic.engine.module.value_head.out


@pytest.mark.parametrize("truncation", [Truncation.none, Truncation.bootstrap])
@pytest.mark.parametrize("credit", [Credit.token, Credit.turn])
def test_advantages_of_several_turns_are_those_worked_out_by_hand(
    market: Trainer, experience: Any, credit: Credit, truncation: Truncation
) -> None:
    with torch.no_grad():
        for out in value_heads(market):
            out.weight.zero_()
            out.bias.fill_(0.25)
    settings = replace(
        market.config.algorithm,
        credit=credit,
        truncation=truncation,
        turn_value=TurnValue.first if credit is Credit.turn else None,
        gamma=0.5,
        gae_lambda=0.5,
    )
    algorithm = Algorithm(config=settings, num_generations=1, seed=0)
    targets, _ = algorithm.targets(market.state.agents, experience)
    for name in ("low", "high"):
        rollout, found = experience.rollouts[name], targets[name]
        for row, episode in enumerate(experience.episodes):
            own = rollout.response_mask[row]
            assert rollout.turn[row][own].tolist() == [0, 0, 1, 1]
            cut = episode.truncation != ""
            assert int(rollout.length[row]) == len(own.nonzero()) + 2 + (0 if not cut else 7 if name == "low" else 4)
            expected = torch.tensor(BY_HAND[name, credit.value, cut and truncation is Truncation.bootstrap])
            torch.testing.assert_close(found.advantages[row][own], expected, atol=1e-6, rtol=0)
            torch.testing.assert_close(found.returns[row][own], expected + 0.25, atol=1e-6, rtol=0)
            assert not found.advantages[row][~own].any()
    mute = targets["mute"]
    assert not mute.loss_mask.any()
    assert not mute.advantages.any()
    assert not experience.scores["mute"].valid.any()
    assert not experience.scores["mute"].failed.any()


def test_values_are_those_of_everything_read_by_then(market: Trainer, experience: Any) -> None:
    """The last one stands after what was told at the end; each is what the critic says of that text as a prompt."""
    torch.manual_seed(0)
    with torch.no_grad():
        for out in value_heads(market):
            out.weight.normal_()
    for name in ("low", "high"):
        agent, rollout = market.state.agents[name], experience.rollouts[name]
        before, after = agent.values(rollout)
        for row, episode in enumerate(experience.episodes):
            read: list[list[int]] = []
            for turn in episode.of(name):
                ids = turn.completion.ids.tolist()
                read += [turn.prompt + ids[:place] for place in range(len(ids))]
            end = episode.final.get(name, turn.prompt + ids)
            assert (len(end) > len(turn.prompt + ids)) == (episode.truncation != "")
            wanted = torch.cat([value_of(agent, ids) for ids in [*read, end]])
            assert wanted.std() > 0.01
            torch.testing.assert_close(before[row][rollout.response_mask[row]], wanted[:-1], atol=1e-5, rtol=0)
            torch.testing.assert_close(after[row : row + 1], wanted[-1:], atol=1e-5, rtol=0)


def value_of(agent: Any, ids: list[int]) -> torch.Tensor:
    """What a critic says after these tokens, which stand in a row of their own."""
    prompt, one = torch.tensor([ids]), torch.ones(1, 1)
    alone = Rollout(
        prompt_ids=prompt,
        prompt_mask=torch.ones_like(prompt).bool(),
        response_ids=one.long(),
        response_mask=one.bool(),
        turn=torch.zeros(1, 1).long(),
        length=torch.ones(1).long(),
        logprobs=0 * one,
        behavior_logprobs=0 * one,
        finished=torch.ones(1).bool(),
        texts=[""],
    )
    return agent.values(alone)[0][0]


TALK = '''
class Talk:
    """Two agents act at once for one to three rounds. One of the two is paid by PAID."""

    def reset(self, seed):
        self.seed, self.number = seed, 0
        return self.told(), {}

    def step(self, action):
        self.number += 1
        over = self.number > self.seed % 3
        paid = {"low": action["low"].count("a") + len(action["low"]) / 7, "high": PAID}
        return ({} if over else self.told()), paid, over, False, {}

    def told(self):
        return {name: f"{self.seed % 10}{self.number}{name}" for name in ("low", "high")}

    def close(self):
        pass


def make():
    return Talk()
'''


def talk(root: Path, name: str, paid: str = 'float(len(action["high"]))') -> list[str]:
    (root / f"{name}.py").write_text(TALK.replace("PAID", paid))
    return [
        *(key for key in SHORT if "new_tokens" not in key and "advantage" not in key),
        f"task.environment={root / f'{name}.py'}:make",
        *agents("low", "high"),
        "rollout.max_new_tokens=4",
        "num_iterations=2",
    ]


def test_one_agents_update_is_bitwise_the_same_whatever_the_other_is_paid_in_turn(tmp_path: Path) -> None:
    first = final_weights(train(tmp_path, *talk(tmp_path, "one")))
    second = final_weights(train(tmp_path, *talk(tmp_path, "two", '-3.0 * action["high"].count("b") + self.number')))
    assert all(torch.equal(value, second[name]) for name, value in first.items() if name.startswith("low/"))
    assert any(not torch.equal(first[name], second[name]) for name in first if name.startswith("high/actor/"))


def scored(root: Path, *overrides: str) -> Any:
    with a_trainer(root, *overrides) as trainer:
        return trainer.experience(0, Stopwatch())[0]


JUDGE = """
def judge(episodes):
    return {
        "team_by_step": [[len(turn.completion.text) / 3 for turn in one.turns] for one in episodes],
        "agent": {"first": [float(one.index) for one in episodes], "second": [1.0 for one in episodes]},
    }
"""


def test_a_reward_that_streams_gives_the_scores_of_one_that_does_not(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    keys = ["task=relay", "reward=function", f"reward.function={tmp_path / 'judge.py'}:judge"]
    keys += ["reward.agent_weight=0.5", "evaluation.every=0"]
    whole = scored(tmp_path, *keys)
    streamed = scored(tmp_path, *keys, "reward.reward_batch_rows=3")
    for name in ("first", "second"):
        assert whole.scores[name].score.std() > 0.01
        assert torch.equal(streamed.scores[name].score, whole.scores[name].score)
        assert torch.equal(streamed.scores[name].valid, whole.scores[name].valid)
        assert torch.equal(streamed.rollouts[name].response_ids, whole.rollouts[name].response_ids)


class Polls:
    """Every time that a run looks whether it was asked to leave: in which turn it was, None between turns.

    At `stop_at` of them it is asked.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int | None] = []
        self.stop_at: int | None = None
        self.turn: int | None = None
        poll, generate = PreemptionHandler.poll, HfGenerator.generate

        def counted(handler: PreemptionHandler) -> None:
            self.turns.append(self.turn)
            if len(self.turns) == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            poll(handler)

        def noted(generator: HfGenerator, agent: str, requests: Any, *rest: Any, **options: Any) -> Any:
            self.turn = max((request.turn for request in requests), default=None)
            try:
                return generate(generator, agent, requests, *rest, **options)
            finally:
                self.turn = None

        monkeypatch.setattr(PreemptionHandler, "poll", counted)
        monkeypatch.setattr(HfGenerator, "generate", noted)

    def forget(self, stop_at: int | None) -> None:
        self.turns, self.stop_at = [], stop_at


def test_stopping_in_the_middle_of_an_episode_and_resuming_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls, keys = Polls(monkeypatch), talk(tmp_path, "talk")
    whole = train(tmp_path, *keys)
    expected_rows, expected_weights = rows(whole), final_weights(whole)
    turns = polls.turns
    within = [place for place, turn in enumerate(turns, 1) if turn == 1]
    between = [place for place in range(2, len(turns)) if turns[place - 1] is None and 1 in turns[place : place + 40]]
    for stop_at in (within[len(within) // 2], within[-2], between[-1]):
        config, folder = new_run(tmp_path, *keys)
        polls.forget(stop_at)
        with pytest.raises(Preempted):
            run_training(config, folder, resumed=False)
        assert len(polls.turns) == stop_at, "it left where it was asked to"
        polls.forget(None)
        run_training(config, folder, resumed=True)
        assert rows(folder) == expected_rows
        weights = final_weights(folder)
        assert weights.keys() == expected_weights.keys()
        assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())

"""Targets of several turns on real rollouts: hand-computed advantages, and values per turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import experience_of, open_trainer

from ippo_cli.config.schema import Credit, Truncation, TurnValue
from ippo_cli.training.targets import Algorithm
from ippo_cli.training.trainer import Trainer
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
SETTINGS = [
    "reward=environment",
    "task=environment",
    "rollout.max_new_tokens=2",
    "rollout.min_new_tokens=2",
    "actor.alphabet=printable",
    "evaluation.every=0",
    "algorithm.advantage_normalization=false",
]


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A trainer in which low and high act twice, with two tokens per turn. A third agent never acts."""
    root = tmp_path_factory.mktemp("market")
    (root / "market.py").write_text(MARKET)
    agents = ",".join(f'{name}:{{template:"{{observation}}"}}' for name in ("low", "high", "mute"))
    world = [f"task.environment={root / 'market.py'}:make", "~task.agents.player", f"+task.agents={{{agents}}}"]
    with open_trainer(root, *SETTINGS, *world, "rollout.buffer_size=4", "rollout.context_limit=64") as trainer:
        yield trainer


@pytest.fixture(scope="module")
def experience(market: Trainer) -> Any:
    found = experience_of(market)
    assert {one.truncation for one in found.episodes} == {"", "environment"}
    return found


# Values are 0.25 everywhere, gamma and lambda are 0.5. `low` gets reward 1 for its first turn, and for its second the
# reward 4 of the last step, in which it does not act. `high` gets 0.5 before it has acted, which counts for its
# first turn, and 2 for that turn itself. Rewards are on the last token of a turn; delta = r + 0.5 V' - V.
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
    for agent in trainer.state.team.values():
        assert agent.critic is not None
        yield agent.critic.engine.module.value_head.out


@pytest.mark.parametrize("truncation", [Truncation.none, Truncation.bootstrap])
@pytest.mark.parametrize("credit", [Credit.token, Credit.turn])
def test_multi_turn_advantages_match_hand_computation(
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
    targets, _ = algorithm.compute_targets(market.state.team, experience)
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


@pytest.mark.parametrize("truncation", [Truncation.penalty, Truncation.soft_penalty])
def test_penalty_is_for_responses_that_a_token_limit_ended(
    market: Trainer, experience: Any, truncation: Truncation
) -> None:
    rollout = experience.rollouts["low"]
    expected = [
        [number for number, turn in enumerate(episode.turns_of_agent("low")) if not turn.completion.finished]
        for episode in experience.episodes
    ]
    assert rollout.cut_turns == expected
    cut_turns = [[0], [], [1], [0, 1]]  # whether or not the environment truncated the episode
    changed = replace(experience, rollouts={**experience.rollouts, "low": replace(rollout, cut_turns=cut_turns)})
    settings = replace(market.config.algorithm, truncation_penalty=0.5, truncation_ramp=0.5)
    found = []
    for mode in (Truncation.none, truncation):
        algorithm = Algorithm(
            config=replace(settings, truncation=mode),
            num_generations=1,
            seed=0,
            token_limits=dict.fromkeys(("low", "high", "mute"), 99),
        )
        found.append(algorithm.compute_targets(market.state.team, changed)[0]["low"].rewards)
    for row, turns in enumerate(cut_turns):
        own = rollout.response_mask[row]
        lost = (found[0] - found[1])[row][own].tolist()
        assert lost == pytest.approx([0.0, 0.5 * (0 in turns), 0.0, 0.5 * (1 in turns)])


def test_values_match_prefix_forward_passes(market: Trainer, experience: Any) -> None:
    """Each value is the critic's value of the text so far as a prompt; the last one is after the final observation."""
    torch.manual_seed(0)
    with torch.no_grad():
        for out in value_heads(market):
            out.weight.normal_()
    for name in ("low", "high"):
        agent, rollout = market.state.team[name], experience.rollouts[name]
        before, after = agent.values(rollout)
        for row, episode in enumerate(experience.episodes):
            read: list[list[int]] = []
            for turn in episode.turns_of_agent(name):
                ids = turn.completion.ids.tolist()
                read += [turn.prompt + ids[:place] for place in range(len(ids))]
            end = episode.final.get(name, turn.prompt + ids)
            assert (len(end) > len(turn.prompt + ids)) == (episode.truncation != "")
            wanted = torch.cat([value_of(agent, ids) for ids in [*read, end]])
            assert wanted.std() > 0.01
            torch.testing.assert_close(before[row][rollout.response_mask[row]], wanted[:-1], atol=1e-5, rtol=0)
            torch.testing.assert_close(after[row : row + 1], wanted[-1:], atol=1e-5, rtol=0)


def value_of(agent: Any, ids: list[int]) -> torch.Tensor:
    """The critic's value after these tokens as a separate row."""
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

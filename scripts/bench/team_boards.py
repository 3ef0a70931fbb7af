"""Board games of PettingZoo for two agents that alternate the moves of one side: environments of `task=benchmark_pair`.

An invalid move is replaced by a random legal move, without a penalty.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import yaml

from ippo_cli.benchmark.environments import AGENTS
from ippo_cli.compose.load import config_dir
from ippo_cli.config.schema import (
    AgentConfig,
    CurriculumConfig,
    IllegalMove,
    ObservationForm,
    Opponent,
    PettingzooConfig,
)
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.environments.build import make_environment_factory

NO_CURRICULUM = CurriculumConfig(**yaml.safe_load((config_dir() / "base" / "curriculum.yaml").read_text()))


class Consultation:
    """A board game of PettingZoo against a random player: the two agents alternate the moves of one side.

    The side alternates between both seats. Both agents get the side's reward.
    """

    def __init__(self, env_id: str) -> None:
        self.world = make_environment_factory(_one_side(env_id))()

    def reset(self, seed: int) -> tuple[dict[str, str], dict[str, float]]:
        self.luck = random.Random(seed)
        self.moves = 0
        return self._observe(self.world.reset({"seed": seed}, seed)["side"]), {}

    def step(self, actions: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float], bool, bool, dict[str, float]]:
        (legal,) = self.world.actions().values()
        (text,) = actions.values()
        step = self.world.step({"side": Action(text.strip() if text.strip() in legal else self.luck.choice(legal))})
        self.moves += 1
        paid = dict.fromkeys(AGENTS, step.rewards["side"])
        return self._observe(step.observations["side"]), paid, step.terminated, step.truncated, {}

    def actions(self) -> Mapping[str, Sequence[str]]:
        (legal,) = self.world.actions().values()
        return {AGENTS[self.moves % len(AGENTS)]: legal}

    def close(self) -> None:
        self.world.close()

    def _observe(self, board: str) -> dict[str, str]:
        return {AGENTS[self.moves % len(AGENTS)]: board}


def _one_side(env_id: str) -> PettingzooConfig:
    return PettingzooConfig(
        kind="pettingzoo",
        agents={"side": AgentConfig(template="{observation}")},
        primary_metric="sampled/score",
        curriculum=NO_CURRICULUM,
        train_size=1,
        eval_size=1,
        num_workers=1,
        environment_args={},
        max_turns=None,
        env_id=env_id,
        observation=ObservationForm.short,
        invalid_reward=0.0,  # never used: only legal moves reach the environment
        illegal_move=IllegalMove.retry,
        opponent=Opponent.random,
        seat="alternate",
    )


def tictactoe() -> Consultation:
    return Consultation("classic/tictactoe_v3")


def connect_four() -> Consultation:
    return Consultation("classic/connect_four_v3")

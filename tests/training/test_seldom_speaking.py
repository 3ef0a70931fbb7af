"""An agent that acts in some episodes only, in some steps only, on one of two ranks, or never."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small import assert_two_ranks_agree, open_trainer

from ippo_cli.compose.arguments import normalize_arguments

pytestmark = pytest.mark.slow

WORLD = '''
class Table:
    """One agent speaks in every episode; another in those whose seed SPEAKS."""

    def reset(self, seed):
        self.seed = seed
        return {"often": f"{seed % 10}"}, {}

    def step(self, action):
        paid = {name: text.count("a") + sum(map(ord, text)) % 7 / 7 for name, text in action.items()}
        if "often" in action and SPEAKS(self.seed):
            return {"seldom": f"{self.seed % 7}"}, paid, False, False, {}
        return {}, paid, True, False, {}

    def close(self):
        pass


def make():
    return Table()
'''
SPEAKS = "(lambda seed: seed % 5 == 0)"


def overrides(root: Path, speaks: str = SPEAKS) -> list[str]:
    file = root / "world.py"
    file.write_text(WORLD.replace("SPEAKS(", f"{speaks}("))
    return normalize_arguments(
        [
            "task=environment",
            f"task.environment={file}:make",
            "~task.agents.player",
            '+task.agents={often:{template:"{observation}"},seldom:{template:"{observation}"}}',
            "rollout.max_new_tokens=4",
            "rollout.buffer_size=16",
            "task.agents.seldom.rollout.temperature=1.5",
            "task.agents.seldom.algorithm.mini_batch_size=2",
            "task.agents.seldom.algorithm.ppo_epochs=2",
            "algorithm=ppo",
            "algorithm.mini_batch_size=8",
            "algorithm.credit=turn",
            "algorithm.turn_value=first",
            "actor.warmup_iterations=0",
            "evaluation.every=0",
            "checkpoint.every=0",
            "num_iterations=2",
        ]
    )


def test_agent_that_acts_on_one_rank_matches_one_rank(tmp_path: Path) -> None:
    keys = overrides(tmp_path)
    one = assert_two_ranks_agree(tmp_path, *keys, ranks=["deepspeed=zero2"])
    trained = [row for row in one if row["iteration"] > 0]
    for row in trained:
        assert 0 < row["seldom/policy/steps"] < 16, "in some steps nobody speaks, and these are none"


def test_agent_without_turns_does_not_learn(tmp_path: Path) -> None:
    found = []
    for place, speaks in (("never", "(lambda seed: False)"), ("some", SPEAKS)):
        (tmp_path / place).mkdir()
        with open_trainer(tmp_path / place, *overrides(tmp_path / place, speaks)) as trainer:
            team = trainer.state.team
            before = {
                id(learner): {name: value.clone() for name, value in learner.engine.module.state_dict().items()}
                for learner in team.learners
            }
            trainer.step()
            row = trainer.state.progress.row
            assert row is not None
            moved = {
                f"{learner.name}/{learner.stage}": any(
                    not torch.equal(value, before[id(learner)][name])
                    for name, value in learner.engine.module.state_dict().items()
                )
                for learner in team.learners
            }
            assert moved == {
                "often/policy": True,
                "often/value": True,
                "seldom/policy": place == "some",
                "seldom/value": place == "some",
            }
            assert math.isnan(row["seldom/score/mean"]) == (place == "never")
            found.append(row)
    never, some = found
    own = [key for key in never if key.startswith("often/") and "score" not in key and "targets" not in key]
    assert never["seldom/policy/steps"] == never["seldom/value/steps"] == 0
    assert never["often/rollout/logprob"] == some["often/rollout/logprob"]
    assert len(own) > 10

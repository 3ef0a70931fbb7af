"""Needs of methods against what options take away; needs of a user's code are checked as those of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.needs import DESCRIPTIONS, Need, check_own_needs
from ippo_cli.planning.prepare import check_user_methods

DIALOGUE = ("task.protocol=dialogue", "task.num_turns=2")
POOL = ("team.opponent_pool.every=2", "team.opponent_pool.size=4", "team.opponent_pool.share=0.5")


def test_each_need_has_a_description() -> None:
    assert set(DESCRIPTIONS) == set(Need)


@pytest.mark.parametrize(
    ("overrides", "need", "message"),
    [
        (
            POOL,
            "current_policies",
            "needs episodes in which all agents act with their current policies, and team.opponent",
        ),
        (
            ("rollout.num_generations=1",),
            "groups",
            "needs several responses to each prompt, and rollout.num",
        ),
        (("algorithm=grpo", "critic=none"), "critic", "needs values of a critic, and critic=none trains none"),
        (DIALOGUE, "one_turn", "needs responses of one turn, and task.kind=sorting has episodes of several turns"),
        (
            ("reward.processor=[zscore]",),
            "fixed_scores",
            "needs scores that depend on their own response alone, and",
        ),
        ((), "quiet", "has the unknown need 'quiet'; use some of current_weights current_policies"),
    ],
)
def test_needs_of_a_user(overrides: tuple[str, ...], need: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def loss(logprobs, old_logprobs, advantages, mask):\n    return -logprobs * advantages\n\n"
        f"loss.needs = ({need!r},)\n"
    )
    config = load_config([*overrides, f"algorithm.objective={tmp_path / 'mine.py'}:loss"])
    with pytest.raises(ConfigError) as raised:
        check_user_methods(config)
    assert str(raised.value).startswith(f"algorithm.objective={config.algorithm.objective} {message}")


def test_met_needs_are_not_reported() -> None:
    lost = (Need.one_turn, Need.groups, Need.critic, Need.no_critic)
    needs = [need.value for need in Need if need not in lost]
    check_own_needs(load_config(["algorithm=ppo"]), "algorithm.objective=a.py:b", needs)

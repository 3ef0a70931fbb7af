"""Arms that a configuration admits, their overrides, and reasons for the others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.configured import load_training_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ConversationConfig
from ippo_cli.controls.arms import ControlPlan, build_plan, overrides_without_messages
from ippo_cli.controls.compare_arms import comparison_folder, named_comparison, run_comparison, split_settings
from ippo_cli.controls.settings import ControlsConfig, parse_settings
from ippo_cli.sweeps.folder import JobRow

KEYS = OWN_KEYS["ippo-controls"]


def plan(*argv: str) -> ControlPlan:
    own, typed = split_settings(argv, KEYS)
    return build_plan(typed, parse_settings(own))


def own_overrides(found: ControlPlan) -> dict[str, set[str]]:
    """By arm, its overrides that are not the team's."""
    return {name: set(overrides) - set(found.team) for name, overrides in found.arms.items()}


def test_keys_of_the_command_are_those_of_the_settings() -> None:
    assert {f"controls.{key}" for key in vars(ControlsConfig())} == set(KEYS)


def test_team_of_two_with_messages_admits_every_arm_but_single_agents() -> None:
    found = plan("task=signalling", "seed=7")
    assert own_overrides(found) == {
        "frozen_partner_sender": {"task.agents.receiver.frozen=true"},
        "frozen_partner_receiver": {"task.agents.sender.frozen=true"},
        "shared_policy": {"team=shared_policy"},
        "no_messages": {"task.protocol=parallel", "task.agents.receiver.template='<'"},
        "other_seeds": set(),
    }
    assert set(found.refused) == {"single_samples", "single_tokens"}
    assert "controls.single='task=sorting_solo'" in found.refused["single_samples"]
    assert (found.first_seed, found.score_range, found.alpha_per_arm) == (7, (0.0, 1.0), 0.01)
    assert not any(text.startswith("seed=") for texts in (found.team, *found.arms.values()) for text in texts)


def test_overrides_of_single_agent_replace_those_of_the_team() -> None:
    found = plan(
        "task=sorting",
        "rollout.max_new_tokens=3",
        "task.agents.low.warm_start_answer='{high}'",
        "controls.single=task=sorting_solo rollout.max_new_tokens=6 ~task.agents.low.warm_start_answer",
    )
    assert found.arms["single_samples"] == ("task=sorting_solo", "rollout.max_new_tokens=6")
    assert found.arms["single_tokens"] == found.arms["single_samples"]
    assert "has no messages" in found.refused["no_messages"]


@pytest.mark.parametrize("task", ["refine", "debate"])
def test_templates_without_messages_keep_their_other_fields(task: str) -> None:
    overrides = [f"task={task}", "actor.alphabet=printable"]
    team = load_training_config(overrides)
    arm = load_training_config(normalize_arguments([*overrides, *overrides_without_messages(team)]))
    assert isinstance(arm.task, ConversationConfig)
    assert arm.task.protocol == "parallel"
    for name, agent in arm.task.agents.items():
        wanted = team.task.agents[name].template.replace("{agents.generator}", "").replace("{agents.verifier}", "")
        assert agent.template == wanted
        if task == "debate":
            turn_template = team.task.agents[name].turn_template
            assert turn_template is not None
            assert agent.turn_template == turn_template.replace("{heard}", "") != turn_template


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=ladder"], "decides what agents observe"),
        (["task=signalling", "task.agents.receiver.template='jinja:{{ agents.sender }}<'"], "is code that reads"),
        (["task=sorting"], "has no messages"),
    ],
)
def test_messages_that_templates_do_not_decide_stay(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        overrides_without_messages(load_training_config(overrides))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["controls.alpha=1"], "controls.alpha=1.0 is out of range"),
        (["controls.seeds=0"], "controls.seeds=0 is out of range"),
        (["controls.seeds=x"], "controls.seeds=x must be a whole number"),
        (["controls.differences=norml"], "controls.differences=norml"),
        (["controls.range=[1,0]"], "is not a lower and an upper limit"),
        (["controls.arms=[no_message]"], "is no arm (closest: no_messages)"),
        (["controls.arms=[single_samples]"], "names no task for one agent"),
        (["controls.arms=[no_messages]"], "has no messages"),
        (["controls.single=task=sorting_sol"], "task=sorting_sol"),
        (["controls.single=task=sorting_solo task.primary_metric=greedy/score"], "differs from the team's"),
        (["controls.single=task=sorting_solo seed=3"], "seeds are paired"),
        (["seed=1,2"], "has several values"),
        (["resume=auto"], "the same command again continues"),
        (["reward.agent_weight=1"], "controls.range=[0,1]"),
        (["task=sorting_solo"], "has one agent"),
        (["controls.range=[0,inf]"], "is not a lower and an upper limit"),
        (["controls.range=[nan,1]"], "is not a lower and an upper limit"),
        (["controls.range=[0,1]", "controls.differences=normal"], "has no effect with controls.differences=normal"),
        (["controls.arms=[]"], "names no arm; use some of"),
        (["controls.arms=[shared_policy]", "controls.single=task=sorting_sol"], "has no effect without an arm single"),
        (["controls.arms=[shared_policy]", "controls.no_messages=seed=1"], "has no effect without an arm no_messages"),
    ],
)
def test_wrong_arguments(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan("task=sorting", *argv)
    assert message in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("reward", ["reward.agent_weight=1", "reward.agent_weight=0"])
def test_normal_differences_have_no_range(reward: str) -> None:
    """Not even a known one: no interval depends on it, so scores are not compared with it."""
    assert plan("task=sorting", reward, "controls.differences=normal").score_range is None


def test_equal_overrides_have_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = comparison_folder(["task=relay", "name=x"], ControlsConfig())
    assert one.parent == tmp_path / "outputs" / "controls"
    assert one.name.startswith("x-")
    assert comparison_folder(["name=x", "task=relay", "sweep.max_parallel=2"], ControlsConfig(seeds=5)) == one
    assert comparison_folder(["name=x", "task=relay"], ControlsConfig(single="task=y")) != one
    assert comparison_folder([], ControlsConfig(to="here")) == tmp_path / "here"


def test_folders_of_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hi")
    (tmp_path / "sweep").mkdir()
    jobs = [asdict(JobRow(job=seed, overrides=[f"seed={seed}"], folder=f"{seed}_seed={seed}")) for seed in (1, 2)]
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"arguments": ["seed=1,2"], "jobs": jobs}))
    for name, rule in (("notes.txt", "is a file"), (".", "has other files"), ("sweep", "has other files")):
        with pytest.raises(ConfigError, match=rf"controls\.to=.*{rule}"):
            run_comparison(["task=sorting", f"controls.to={tmp_path / name}"], KEYS)
    rules = {"missing": "does not exist", "notes.txt": "is not the folder", "sweep": "is not the folder"}
    for name, rule in rules.items():
        with pytest.raises(ConfigError, match=rule):
            named_comparison([str(tmp_path / name)])
    assert named_comparison(["task=sorting"]) is None
    assert named_comparison(["--help"]) is None

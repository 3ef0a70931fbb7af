"""`ippo-eval` before anything is loaded: its own keys, overrides of a run, and error messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.cli import evaluate
from ippo_cli.compose import exits
from ippo_cli.compose.load import compose_node, load_config, resolve_config, to_yaml

LOADING = "ippo: loading libraries and weights\n"  # printed before errors that are found in the checkpoints
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def ippo_eval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process; return its exit code and its output."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ippo-eval", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as raised:
            evaluate.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        error = captured.err.replace(LOADING, "")
        return int(raised.value.code or 0), " ".join((captured.out + error).split())

    return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(to_yaml(resolve_config(compose_node(["critic=value_head"]))))
    (tmp_path / "overrides.json").write_text(json.dumps(["critic=value_head"]))
    return tmp_path


def test_no_arguments_prints_help(ippo_eval: Call) -> None:
    for arguments in ((), ("--help",), ("run=x", "-h")):
        code, output = ippo_eval(*arguments)
        assert code == 0
        assert output.startswith("ippo-eval: ")


def test_run_required_and_must_exist(ippo_eval: Call, tmp_path: Path) -> None:
    code, output = ippo_eval("seed=1")
    assert (code, output.split(";")[0]) == (2, "ippo: run= is missing")
    assert ippo_eval(f"runn={tmp_path}") == (2, f"ippo: runn={tmp_path} is not a key; did you mean run=?")
    code, output = ippo_eval(f"run={tmp_path}")
    assert code == 2
    assert "is not a run" in output


def test_invalid_key_reported_before_missing_checkpoint(ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval(f"run={run}", "checkpoint=best", "evaluation.sed=1")
    assert code == 2
    assert output.startswith("ippo: evaluation.sed=1 is not a key; did you mean evaluation.seed")


def test_config_rules_apply_to_evaluation(ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval(f"run={run}", "rollout.temperature=0")
    assert code == 2
    assert output.startswith("ippo: rollout.temperature=0.0 is out of range")


def test_unreadable_overrides_file(ippo_eval: Call, run: Path) -> None:
    (run / "overrides.json").write_text("{")
    code, output = ippo_eval(f"run={run}")
    assert code == 14
    assert "overrides.json cannot be read" in output


def test_run_without_checkpoints(ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval(f"run={run}")
    assert code == 14
    assert "there are no checkpoints, and only the initial weights can be used" in output
    code, output = ippo_eval(f"run={run}", "checkpoint=best")
    assert code == 14
    assert "is not a run's folder: run.json" in output
    code, output = ippo_eval(f"run={run}", "checkpoint=initial")
    assert code == 14
    assert "the initial weights of the run are unknown" in output
    code, output = ippo_eval(f"run={run}", "checkpoint=newest")
    assert code == 2
    assert output.startswith(
        "ippo: checkpoint=newest is not a checkpoint; use latest, best, initial or an iteration's number"
    )


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("actor.model=/other", "keys of this group with an effect: actor.{dtype,"),
        ("algorithm=ppo", "groups with an effect: task reward"),
        ("seed=1", "did you mean evaluation.seed=?"),
        ("actor.learning_rate=0.1", "keys of this group with an effect: actor.{dtype,"),
        ("rollout.buffer_size=8", "keys of this group with an effect: rollout.{temperature,top_p,"),
        ("task.agents.low.actor.learning_rate=0.1", "keys of this group with an effect: task.agents.*.actor.{dtype,"),
        ("task.train_size=9", "keys of this group with an effect: task.{primary_metric,"),
        ("num_iterations=3", "groups with an effect: task reward"),
        ("output_dir=x", "groups with an effect: task reward"),
    ],
)
def test_keys_without_effect_on_evaluation(override: str, remedy: str, ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval(f"run={run}", override)
    assert code == 2
    assert output.startswith(f"ippo: {override} has no effect on a run's evaluation; {remedy}")


def test_run_and_model_exclusive(ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval(f"run={run}", "model=/other")
    assert code == 2
    assert output.startswith(f"ippo: run={run} cannot be combined with model=/other")
    code, output = ippo_eval("model=/other", "checkpoint=best")
    assert code == 2
    assert output.startswith("ippo: checkpoint=best selects a checkpoint of a run, and model= is not a run")
    code, output = ippo_eval("model=/other", "actor.model=/more")
    assert code == 2
    assert output.startswith("ippo: actor.model=/more has no effect on a model's evaluation")
    code, output = ippo_eval("model=/other", "task=jsonl")
    assert code == 2
    assert "- task.eval=null names no data" in output
    assert "task.train" not in output, "no training data are needed"


def test_eval_rows_exclude_training_rows(ippo_eval: Call, run: Path) -> None:
    (run / "config.yaml").write_text(to_yaml(resolve_config(compose_node(["critic=value_head"]))))
    size = load_config([]).task.eval_size
    code, output = ippo_eval(f"run={run}", f"task.eval_size={size + 1}")
    assert code == 2
    assert output.startswith(f"ippo: task.eval_size={size + 1} would include training examples of the run; use at most")
    code, output = ippo_eval(f"run={run}", f"++task.eval_size={size + 1}")
    assert (code, "would include training examples of the run" in output) == (2, True)
    assert ippo_eval(f"run={run}", f"task.eval_size={size}")[0] == 14, "no checkpoint"


def test_changed_defaults_rejected(ippo_eval: Call, run: Path) -> None:
    (run / "overrides.json").write_text("[]")
    (run / "config.yaml").write_text(to_yaml(resolve_config(compose_node(["rollout.temperature=0.5"]))))
    code, output = ippo_eval(f"run={run}")
    assert code == 14
    assert "rollout.temperature: 0.5 -> 1.0" in output
    code, output = ippo_eval(f"run={run}", "rollout.temperature=0.7")  # an explicit override is allowed
    assert "rollout.temperature: " not in output
    assert "checkpoint" in output


def a_run(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node(list(overrides)))))
    (folder / "overrides.json").write_text(json.dumps(list(overrides)))
    return folder


def test_cross_play_keys(ippo_eval: Call, run: Path) -> None:
    for arguments, beginning in (
        (("checkpoints=all",), "ippo: checkpoints=all requires crossplay=true; add crossplay=true, or use checkpoint="),
        (("crossplay=yes",), "ippo: crossplay=yes is neither true nor false"),
        (
            ("crossplay=true", "checkpoint=best"),
            "ippo: checkpoint=best selects one checkpoint, and crossplay=true needs a list",
        ),
        (("crossplay=true", "checkpoints=[]"), "ippo: checkpoints=[] is empty"),
        (("crossplay=true", "checkpoints=all,best"), "ippo: checkpoints=all,best combines all with other checkpoints"),
        (("crossplay=true", "checkpoints=3"), "ippo: checkpoints=3 cannot be used"),
        (
            ("crossplay=true", "checkpoints=all", "rollout.buffer_size=8"),
            "ippo: rollout.buffer_size=8 has no effect",
        ),
    ):
        code, output = ippo_eval(f"run={run}", *arguments)
        assert (code, output[: len(beginning)]) == (2, beginning)
    assert ippo_eval("model=x", "crossplay=true")[1].startswith("ippo: model=x is not a run, and crossplay=true pairs")
    code, output = ippo_eval(f"run=[{run},{run}/other]")
    assert (code, "contains several runs; add crossplay=true, or use one run" in output) == (2, True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("task=relay",), "has the agents first second, and {first} has low high"),
        (("task.length=4",), "has task.length=4, and {first} has 6"),
        (("task.agents.low.template=x",), "has task.agents.low.template=x, and {first} has {{letters}}<"),
        (("rollout.temperature=0.5",), "has rollout.temperature=0.5, and {first} has 1.0"),
        (("task.agents.high.rollout.top_k=3",), "has task.agents.high.rollout.top_k=3, and {first} has 0"),
        (("reward.match=exact",), "has reward.match=exact, and {first} has"),
    ],
)
def test_cross_play_requires_same_task_and_reward(
    overrides: tuple[str, ...], words: str, ippo_eval: Call, tmp_path: Path
) -> None:
    first, other = a_run(tmp_path / "first"), a_run(tmp_path / "other", *overrides)
    code, output = ippo_eval(f"run=[{first},{other}]", "crossplay=true")
    assert code == 2
    assert output.startswith(f"ippo: run={other} ")
    assert words.format(first=first) in output


def test_cross_play_allows_other_training_settings(ippo_eval: Call, tmp_path: Path) -> None:
    first = a_run(tmp_path / "first")
    other = a_run(tmp_path / "other", "seed=1", "actor.hidden_size=32", "algorithm=ppo", "critic=value_head")
    code, output = ippo_eval(f"run=[{first},{other}]", "crossplay=true")
    assert (code, output.startswith("ippo: checkpoints=latest cannot be used")) == (2, True), (
        "the runs have no checkpoints yet"
    )


def test_tiny_actor_rejected_for_model(ippo_eval: Call, tmp_path: Path) -> None:
    overrides = ("task=sorting", "task.agents.low.actor.kind=tiny")
    code, output = ippo_eval(f"model={tmp_path}", *overrides)
    assert code == 2
    assert output.startswith("ippo: task.agents.low.actor.kind=tiny is created by training")


def test_invalid_comparisons_rejected(ippo_eval: Call, run: Path, tmp_path: Path) -> None:
    other = a_run(tmp_path / "other", "task.length=4")
    for arguments, beginning in (
        (
            (f"run={run}", "compare_checkpoint=best"),
            "ippo: compare_checkpoint=best selects a checkpoint of compare=, which is missing",
        ),
        ((f"run={run}", f"compare={other}"), f"ippo: run={other} has task.length=4, and {run} has 6"),
        (
            (f"run={run}", "compare=best", "compare_checkpoint=3"),
            "ippo: compare_checkpoint=3 selects a checkpoint, and compare= is not a run",
        ),
        ((f"run={run}", "compare=best", "crossplay=true"), "ippo: compare=best cannot be combined with crossplay=true"),
        (("model=x", f"compare={other}"), f"ippo: compare={other} is of a run, and model= can only be compared with a"),
        (("model=x", "compare=best"), "ippo: compare=best is of a run"),
        (
            ("model=x", "compare=y", "checkpoint=best"),
            "ippo: checkpoint=best selects a checkpoint of a run, and model=",
        ),
    ):
        code, output = ippo_eval(*arguments)
        assert (code, output[: len(beginning)]) == (2, beginning)
    code, output = ippo_eval(f"run={run}", "compare=../no/such")
    assert (code, output) == (3, "ippo: compare=../no/such: there is no such file or folder")


def test_primary_metric_of_disabled_mode_rejected(ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval(f"run={run}", "evaluation.sampled=false", "task.primary_metric=sampled/score")
    assert code == 2
    assert output.startswith("ippo: task.primary_metric=sampled/score needs the sampled evaluation; set evaluation.")
    code, output = ippo_eval(f"run={run}", "evaluation.num_generations=0")
    assert (code, output.startswith("ippo: evaluation.num_generations=0 is out of range")) == (2, True)


def test_eval_share_or_filter_must_match_run(ippo_eval: Call, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 4)
    data = [f"task.train={tmp_path / 'rows.jsonl'}", "task.eval=null", "task.eval_share=0.5"]
    run = a_run(tmp_path / "run", "task=jsonl", *data, "task.agents.solo.answer=a")
    for typed in ("task.eval_share=0.6", "task.filter=true", "++task.columns.prompt=prompt"):
        code, output = ippo_eval(f"run={run}", typed)
        assert (code, "changes the held-out rows of the run (task.eval_share=0." in output) == (2, True), output
    code, output = ippo_eval(
        f"run={run}", "task.eval_share=null", f"task.eval={tmp_path / 'rows.jsonl'}", "task.filter=a"
    )
    assert (code, "there are no checkpoints" in output) == (14, True), output


def test_model_requires_task(ippo_eval: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, output = ippo_eval(f"model={tmp_path}", "evaluation.size=4")
    assert code == 2
    assert output.startswith(f"ippo: model={tmp_path} needs a task; add task=")


def test_empty_run_list_rejected(ippo_eval: Call) -> None:
    assert ippo_eval("run=[]") == (2, "ippo: run=[] contains no run; use the folder of a run, run=outputs/NAME/DATE-ID")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["critic=maybe"], "critic=maybe is neither true nor false"),
        (["critic_states=9"], "critic_states=9 requires critic=true"),
        (["critic=true", "critic_states=1"], "critic_states=1 is not an integer of at least 2"),
        (["critic=true", "critic_reference=best"], "critic_reference=best is not known; use one of monte_carlo exact"),
        (["critic=true", "compare=initial"], "compare=initial is another report"),
        (["critic=true", "crossplay=true"], "crossplay=true is another report"),
        (["credit_prompts=9"], "credit_prompts=9 requires credit=true"),
        (["credit=true", "credit_prompts=1"], "credit_prompts=1 is not an integer of at least 2"),
        (["credit=true", "compare=initial"], "compare=initial is another report"),
        (["critic=true", "credit=true"], "credit=true is another report"),
    ],
)
def test_keys_of_critic_reports(ippo_eval: Call, run: Path, keys: list[str], message: str) -> None:
    code, output = ippo_eval(f"run={run}", *keys)
    assert code == 2
    assert output.startswith(f"ippo: {message}")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["attribution=1"], "attribution=1 is neither true nor false"),
        (["attribution_baseline=3"], "attribution_baseline=3 requires attribution=true"),
        (["attribution=true", "crossplay=true"], "crossplay=true is another report"),
        (["attribution=true", "critic=true"], "attribution=true is another report"),
        (["attribution=true", "run=[a,b]"], "run=[a,b] contains several runs"),
    ],
)
def test_keys_of_attribution(ippo_eval: Call, run: Path, keys: list[str], message: str) -> None:
    code, output = ippo_eval(f"run={run}", *keys)
    assert (code, message in output) == (2, True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["exploitability=yes"], "exploitability=yes is not known; use one of true false exact"),
        (["exploitability_iterations=3"], "exploitability_iterations=3 is a setting of trained responders"),
        (["exploitability=exact", "exploitability_start=initial"], "exploitability_start=initial is a setting of"),
        (
            ["exploitability=true", "exploitability_iterations=0"],
            "exploitability_iterations=0 is not a positive integer",
        ),
        (["exploitability=true", "exploitability_start=best"], "exploitability_start=best is not known"),
        (["exploitability=true", "crossplay=true"], "crossplay=true is another report"),
        (["exploitability=exact", "attribution=true"], "exploitability=exact is another report"),
        (["exploitability=exact"], "exploitability=exact enumerates the legal actions of an environment"),
        (
            ["exploitability=true", "evaluation.sampled=false", "task.primary_metric=greedy/score"],
            "evaluation.sampled=false leaves no sampled scores",
        ),
    ],
)
def test_keys_of_exploitability(ippo_eval: Call, run: Path, keys: list[str], message: str) -> None:
    code, output = ippo_eval(f"run={run}", *keys)
    assert code == 2
    assert message in output


def test_exploitability_needs_two_agents(ippo_eval: Call, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "task=sorting_solo")
    code, output = ippo_eval(f"run={run}", "exploitability=true")
    assert code == 2
    assert output.startswith("ippo: exploitability=true needs at least two agents")


def test_critic_reports_need_a_run_with_values(ippo_eval: Call, run: Path) -> None:
    code, output = ippo_eval("model=PATH", "critic=true", "task=sorting")
    assert (code, output.split(";")[0]) == (
        2,
        "ippo: model=PATH is not a run, and critic=true reads weights of a run",
    )
    overrides = ["algorithm=grpo", "rollout.num_generations=4"]
    (run / "config.yaml").write_text(to_yaml(resolve_config(compose_node(overrides))))
    (run / "overrides.json").write_text(json.dumps(overrides))
    code, output = ippo_eval(f"run={run}", "critic=true")
    assert code == 2
    assert "no agent has one (critic=none)" in output

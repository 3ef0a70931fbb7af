"""`ippo-eval` before anything is loaded: its own keys, a run's keys, and what is told where neither fits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.cli import evaluate
from ippo_cli.compose import exits
from ippo_cli.compose.load import compose_node, load_config, resolve_config, to_yaml

LOADING = "ippo-eval: loading libraries and weights\n"  # where what is wrong is known from checkpoints alone
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def ippo_eval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process: its exit code, and what it said."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ippo-eval", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as leaving:
            evaluate.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        error = said.err.replace(LOADING, "")
        return int(leaving.value.code or 0), " ".join((said.out + error).split())

    return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(to_yaml(resolve_config(compose_node(["critic=value_head"]))))
    (tmp_path / "overrides.json").write_text(json.dumps(["critic=value_head"]))
    return tmp_path


def test_without_arguments_it_says_how_it_is_used(ippo_eval: Call) -> None:
    for arguments in ((), ("--help",), ("run=x", "-h")):
        code, said = ippo_eval(*arguments)
        assert code == 0
        assert said.startswith("ippo-eval: ")


def test_a_run_must_be_named_and_be_there(ippo_eval: Call, tmp_path: Path) -> None:
    code, said = ippo_eval("seed=1")
    assert (code, said.split(";")[0]) == (2, "ippo: run= is missing")
    assert ippo_eval(f"runn={tmp_path}") == (2, f"ippo: runn={tmp_path} is no key; did you mean run=?")
    code, said = ippo_eval(f"run={tmp_path}")
    assert code == 14
    assert "there is no run" in said


def test_a_mistake_among_the_runs_keys_is_blamed_and_not_the_run(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", "checkpoint=best", "evaluation.sed=1")
    assert code == 2
    assert said.startswith("ippo: evaluation.sed=1 is no key; did you mean evaluation.seed")


def test_rules_hold_for_an_evaluation_too(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", "rollout.temperature=0")
    assert code == 2
    assert said.startswith("ippo: rollout.temperature=0.0 is out of range")


def test_garbled_overrides_are_told(ippo_eval: Call, run: Path) -> None:
    (run / "overrides.json").write_text("{")
    code, said = ippo_eval(f"run={run}")
    assert code == 14
    assert "overrides.json cannot be read" in said


def test_a_run_without_a_checkpoint_is_told(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}")
    assert code == 14
    assert "there are no checkpoints, and only the initial weights can be used" in said
    code, said = ippo_eval(f"run={run}", "checkpoint=best")
    assert code == 14
    assert "run.json tells of no evaluation" in said
    code, said = ippo_eval(f"run={run}", "checkpoint=initial")
    assert code == 14
    assert "what the run began with is not known" in said
    code, said = ippo_eval(f"run={run}", "checkpoint=newest")
    assert code == 2
    assert said.startswith("ippo: checkpoint=newest is not known; use latest, best, initial or an iteration's number")


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("actor.model=/other", "those of this group that can: actor.dtype"),
        ("algorithm=ppo", "those that can are keys of task reward"),
        ("seed=1", "did you mean evaluation.seed=?"),
        ("actor.learning_rate=0.1", "those of this group that can: actor.dtype"),
        ("rollout.buffer_size=8", "those of this group that can: rollout.{temperature,top_p,"),
        ("task.agents.low.actor.learning_rate=0.1", "those of this group that can: task.agents.*.actor.dtype"),
        ("task.train_size=9", "those of this group that can: task.{primary_metric,eval,"),
        ("num_iterations=3", "those that can are keys of task reward"),
        ("output_dir=x", "those that can are keys of task reward"),
    ],
)
def test_keys_without_an_effect_on_a_runs_evaluation(override: str, remedy: str, ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", override)
    assert code == 2
    assert said.startswith(f"ippo: {override} can have no effect on a run's evaluation; {remedy}")


def test_a_model_or_a_run_is_evaluated(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", "model=/other")
    assert code == 2
    assert said.startswith(f"ippo: run={run} cannot be combined with model=/other")
    code, said = ippo_eval("model=/other", "checkpoint=best")
    assert code == 2
    assert said.startswith("ippo: checkpoint=best names the weights of a run")
    code, said = ippo_eval("model=/other", "actor.model=/more")
    assert code == 2
    assert said.startswith("ippo: actor.model=/more can have no effect on a model's evaluation")
    code, said = ippo_eval("model=/other", "task=jsonl")
    assert code == 2
    assert "- task.eval=null names no data" in said
    assert "task.train" not in said, "no training data are needed"


def test_a_run_is_not_evaluated_on_what_it_was_trained_on(ippo_eval: Call, run: Path) -> None:
    (run / "config.yaml").write_text(to_yaml(resolve_config(compose_node(["critic=value_head"]))))
    size = load_config([]).task.eval_size
    code, said = ippo_eval(f"run={run}", f"task.eval_size={size + 1}")
    assert code == 2
    assert said.startswith(f"ippo: task.eval_size={size + 1} would reach into what the run was trained on; use at most")
    code, said = ippo_eval(f"run={run}", f"++task.eval_size={size + 1}")
    assert (code, "would reach into what the run was trained on" in said) == (2, True)
    assert ippo_eval(f"run={run}", f"task.eval_size={size}")[0] == 14, "no checkpoint"


def test_a_run_whose_own_overrides_give_something_else_today_is_refused(ippo_eval: Call, run: Path) -> None:
    (run / "overrides.json").write_text("[]")
    (run / "config.yaml").write_text(to_yaml(resolve_config(compose_node(["rollout.temperature=0.5"]))))
    code, said = ippo_eval(f"run={run}")
    assert code == 14
    assert "rollout.temperature: 0.5 -> 1.0" in said
    code, said = ippo_eval(f"run={run}", "rollout.temperature=0.7")  # what is typed is meant
    assert "rollout.temperature: " not in said
    assert "checkpoint" in said


def a_run(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node(list(overrides)))))
    (folder / "overrides.json").write_text(json.dumps(list(overrides)))
    return folder


def test_cross_play_is_asked_for_and_takes_lists(ippo_eval: Call, run: Path) -> None:
    for arguments, said_first in (
        (("checkpoints=all",), "ippo: checkpoints=all is a list for crossplay=true; add that, or use checkpoint="),
        (("crossplay=yes",), "ippo: crossplay=yes is neither true nor false"),
        (("crossplay=true", "checkpoint=best"), "ippo: checkpoint=best names one checkpoint, and crossplay=true takes"),
        (("crossplay=true", "checkpoints=[]"), "ippo: checkpoints=[] names nothing"),
        (("crossplay=true", "checkpoints=all,best"), "ippo: checkpoints=all,best names all, and others beside"),
        (("crossplay=true", "checkpoints=3"), "ippo: checkpoints=3 cannot be used"),
        (
            ("crossplay=true", "checkpoints=all", "rollout.buffer_size=8"),
            "ippo: rollout.buffer_size=8 can have no effect",
        ),
    ):
        code, said = ippo_eval(f"run={run}", *arguments)
        assert (code, said[: len(said_first)]) == (2, said_first)
    assert ippo_eval("model=x", "crossplay=true")[1].startswith("ippo: model=x is no run, and crossplay=true is")
    code, said = ippo_eval(f"run=[{run},{run}/other]")
    assert (code, "names several runs; add crossplay=true, or give one" in said) == (2, True)


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
def test_runs_that_ask_or_score_otherwise_do_not_play_together(
    overrides: tuple[str, ...], words: str, ippo_eval: Call, tmp_path: Path
) -> None:
    first, other = a_run(tmp_path / "first"), a_run(tmp_path / "other", *overrides)
    code, said = ippo_eval(f"run=[{first},{other}]", "crossplay=true")
    assert code == 2
    assert said.startswith(f"ippo: run={other} ")
    assert words.format(first=first) in said


def test_runs_that_learn_otherwise_play_together(ippo_eval: Call, tmp_path: Path) -> None:
    first = a_run(tmp_path / "first")
    other = a_run(tmp_path / "other", "seed=1", "actor.hidden_size=32", "algorithm=ppo", "critic=value_head")
    code, said = ippo_eval(f"run=[{first},{other}]", "crossplay=true")
    assert (code, said.startswith("ippo: checkpoints=latest cannot be used")) == (2, True), "they have none yet"


def test_a_model_that_only_a_run_makes_is_not_evaluated_as_one_that_is_there(ippo_eval: Call, tmp_path: Path) -> None:
    made = ("task=sorting", "task.agents.low.actor.kind=tiny")
    code, said = ippo_eval(f"model={tmp_path}", *made)
    assert code == 2
    assert said.startswith("ippo: task.agents.low.actor.kind=tiny is a model that a run makes")


def test_what_cannot_be_compared_is_told_before_anything_is_loaded(ippo_eval: Call, run: Path, tmp_path: Path) -> None:
    other = a_run(tmp_path / "other", "task.length=4")
    for arguments, said_first in (
        ((f"run={run}", "compare_checkpoint=best"), "ippo: compare_checkpoint=best names weights of compare="),
        ((f"run={run}", f"compare={other}"), f"ippo: run={other} has task.length=4, and {run} has 6"),
        ((f"run={run}", "compare=best", "compare_checkpoint=3"), "ippo: compare_checkpoint=3 names weights of a run"),
        ((f"run={run}", "compare=best", "crossplay=true"), "ippo: compare=best is between two"),
        (("model=x", f"compare={other}"), f"ippo: compare={other} is a run's, and is compared with a model on the"),
        (("model=x", "compare=best"), "ippo: compare=best is a run's"),
        (("model=x", "compare=y", "checkpoint=best"), "ippo: checkpoint=best names the weights of a run"),
    ):
        code, said = ippo_eval(*arguments)
        assert (code, said[: len(said_first)]) == (2, said_first)
    code, said = ippo_eval(f"run={run}", "compare=../no/such")
    assert (code, said) == (3, "ippo: compare=../no/such: there is no such file or folder")


def test_a_score_of_a_way_of_answering_that_is_switched_off_is_told(ippo_eval: Call, run: Path) -> None:
    code, said = ippo_eval(f"run={run}", "evaluation.sampled=false", "task.primary_metric=sampled/score")
    assert code == 2
    assert said.startswith("ippo: task.primary_metric=sampled/score needs the sampled evaluation; set evaluation.")
    code, said = ippo_eval(f"run={run}", "evaluation.num_generations=0")
    assert (code, said.startswith("ippo: evaluation.num_generations=0 is out of range")) == (2, True)


def test_rows_that_a_run_was_trained_on_are_not_held_out_by_another_share_or_filter(
    ippo_eval: Call, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 4)
    data = [f"task.train={tmp_path / 'rows.jsonl'}", "task.eval=null", "task.eval_share=0.5"]
    run = a_run(tmp_path / "run", "task=jsonl", *data, "task.agents.solo.answer=a")
    for typed in ("task.eval_share=0.6", "task.filter=true", "++task.columns.prompt=prompt"):
        code, said = ippo_eval(f"run={run}", typed)
        assert (code, "would hold out other rows than the run did (task.eval_share=0." in said) == (2, True), said
    code, said = ippo_eval(
        f"run={run}", "task.eval_share=null", f"task.eval={tmp_path / 'rows.jsonl'}", "task.filter=a"
    )
    assert (code, "there are no checkpoints" in said) == (14, True), said


def test_a_model_needs_a_task(ippo_eval: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, said = ippo_eval(f"model={tmp_path}", "evaluation.size=4")
    assert code == 2
    assert said.startswith(f"ippo: model={tmp_path} needs a task to be scored on; add task=")


def test_no_run_is_named_by_an_empty_list(ippo_eval: Call) -> None:
    assert ippo_eval("run=[]") == (2, "ippo: run=[] names no run; give a run's folder, run=outputs/NAME/DATE-ID")

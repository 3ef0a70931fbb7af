"""Exit codes and messages of complete command lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ippo_cli.cli import bench, chat, controls, doctor, evaluate, export, report, runs, sweep_report, train, verify
from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.compose import exits
from ippo_cli.compose.exits import MAX_LINES, WIDTH
from ippo_cli.compose.load import compose_node, resolve_config, to_yaml

Call = Callable[..., tuple[int, str, str]]
PROGRAMS = {
    "ippo-train": train.main,
    "ippo-eval": evaluate.main,
    "ippo-export": export.main,
    "ippo-chat": chat.main,
}
PROGRAMS_WITHOUT_OVERRIDES = {
    "ippo-bench": bench.main,
    "ippo-controls": controls.main,
    "ippo-doctor": doctor.main,
    "ippo-report": report.main,
    "ippo-runs": runs.main,
    "ippo-sweep": sweep_report.main,
    "ippo-verify": verify.main,
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command in this process, in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exits, "exit_process", sys.exit)

    def call(program: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit) as leaving:
            (PROGRAMS | PROGRAMS_WITHOUT_OVERRIDES)[program]()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return int(leaving.value.code or 0), shown.out, shown.err

    return call


def write_run(folder: Path, overrides: list[str]) -> Path:
    """Write the folder of a run as it is before the first checkpoint."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node(overrides))))
    (folder / "overrides.json").write_text(json.dumps(overrides))
    return folder


TRAIN = [
    (["gamma=0,9"], ["decimal comma", "use algorithm.gamma=0.9"]),
    (["algorithm.gamma=0,9"], ["decimal comma", "use algorithm.gamma=0.9"]),
    (["seed=1,2,3"], ["has several values", "add -m"]),
    (["rollout.stop_strings=Q:,A:"], ["must be a list; write 'rollout.stop_strings=[Q:,A:]'"]),
    (["rollout.stop_strings=[a],[b]"], ["has several values; add -m to train once with each of them"]),
    (["rollout.stop_strings=a,b"], ["must be a list", "write 'rollout.stop_strings=[a,b]'"]),
    (["task.agents.low.template=Sort, please"], ["""quotes: 'task.agents.low.template="Sort, please"'"""]),
    (["experiment=nope"], ["is an unknown option", "choose from", "probe_grid"]),
    (["custom_reward_function.path=x.py"], ["verl has it", "use reward=function reward.function=path.py:function"]),
    (["actor_rollout_ref.rollout.name=vllm"], ["verl has it", "use rollout=hf, rollout=vllm"]),
    (["trainer.nope=1"], ["verl has such keys", "docs/migrating.md"]),
    (["task=two"], ["is an unknown option", "choose your own file", "task=path/to/two.yaml"]),
    (["task=sortin"], ["closest: sorting"]),
    (["my/two.yaml"], ["unexpected argument", "did you mean task=my/two.yaml?"]),
    (["train.jsonl"], ["did you mean task=jsonl task.train=train.jsonl?"]),
    (["ppo"], ["did you mean algorithm=ppo?"]),
    (["team.groups=w:[low", "team.groups=high]"], ["split by the shell", "'team.groups={w:[low,high]}'"]),
    (["rollout.temperature=0"], ["evaluation.greedy=true", "above 0"]),
    (["algorithm=ppo", "rollout.buffer_size=64", "algorithm.mini_batch_size=48"], ["does not divide"]),
    (["tracker=[wandb,nope]"], ["choose from tensorboard wandb mlflow"]),
    (["--lr", "3"], ["is not a flag", "use actor.learning_rate"]),
    (["--config-name=mine"], ["is not supported"]),
    (["hydra.run.dir=x"], ["is not supported", "output_dir="]),
    (["~seed"], ["cannot be deleted"]),
    (["algorithm.gamma=abc"], ["must be a number"]),
    (["lam=0.9"], ["verl", "use algorithm.gae_lambda"]),
    (["=3"], ["'=3'", "key=value"]),
    (["rollout.top_k=1.5"], ["must be a whole number"]),
    (["deterministic=perhaps"], ["must be true or false"]),
    (["seed=null"], ["must not be null"]),
    (["mode=plann"], ["use one of train critic plan"]),
    (
        ["task=jsonl", "task.train=a.jsonl", "task.eval=b.jsonl"],
        ["answer=null leaves actor=tiny no reference answers", "vocabulary"],
    ),
]


@pytest.mark.parametrize(("arguments", "words"), TRAIN, ids=lambda value: "-".join(value)[:40])
def test_error_names_remedy(arguments: list[str], words: list[str], command: Call, tmp_path: Path) -> None:
    code, out, err = command("ippo-train", *arguments)
    message = " ".join(err.split())
    assert (code, out) == (2, "")
    assert [word for word in words if word not in message] == [], message
    assert len(err.splitlines()) <= MAX_LINES
    assert max(map(len, err.splitlines())) <= WIDTH
    assert list(tmp_path.iterdir()) == [], "no run folder is created for an invalid configuration"


def test_all_invalid_arguments_reported(command: Call) -> None:
    code, _, err = command(
        "ippo-train", "--lr", "3", "hydra.run.dir=x", "nope=1", "algorithm=pppo", "algorithm.gamma=abc", "seed=-1"
    )
    assert code == 2
    assert err.startswith("ippo: 6 mistakes\n")
    for part in ("--lr 3", "hydra.run.dir=x", "nope=1", "algorithm=pppo", "algorithm.gamma=abc", "seed=-1"):
        assert f"- {part} " in err
    assert len(err.splitlines()) <= MAX_LINES
    assert max(map(len, err.splitlines())) <= WIDTH


def test_all_violated_rules_reported(command: Call) -> None:
    code, _, err = command(
        "ippo-train",
        "rollout.num_generations=7",
        "algorithm.mini_batch_size=100",
        "algorithm.kl.loss.coef=0.1",
        "algorithm.kl.loss.estimator=k1",
        "name=a/b",
    )
    assert code == 2
    for part in (
        "rollout.num_generations=7",
        "algorithm.mini_batch_size=100",
        "algorithm.kl.loss.estimator=k1",
        "name=",
    ):
        assert f"- {part}" in err


def test_consequential_errors_suppressed(command: Call) -> None:
    _, _, err = command("ippo-train", "rollout.bufer_size=100", "rollout.num_generations=25")
    assert err == "ippo: rollout.bufer_size=100 is not a key; did you mean rollout.buffer_size?\n"
    _, _, err = command("ippo-train", "rollout.buffer_size=0", "algorithm=ppo")
    assert err.startswith("ippo: rollout.buffer_size=0 is out of range")


def test_many_errors_truncated_to_max_lines(command: Call) -> None:
    code, _, err = command("ippo-train", *(f"wrong_{number}=1" for number in range(20)))
    assert code == 2
    assert err.startswith("ippo: 20 mistakes\n")
    assert err.endswith("- and 10 more\n")
    assert len(err.splitlines()) == MAX_LINES


def test_experiment_without_plus(command: Call) -> None:
    code, out, _ = command("ippo-train", "--cfg", "job", "experiment=probe_grid")
    assert code == 0
    assert yaml.safe_load(out)["task"]["kind"] == "probe_grid"


def test_trackers_combined_or_disabled(command: Call) -> None:
    _, out, _ = command("ippo-train", "--cfg", "job", "tracker=[mlflow, wandb]")
    shown = yaml.safe_load(out)["tracker"]
    assert shown["kind"] == "wandb_mlflow"
    assert {"project", "experiment", "tensorboard"} <= shown.keys()
    _, out, _ = command("ippo-train", "--cfg", "job", "tracker=[trackio, wandb]")
    assert yaml.safe_load(out)["tracker"]["kind"] == "wandb_trackio"
    _, out, _ = command("ippo-train", "--cfg", "job", "tracker=none")
    assert yaml.safe_load(out)["tracker"]["tensorboard"] is False


def test_help_topics(command: Call) -> None:
    for topic, words in {
        "algorithm": ["Options", "ppo", "algorithm.gamma"],
        "rollout.temperature": ["divides the logits", "float", "default", "CoMLRL"],
        "task.agents.low.actor.dtype": ["fp32 | bf16"],
        "algorithm.kl": ["algorithm.kl.reward.coef"],
        "kl_ctrl.kl_coef": ["algorithm.kl.reward.coef"],
    }.items():
        code, out, _ = command("ippo-train", "--help", topic)
        assert code == 0
        assert [word for word in words if word not in out] == []
        assert max(map(len, out.splitlines())) <= WIDTH
    code, out, _ = command("ippo-train", "--help", "task.agents.low.template")
    assert (code, out.split(":")[0]) == (0, "task.agents.NAME.template")
    code, out, _ = command("ippo-train", "--help", "eval/sampled/score")
    assert (code, out.split(":")[0]) == (0, "eval/<mode>/score")
    assert "did you mean" not in command("ippo-train", "--help", "run_id")[2]
    code, _, err = command("ippo-train", "--help", "temperatur")
    assert (code, err) == (2, "ippo: --help temperatur is not a group or key; did you mean rollout.temperature?\n")


@pytest.mark.parametrize(("program", "keys"), OWN_KEYS.items())
def test_help_explains_the_keys_of_each_command(program: str, keys: tuple[str, ...], command: Call) -> None:
    for key in keys:
        code, out, _ = command(program, "--help", key)
        assert code == 0
        assert out.startswith(f"{key}: a key of this command\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_width(program: str, command: Call) -> None:
    code, out, _ = command(program, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= WIDTH


def test_info_is_short(command: Call) -> None:
    code, out, _ = command("ippo-train", "--info")
    assert code == 0
    assert "torch" in out
    assert len(out.splitlines()) <= 24


def test_contradicting_report_formats_rejected(command: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    for arguments, words in (
        (["format=xml"], "use one of table json csv markdown latex"),
        (["format=csv", "json=true"], "contradicts format=csv"),
        (["json=perhaps"], "is neither true nor false"),
    ):
        code, out, err = command("ippo-eval", "run=run", *arguments)
        assert (code, out) == (2, "")
        assert words in err


def test_all_keys_without_effect_reported(command: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    code, _, err = command("ippo-eval", "run=run", "seed=3", "actor.learning_rate=1", "critic.nope=2")
    assert code == 2
    assert "did you mean evaluation.seed=?" in err
    assert "- actor.learning_rate=1 has no effect" in err
    assert "- critic.nope=2 is not a key" in err


@pytest.mark.parametrize("typed", ["latest", "outputs/mine", "outputs", "outputs/mine/b/checkpoints"])
def test_run_found_from_nearby_folder(typed: str, command: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "outputs/mine/a", [])
    write_run(tmp_path / "outputs/mine/b", [])
    code, _, err = command("ippo-eval", f"run={typed}")
    assert code == 14
    assert err.startswith(f"run={typed} is run=outputs/mine/b\n")
    assert "there are no checkpoints, and only the initial weights can be used" in " ".join(err.split())


@pytest.mark.parametrize("program", ["ippo-eval", "ippo-export", "ippo-chat"])
def test_folder_without_a_key_is_the_run(program: str, command: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "outputs/mine/a", [])
    more = ["to=x"] if program == "ippo-export" else []
    code, _, err = command(program, "outputs/mine/a", *more)
    assert code == 14
    assert "outputs/mine/a: there are no checkpoints" in " ".join(err.split())
    code, _, err = command(program, "outputs/none", *more)
    assert code == 2
    assert "run=outputs/none is not a run; use a run's folder" in " ".join(err.split())


def test_checkpoint_path_sets_run_and_iteration(command: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    (tmp_path / "run/checkpoints/step_00000004").mkdir(parents=True)
    code, _, err = command("ippo-eval", "run=run/checkpoints/step_00000004", "checkpoint=2")
    assert code == 2
    assert "checkpoint=2 contradicts run=run/checkpoints/step_00000004" in " ".join(err.split())
    code, _, err = command("ippo-eval", "run=nowhere")
    assert code == 2
    assert "is not a run" in err


def test_exported_team_must_match_task_agents(command: Call, tmp_path: Path) -> None:
    for name in ("low", "high"):
        (tmp_path / "exported" / name).mkdir(parents=True)
    (tmp_path / "exported/export.json").write_text(json.dumps({"agents": {"low": {}, "high": {}}}))
    code, _, err = command("ippo-eval", "model=exported", "task=sorting_solo")
    assert code == 2
    assert "has the agents low high, and the task also has solo" in " ".join(err.split())
    code, _, err = command("ippo-eval", "model=exported", "task=sorting")
    assert code == 2
    assert "has only an adapter in low/" in err


def test_fixed_option_reported_by_group_name(command: Call, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ["critic=value_head"])
    step = run / "checkpoints/step_00000001"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text(json.dumps({"files": {}}))
    code, _, err = command("ippo-train", "resume=run", "critic=separate")
    assert code == 14
    assert "critic=separate: the run was started with critic=value_head" in err
    assert "critic.kind" not in err


def test_run_to_resume_that_does_not_exist_is_a_wrong_input(command: Call) -> None:
    code, _, err = command("ippo-train", "resume=nofolder")
    assert (code, err.startswith("ippo: resume=nofolder is not a run;")) == (2, True)
    code, _, err = command("ippo-train", "-m", "resume=nofolder", "seed=1,2")
    assert (code, err.startswith("ippo: resume=nofolder is not a sweep;")) == (2, True)


def test_last_of_two_values_of_one_key_counts(command: Call) -> None:
    code, out, err = command("ippo-train", "--cfg", "job", "seed=1", "seed=2")
    assert (code, "seed: 2\n" in out, err) == (0, True, "note: seed=1 seed=2: the last one counts\n")
    _, _, err = command("ippo-train", "--cfg", "job", "seed=2", "seed=2")
    assert err == ""
    _, _, err = command("ippo-verify", "nowhere", "count=1", "count=2")
    assert err.startswith("note: count=1 count=2: the last one counts\n")


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("critic.learning_rate", ["0.001", "1e-05 (separate centralized value_head)", "0.0001 (adapter)"]),
        ("reward.match", ["characters | exact (exact_match)", "all | share (code)", "strict | flexible (gsm8k)"]),
        ("experiment", ["self_play", "probe_grid"]),
        ("self_play", ["experiment=self_play"]),
    ],
)
def test_help_of_options(topic: str, words: list[str], command: Call) -> None:
    code, out, _ = command("ippo-train", "--help", topic)
    assert code == 0
    assert [word for word in words if word not in " ".join(out.split())] == []


def test_help_names_counterparts_of_the_key_only(command: Call) -> None:
    assert "prompt_key" not in command("ippo-train", "--help", "name")[1]
    assert "prompt_key (verl)" in command("ippo-train", "--help", "task.agents.low.template")[1]


def test_help_of_an_unknown_word_names_keys_that_mention_it(command: Call) -> None:
    code, _, err = command("ippo-train", "-h", "entropy")
    assert (code, "-h entropy is not" in err, "algorithm.entropy_coef" in err) == (2, True, True)

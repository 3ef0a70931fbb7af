"""`ippo-train` as a process: output, exit codes and imports."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import yaml

import ippo_cli
from ippo_cli.cli.help import EVAL_HELP, explain_topic, unknown_topic_message
from ippo_cli.compose.diagnose import config_groups, filter_completions
from ippo_cli.compose.load import compose_node, resolve_config, to_yaml

SOURCE = Path(ippo_cli.__file__).parents[1]
HEAVY = ("torch", "transformers", "deepspeed", "datasets", "rich")
SLOW = ("hydra", "omegaconf", "yaml", *HEAVY)


def environment(**more: str) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return ours | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | more


def train(*arguments: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that has its imports already."""
    return forked.run("ippo_cli.cli.train", *arguments, folder=folder, environment=environment(**more), limit_s=60)


def train_from_start(*arguments: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its imports, which take most of its time."""
    return subprocess.run(
        [sys.executable, "-m", "ippo_cli.cli.train", *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=60,
    )


def child_cpu_seconds() -> float:
    """CPU time of the commands that have ended: unlike wall time it does not depend on other processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def imported(code: str, folder: Path) -> set[str]:
    """The top-level modules that are imported after running `code`."""
    tail = "\nimport json, sys; print('\\n' + json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    run = subprocess.run(
        [sys.executable, "-c", code + tail], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


CALL = """
import sys
from ippo_cli.cli.train import main
sys.argv = ['ippo-train', *{arguments!r}]
try:
    main()
except SystemExit as leaving:
    assert not leaving.code, leaving.code
"""


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_fast(flag: str, tmp_path: Path) -> None:
    start = child_cpu_seconds()
    answer = train_from_start("seed=1", flag, folder=tmp_path)
    assert child_cpu_seconds() - start < 1.5
    assert answer.returncode == 0
    assert answer.stdout.startswith("ippo-train: ")
    assert answer.stdout.index("Examples") < answer.stdout.index("Keys")
    assert imported(CALL.format(arguments=[flag]), tmp_path) & set(SLOW) == set()


def test_cfg_job_from_any_folder(tmp_path: Path) -> None:
    answer = train("--cfg", "job", "--resolve", "algorithm=ppo", "actor.dtype=bf16", folder=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    shown = yaml.safe_load(answer.stdout)
    assert shown["algorithm"]["objective"] == "clip"
    assert shown["critic"]["dtype"] == "bf16"  # an interpolation, resolved
    assert "???" not in answer.stdout
    assert "hydra" not in shown
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_imports_no_torch(tmp_path: Path) -> None:
    modules = imported(CALL.format(arguments=["--cfg", "job"]), tmp_path)
    assert "hydra" in modules
    assert modules & set(HEAVY) == set()


def test_invalid_argument_exits_with_code_two(tmp_path: Path) -> None:
    answer = train_from_start("algorithm.gamma=1.5", folder=tmp_path)
    message = " ".join(answer.stderr.split())
    assert answer.returncode == 2, message
    assert answer.stderr.startswith("ippo: algorithm.gamma=1.5 ")
    assert [word for word in ("[0, 1]", "at most 1") if word not in message] == [], message
    assert list(tmp_path.iterdir()) == [], "no run folder is created for an invalid configuration"


BROKEN = """
class World:
    def reset(self, seed): raise KeyError("moves")
    def step(self, action): ...
    def close(self): ...

def talk(example, agents):
    yield {"low": example["nothing"]}
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["task=environment", "task.environment=broken.py:World"],
            "broken.py:World fails (broken.py:3: KeyError: 'moves')",
        ),
        (
            ["task.protocol=broken.py:talk"],
            "broken.py:talk fails (broken.py:8: KeyError: 'nothing'); fix the error there",
        ),
        (["task.protocol=broken.py"], "names a file without a function or class; use task.protocol="),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_failing_environment_or_protocol_leaves_no_folder(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    answer = train(*arguments, folder=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert answer.returncode == 2, answer.stderr
    assert message in " ".join(answer.stderr.split())
    assert len(answer.stderr.splitlines()) <= 4
    assert [path.name for path in tmp_path.iterdir()] == ["broken.py"]


def test_unknown_flag_exits_with_code_two(tmp_path: Path) -> None:
    answer = train("--foo", folder=tmp_path)
    assert answer.returncode == 2
    assert "--foo" in answer.stderr
    assert len(answer.stderr.splitlines()) <= 12
    assert "Traceback" not in answer.stderr


def test_missing_resume_folder_exits_with_code_2(tmp_path: Path) -> None:
    answer = train("resume=/nope", folder=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("ippo: resume=/nope")
    assert len(answer.stderr.splitlines()) <= 12
    assert list(tmp_path.iterdir()) == []


def test_sweep_with_invalid_job_leaves_no_folder(tmp_path: Path) -> None:
    answer = train("-m", "algorithm.gamma=1.5,1.6", folder=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("ippo: job 1 of 2: algorithm.gamma=1.5: ")
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def completions(line: str, folder: Path, shell: str = "bash") -> list[str]:
    line = f"ippo-train {line}"
    answer = train_from_start("-sc", f"query={shell}", folder=folder, COMP_LINE=line, COMP_POINT=str(len(line)))
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_lists_public_groups_and_keys(shell: str, tmp_path: Path) -> None:
    start = child_cpu_seconds()
    found = completions("", tmp_path, shell)
    assert child_cpu_seconds() - start < 5.0
    assert {f"{group}=" for group in config_groups()} <= set(found)
    assert {"seed=", "name=", "task."} <= set(found)
    assert [word for word in found if word.startswith(("base", "schema", "+"))] == []


def test_completion_of_options_and_agents(tmp_path: Path) -> None:
    assert completions("algorithm=", tmp_path) == [f"algorithm={option}" for option in config_groups()["algorithm"]]
    assert completions("task.agents.", tmp_path) == ["task.agents.high.", "task.agents.low."]


def test_internal_groups_not_completed() -> None:
    assert filter_completions("actor= base= baseline= schema/ +schema=x task.base\n") == "actor= baseline= task.base\n"
    assert filter_completions("base=\nactor=\n") == "actor=\n"
    assert filter_completions("base=\n") == ""


def test_cfg_job_of_sweep(tmp_path: Path) -> None:
    answer = train("-m", "seed=1,2", "algorithm=ppo", "--cfg", "job", folder=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.count("# job ") == 2
    assert answer.stdout.startswith("# job 1 of 2: seed=1\n")
    assert [document["seed"] for document in yaml.safe_load_all(answer.stdout)] == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_loading_message_only_for_valid_config(tmp_path: Path) -> None:
    wrong = train("mode=plan", "rollout.num_generations=3", folder=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("ippo: rollout.num_generations=3 does not divide")
    right = train("mode=plan", folder=tmp_path, WORLD_SIZE="2")
    assert right.returncode == 0
    assert right.stderr == "ippo: the keys are valid; loading libraries and data\n"
    assert right.stdout.startswith("warning: WORLD_SIZE=2 is set in the environment, but no launcher has started")


def test_explain_is_help_of_a_key_with_its_readers(tmp_path: Path) -> None:
    answer = train("--explain", "checkpoint.every", folder=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == train("--help", "checkpoint.every", folder=tmp_path).stdout
    assert answer.stdout == train("--explain=checkpoint.every", folder=tmp_path).stdout
    assert "iterations between checkpoints" in answer.stdout
    assert "\n  read by     training/checkpoint\n" in answer.stdout
    unknown = train("--explain", "algorithm.gama", folder=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith(
        "ippo: --explain algorithm.gama is not a group or key; did you mean algorithm.gamma"
    )
    missing = train("--explain", folder=tmp_path)
    assert (missing.returncode, missing.stderr.split(";")[0]) == (2, "ippo: --explain needs a group or key")


def test_diff_lists_keys_that_differ_from_a_run(tmp_path: Path) -> None:
    overrides = ["task=sorting_solo", "algorithm.gamma=0.9"]
    folder = tmp_path / "outputs" / "default" / "20260101-000000-aaaaaa"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node(overrides))))
    (folder / "overrides.json").write_text(json.dumps(overrides))
    answer = train("--diff", str(folder), "task=sorting_solo", "seed=3", folder=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == "algorithm.gamma: 0.9 -> 1.0\nseed: 0 -> 3\n"
    agents = train("--diff", str(folder), "algorithm.gamma=0.9", folder=tmp_path).stdout.splitlines()
    assert [line for line in agents if line.startswith("task.agents.")] == [
        "task.agents.high: no agent -> an agent",
        "task.agents.low: no agent -> an agent",
        "task.agents.solo: an agent -> no agent",
    ]
    same = train(*overrides, "--diff=latest", folder=tmp_path)
    assert (same.returncode, same.stdout) == (0, f"no key differs from {folder}\n")
    missing = train("--diff", folder=tmp_path)
    assert (missing.returncode, missing.stderr.splitlines()[0][:25]) == (2, "ippo: --diff needs a run;")
    assert train("--diff", "nowhere", folder=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("topic", "line"),
    [
        ("algorithm=ppo", "algorithm=ppo: PPO: clipped ratio"),
        ("vllm", "rollout=vllm: Sampling by vLLM"),
        ("kl", "kl: keys\n  algorithm.kl."),
        ("policy/approx_kl", "<learner>/policy/approx_kl:"),
        ("low/policy/approx_kl", "<learner>/policy/approx_kl:"),
    ],
)
def test_help_of_options_and_metrics(topic: str, line: str) -> None:
    assert (explain_topic(topic) or "").startswith(line)


def test_unknown_topics_get_keys_of_the_command() -> None:
    likely = "algorithm.clip_range_low or algorithm.clip_range_high or algorithm.cross_agent.clip_range"
    assert unknown_topic_message("clip_range", ["--help"]).endswith(f"; did you mean {likely}?")
    assert unknown_topic_message("checkpont", ["--help"], ("run", "checkpoint")).endswith("; did you mean checkpoint?")
    message = unknown_topic_message("filter", ["--help"], ("sort",), "ippo-runs")
    assert message == "ippo: --help filter is not a group or key of ippo-runs; ippo-runs --help lists its keys"


def test_help_of_a_key_of_another_command() -> None:
    assert (explain_topic("compare", EVAL_HELP, ("compare",)) or "").startswith("compare: a key of this command")

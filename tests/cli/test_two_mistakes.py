"""Command lines with two mistakes: one answer names both, with exit code 2 and what would work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ippo_cli.cli import bench, chat, controls, doctor, evaluate, export, report, runs, sweep_report, train, verify
from ippo_cli.compose import exits
from ippo_cli.compose.load import compose_node, resolve_config, to_yaml

PROGRAMS = {
    "ippo-train": train.main,
    "ippo-eval": evaluate.main,
    "ippo-export": export.main,
    "ippo-chat": chat.main,
    "ippo-bench": bench.main,
    "ippo-controls": controls.main,
    "ippo-doctor": doctor.main,
    "ippo-report": report.main,
    "ippo-runs": runs.main,
    "ippo-sweep": sweep_report.main,
    "ippo-verify": verify.main,
}
# The command line, and words of each of the two answers; `RUN` is the folder of a run without checkpoints.
LINES = [
    ("ippo-train alg=grpo seed=abc", ["alg=grpo", "algorithm=grpo?", "seed=abc"]),
    ("ippo-train rollout.temprature=1 actor.learning_rat=1", ["rollout.temperature?", "actor.learning_rate?"]),
    ("ippo-train roll.temp=1 crit=none", ["rollout.temperature?", "critic=none?"]),
    ("ippo-train deepspeed.zero=3 critic=separat", ["use deepspeed=zero3", "closest: separate"]),
    ("ippo-train --lr 1e-4 --epochs 3", ["--lr 1e-4", "actor.learning_rate", "--epochs 3", "num_epochs"]),
    ("ippo-train --learning-rate=1e-4 seed=null", ["actor.learning_rate", "seed=null"]),
    ("ippo-train actor_rollout_ref.rollout.n=8 trainer.total_epochs=2", ["rollout.num_generations", "num_epochs"]),
    ("ippo-train per_device_train_batch_size=8 stop_token=eos", ["rollout.buffer_size", "stop_token=eos"]),
    ("ippo-train task=gsmk8 reward=mth", ["closest: gsm8k", "closest: math"]),
    ("ippo-train mode=plam deterministic=maybe", ["mode=plam", "deterministic=maybe"]),
    ("ippo-train task=jsonl task.train=missing.jsonl task.eval=gone.jsonl", ["missing.jsonl", "gone.jsonl"]),
    ("ippo-train reward=function reward.function=no.py:f task.agents.low.template=no.py:g", ["no.py:f", "no.py:g"]),
    ("ippo-train resume=nowhere rollout.top_k=high", ["resume=nowhere", "rollout.top_k=high"]),
    ("ippo-train resume=nowhere --config-dir=nofolder", ["resume=nowhere", "--config-dir=nofolder"]),
    ("ippo-train task.agents.lwo.template=x task.agents.high.critic=nonee", ["closest: low", "nonee"]),
    ("ippo-train rollout.stop_strings=a,b gamma=0,9", ["'rollout.stop_strings=[a,b]'", "algorithm.gamma=0.9"]),
    ("ippo-train +experiment=sefl_play critic.lerning_rate=1", ["closest: self_play", "critic.learning_rate"]),
    ("ippo-train hydra.run.dir=x ~seed", ["hydra.run.dir=x", "~seed"]),
    ("ippo-train .seed=3 rollout..temperature=1", ["use seed=3", "use rollout.temperature=1"]),
    ("ippo-train rollout.max_new_tokens=-1 algorithm.clip_range_low=2", ["max_new_tokens=-1", "clip_range_low=2"]),
    ("ippo-train train.jsonl seed=x", ["task.train=train.jsonl?", "seed=x"]),
    ("ippo-train name=a/b checkpoint.every=often", ["name=a/b", "checkpoint.every=often"]),
    ("ippo-train actor.dtype=fp8 tracker.wandb=true", ["actor.dtype=fp8", "use tracker=wandb"]),
    ("ippo-train +experiment=self_play +experiment=probe_grid nope=1", ["several experiments", "nope=1"]),
    ("ippo-train reward=mix +reward.parts.a={kind:exact_mach} seed=one", ["exact_mach cannot be a part", "seed=one"]),
    ("ippo-train resume=atuo max_iterations_this_run=-1", ["resume=atuo is not a run (closest: auto)", "run=-1"]),
    ("ippo-train ~task.agents.lwo seed=x", ["~task.agents.lwo names no agent (closest: low)", "seed=x"]),
    ("ippo-train algorithm=my.py:Missing task=task.yaml", ["algorithm=path/to/mine.yaml", "task=task.yaml is not"]),
    ("ippo-eval run=nowhere compare=intial", ["run=nowhere", "compare=initial?"]),
    ("ippo-eval compare=intial format=tabel", ["run= is missing", "compare=initial?", "format=table?"]),
    ("ippo-eval run=RUN checkpoint=bets crossplay=yes", ["checkpoint=best?", "crossplay=yes"]),
    ("ippo-eval run=RUN checkpiont=best evaluation.sed=1", ["checkpiont=best", "checkpoint", "evaluation.seed"]),
    ("ippo-eval run=RUN actor.learning_rate=1 critic.nope=2", ["actor.learning_rate=1", "critic.nope=2"]),
    ("ippo-eval run=RUN reward=function reward.function=no.py:f rollout.temperture=1", ["no.py:f", "temperature?"]),
    ("ippo-eval model=./nomodel task=jsonl task.eval=gone.jsonl", ["./nomodel", "gone.jsonl"]),
    ("ippo-export run=nowhere to=x checkpoint=bset", ["run=nowhere", "checkpoint=best?"]),
    ("ippo-export rnu=RUN too=x", ["closest: run", "closest: to"]),
    ("ippo-export run=RUN to=x dtype=fp16 merged=no", ["dtype=fp16", "merged=no"]),
    ("ippo-chat run=nowhere greedy=yes", ["run=nowhere", "greedy=yes"]),
    ("ippo-chat run=RUN task=gsm8k reward=math", ["task=gsm8k", "reward=math"]),
    ("ippo-chat run=RUN serve=on checkpoint=lastest", ["serve=on", "checkpoint=latest?"]),
    ("ippo-runs srot=name sta=failed", ["sort=name?", "state=failed?"]),
    ("ippo-runs sort=nmae nowhere", ["sort=name?", "nowhere is not a folder"]),
    ("ippo-runs algorithm.advantag=gae --json", ["--json", "json"]),
    ("ippo-runs clean older_than_day=7 confirm=yes", ["older_than_days", "confirm=yes"]),
    ("ippo-bench run copy_1 task.train_size=4 name=x", ["task.train_size=4", "use entry=x"]),
    ("ippo-sweep nowhere too=x", ["nowhere", "too=x"]),
    ("ippo-report nowhere tilte=x", ["nowhere", "closest: title"]),
    ("ippo-report nowhere --pgn", ["nowhere", "closest: --png"]),
    ("ippo-verify nowhere cuont=3", ["nowhere", "closest: count"]),
    ("ippo-verify nowhere count=x span=y", ["count=x", "span=y"]),
    ("ippo-doctor nowhere netwrok=true", ["nowhere", "closest: network"]),
    ("ippo-doctor --jsn network=maybe", ["--jsn", "network=maybe"]),
]


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run before its first checkpoint, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exits, "exit_process", sys.exit)
    folder = tmp_path / "RUN"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(resolve_config(compose_node([]))))
    (folder / "overrides.json").write_text(json.dumps([]))
    return folder


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize(("line", "words"), LINES, ids=[line for line, _ in LINES])
def test_both_mistakes_are_told(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = line.split()
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit) as raised:
        PROGRAMS[program]()
    message = " ".join(capsys.readouterr().err.split())
    assert raised.value.code == 2, message
    assert [word for word in words if word not in message] == [], message

"""`resume=`: the run, its arguments, and rejected changes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml

from ippo_cli.compose import resume
from ippo_cli.compose.configured import load_run_config
from ippo_cli.compose.load import compose_node, iter_leaves, load_config, resolve_config, to_yaml
from ippo_cli.compose.resolvers import RESOLVERS
from ippo_cli.compose.resume import config_changes, resolve_resume
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.runs.folder import lock_folder

MakeRun = Callable[..., Path]


@cache
def written(overrides: tuple[str, ...]) -> str:
    return to_yaml(resolve_config(compose_node(overrides)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """Factory of run folders below `outputs/default`."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, state: str, *overrides: str, saved: bool = True) -> Path:
        folder = tmp_path / "outputs" / "default" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(written(overrides))
        (folder / "overrides.json").write_text(json.dumps(overrides))
        (folder / "run.json").write_text(json.dumps({"state": state}))
        if saved:
            (folder / "checkpoints" / "step_00000001").mkdir(parents=True)
            (folder / "checkpoints" / "step_00000001" / "manifest.json").write_text("{}")
        return folder

    return make


def test_without_resume() -> None:
    assert resolve_resume(["seed=1", "-m"]) == (["seed=1", "-m"], None)
    assert resolve_resume(["resume=never", "seed=1"])[1] is None
    assert resolve_resume(["resume=/nope", "resume=never"])[1] is None


def test_typed_overrides_follow_saved_ones(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted", "seed=7", "num_iterations=5", "actor.learning_rate=1e-5")
    arguments, found = resolve_resume([f"resume={folder}", "num_iterations=9"])
    assert found == folder
    assert arguments == ["seed=7", "num_iterations=5", "actor.learning_rate=1e-5", "num_iterations=9"]
    made = load_config(arguments)
    assert (made.seed, made.num_iterations, made.actor.learning_rate) == (7, 9, 1e-5)


YOUNGER = (
    "max_iterations_this_run",
    "checkpoint.reshard",
    "algorithm.kl.loss",
    "critic.dtype",
    "plan",
    "evaluation.seed",
    "tracker.kind",
    "tracker.callback",
)
YOUNGER_OF_AGENTS = ("rollout.top_p", "critic.dtype", "frozen")


def without(text: str, keys: Sequence[str]) -> str:
    """A saved configuration without some keys, as written by an earlier version."""
    plain = yaml.safe_load(text)
    for key in keys:
        *path, last = key.split(".")
        place = plain
        for name in path:
            place = place[name]
        del place[last]
    return yaml.safe_dump(plain)


def test_resume_run_of_earlier_version(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted", "seed=7", "task.train_size=64")
    of_agents = [f"task.agents.low.{key}" for key in YOUNGER_OF_AGENTS]
    (folder / "config.yaml").write_text(without(written(("seed=7", "task.train_size=64")), [*YOUNGER, *of_agents]))
    assert resolve_resume([f"resume={folder}"])[0] == ["seed=7", "task.train_size=64"]
    assert resolve_resume(["resume=auto", "seed=7", "task.train_size=64"])[1] == folder.absolute()
    assert (
        config_changes(folder, dict(iter_leaves(resolve_config(compose_node(["seed=7", "task.train_size=64"]))))) == []
    )
    with pytest.raises(ResumeError, match=r"critic\.dtype: fp32 -> bf16"):
        resolve_resume([f"resume={folder}", "critic.dtype=bf16"])


def test_missing_key_of_agent_has_its_default(run: MakeRun) -> None:
    """A key that was added to agents is missing in runs that are valid otherwise; it is no change of the run."""
    folder = run("20250101-000000-aaaaaa", "preempted", "seed=7")
    keys = [f"task.agents.low.{key}" for key in ("tool_format", "chat_template_args")]
    (folder / "config.yaml").write_text(without(written(("seed=7",)), keys))
    low = resume.saved_config(folder)["task"]["agents"]["low"]
    assert (low["tool_format"], low["chat_template_args"]) == ("auto", {})
    load_run_config(folder, "run", [])


def test_resume_invalid_config(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted")
    for text in ("{}", "seed: 1", without(written(()), ["task"]), written(()) + "sead: 1\n"):
        (folder / "config.yaml").write_text(text)
        with pytest.raises(ResumeError, match="is not a run that can be resumed"):
            resolve_resume([f"resume={folder}"])


def test_repeated_command_has_no_duplicate_overrides(run: MakeRun) -> None:
    typed = ["algorithm=ppo", "seed=7"]
    run("20250101-000000-aaaaaa", "preempted", *typed)
    arguments, found = resolve_resume([*typed, "resume=auto"])
    assert found is not None
    assert arguments == typed


def test_resume_keeps_the_checkpoint_that_a_run_as_warm_start_meant(run: MakeRun) -> None:
    source = run("20250101-000000-source", "done", "mode=critic", "algorithm=ppo")
    checkpoints = source / "checkpoints"
    (checkpoints / "step_00000002").mkdir()
    (checkpoints / "step_00000002" / "manifest.json").write_text("{}")
    for step, name in itertools.product(("step_00000001", "step_00000002"), ("low", "high")):
        (checkpoints / step / name / "critic").mkdir(parents=True)
    (checkpoints / "best.json").write_text(json.dumps({"checkpoint": "step_00000001"}))
    typed = ["algorithm=ppo", f"critic.warm_start={source}"]
    written.cache_clear()  # the composition depends on files
    folder = run("20250102-000000-aaaaaa", "preempted", *typed)
    assert resolve_resume([f"resume={folder}"]) == (typed, folder)
    (checkpoints / "best.json").write_text(json.dumps({"checkpoint": "step_00000002"}))
    arguments, _ = resolve_resume([f"resume={folder}"])
    critics = [agent.critic for agent in load_config(arguments).task.agents.values()]
    kept = [str(checkpoints / "step_00000001" / name / "critic") for name in ("low", "high")]
    assert sorted(critic.warm_start for critic in critics) == sorted(kept)  # type: ignore[attr-defined]
    assert load_run_config(folder, str(folder), []).task.agents["low"].critic.warm_start in kept  # type: ignore[attr-defined]
    arguments, _ = resolve_resume([f"resume={folder}", "critic.warm_start=null"])
    assert load_config(arguments).task.agents["low"].critic.warm_start is None  # type: ignore[attr-defined]
    for name in ("low", "high"):  # as by a limit of kept checkpoints: the weights are in the run's own ones
        (checkpoints / "step_00000001" / name / "critic").rmdir()
    assert resolve_resume([f"resume={folder}"]) == (typed, folder)


@pytest.mark.parametrize("chosen", ["fp32", "bf16"])
def test_resume_keeps_the_number_format_of_another_machine(
    chosen: str, run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ("actor=full", "actor.model=x", "critic=separate")
    monkeypatch.setitem(RESOLVERS, "device_dtype", lambda devices: chosen)
    written.cache_clear()
    folder = run("20250101-000000-aaaaaa", "preempted", *overrides)
    other = "fp32" if chosen == "bf16" else "bf16"
    monkeypatch.setitem(RESOLVERS, "device_dtype", lambda devices: other)
    monkeypatch.setattr(resume, "default_dtype", lambda: other)
    written.cache_clear()
    assert resolve_resume([f"resume={folder}"])[0] == [*overrides, f"actor.dtype={chosen}"]
    assert resolve_resume([*overrides, "resume=auto"])[1] == folder
    with pytest.raises(ResumeError, match=f"actor.dtype: {chosen} -> {other}"):
        resolve_resume([f"resume={folder}", f"actor.dtype={other}"])


def test_warm_start_with_frozen_parameters_cannot_change(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted", "algorithm=ppo", "critic.freeze=['*attn*']")
    with pytest.raises(ResumeError, match=r"critic\.warm_start: None -> "):
        resolve_resume([f"resume={folder}", "critic.warm_start=/some/critic"])


def test_resume_relative_path(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "failed")
    assert resolve_resume(["resume=outputs/default/20250101-000000-aaaaaa"])[1] == folder


@pytest.mark.parametrize(
    ("override", "diff"),
    [
        ("seed=8", "seed: 0 -> 8"),
        ("rollout.buffer_size=128", "rollout.buffer_size: 512 -> 128"),
        ("rollout.num_generations=2", "rollout.num_generations: 1 -> 2"),
        ("task.length=5", "task.length: 6 -> 5"),
        ("actor.hidden_size=64", "task.agents.high.actor.hidden_size: 128 -> 64"),
        ("critic.value_head_hidden_dim=8", "task.agents.low.critic.value_head_hidden_dim: None -> 8"),
        ("task.agents.high.critic.dtype=bf16", "task.agents.high.critic.dtype: fp32 -> bf16"),
        ("critic=value_head", "critic=value_head: the run was started with critic=separate"),
        ("team=shared_policy", "team=shared_policy: the run was started with team=independent"),
        ("deepspeed=zero3", "deepspeed.stage: 1 -> 3"),
        ("deepspeed.offload_optimizer=true", "deepspeed.offload_optimizer: False -> True"),
        ("task=sorting_solo", "task=sorting_solo: the run was started with the default task"),
    ],
)
def test_frozen_keys(override: str, diff: str, run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted")
    with pytest.raises(ResumeError) as raised:
        resolve_resume([f"resume={folder}", override])
    assert raised.value.exit_code == 14
    text, *changes = str(raised.value).splitlines()
    assert text.startswith(f"resume={folder}: these cannot change within a run; ")
    assert len(changes) <= 8
    assert diff in [line.strip() for line in changes]


@pytest.mark.parametrize(
    "override",
    [
        "num_iterations=99",
        "actor.learning_rate=1e-5",
        "task.agents.low.actor.learning_rate=1e-5",
        "critic.ppo_epochs=2",
        "checkpoint.every=1",
        "evaluation.seed=3",
        "deepspeed.micro_batch_tokens=64",
        "algorithm.entropy_coef=0.01",
        "tracker.console=plain",
        "launch.threads=1",
    ],
)
def test_changeable_keys(override: str, run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted")
    assert resolve_resume([f"resume={folder}", override]) == ([override], folder)


@pytest.mark.parametrize(
    ("overrides", "result"),
    [
        ([], []),
        (["num_iterations=9", "algorithm.gamma=0.5"], ["algorithm.gamma: 1.0 -> 0.5", "num_iterations: 90 -> 9"]),
        (["actor.learning_rate=1e-5"], ["actor.learning_rate: 0.00035 -> 1e-05"]),
        (["task.agents.low.actor.learning_rate=1e-5"], ["task.agents.low.actor.learning_rate: 0.00035 -> 1e-05"]),
    ],
)
def test_config_changes(overrides: list[str], result: list[str], run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted")
    assert config_changes(folder, dict(iter_leaves(resolve_config(compose_node(overrides))))) == result


def test_auto_resumes_newest_unfinished_run(run: MakeRun) -> None:
    run("20250101-000000-ffffff", "preempted")
    newest = run("20250103-000000-aaaaaa", "running")  # its process ended: the folder is not locked
    run("20250104-000000-aaaaaa", "done")
    assert resolve_resume(["resume=auto"]) == ([], newest)
    assert resolve_resume(["resume=must"]) == ([], newest)


def test_run_without_checkpoint_cannot_be_resumed(run: MakeRun) -> None:
    wanted = run("20250101-000000-aaaaaa", "preempted")
    killed = run("20250102-000000-aaaaaa", "running", saved=False)
    (killed / "checkpoints" / "step_00000002.tmp").mkdir(parents=True)
    (killed / "checkpoints" / "step_00000002.tmp" / "manifest.json").write_text("{}")
    assert resolve_resume(["resume=auto"])[1] == wanted
    with pytest.raises(ResumeError, match="ended before its first checkpoint"):
        resolve_resume([f"resume={killed}"])


def test_auto_skips_other_runs(
    run: MakeRun,
) -> None:
    wanted = run("20250101-000000-aaaaaa", "failed")
    held = run("20250102-000000-aaaaaa", "running")
    run("20250103-000000-aaaaaa", "preempted", "seed=3")
    old = run("20250104-000000-aaaaaa", "preempted")
    (old / "config.yaml").write_text((old / "config.yaml").read_text().replace("entropy_coef:", "entropy_bonus:"))
    (run("20250105-000000-aaaaaa", "running") / "run.json").unlink()  # died before it began
    with lock_folder(held):
        assert resolve_resume(["resume=auto", "checkpoint.every=5"]) == (["checkpoint.every=5"], wanted)


def test_auto_and_must_without_unfinished_run(run: MakeRun) -> None:
    run("20250101-000000-aaaaaa", "done")
    assert resolve_resume(["resume=auto", "seed=1"]) == (["seed=1"], None)
    with pytest.raises(ResumeError, match=r"^resume=must: no unfinished run .* below outputs/default; use") as raised:
        resolve_resume(["resume=must"])
    assert raised.value.exit_code == 14


def test_auto_uses_output_dir_and_name(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted")
    assert resolve_resume(["resume=auto", "name=other"])[1] is None
    (folder.parents[2] / "elsewhere").mkdir()
    folder.parent.rename(folder.parents[2] / "elsewhere" / "mine")
    arguments = ["output_dir=elsewhere", "name=mine"]
    assert resolve_resume(["resume=auto", *arguments])[1] == folder.parents[2] / "elsewhere" / "mine" / folder.name


def test_active_run_cannot_be_resumed(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "running")
    with lock_folder(folder), pytest.raises(ResumeError, match="active in another process"):
        resolve_resume([f"resume={folder}"])


def test_resume_path_without_run(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing", ""):
        with pytest.raises(ConfigError) as raised:
            resolve_resume([f"resume={place}"])
        assert raised.value.exit_code == 2


@pytest.mark.parametrize("file", ["config.yaml", "overrides.json"])
@pytest.mark.parametrize("text", ["", "3", "\x00"])
def test_corrupt_run_is_named(file: str, text: str, run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted")
    (folder / file).write_text(text)
    with pytest.raises(ResumeError) as raised:
        resolve_resume([f"resume={folder}"])
    assert raised.value.exit_code == 14
    assert str(folder) in str(raised.value)


@pytest.fixture
def job_run(run: MakeRun) -> MakeRun:
    """Factory of runs that a scheduler's jobs started."""

    def make(name: str, state: str, job: str, *overrides: str) -> Path:
        folder = run(name, state, *overrides)
        (folder / "job.json").write_text(json.dumps({"job": f"slurm-{job}", "overrides": overrides}))
        return folder

    return make


def test_restarted_job_resumes_its_run(job_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["actor.learning_rate=1e-5"]
    job_run("20250101-000000-aaaaaa", "done", "7", "actor.learning_rate=1e-4")
    own = job_run("20250102-000000-aaaaaa", "preempted", "7", *typed)
    job_run("20250103-000000-aaaaaa", "preempted", "7", "actor.learning_rate=3e-5")  # of another step of the job
    job_run("20250104-000000-aaaaaa", "preempted", "8", *typed)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert resolve_resume([*typed, "resume=auto"]) == (typed, own)
    assert resolve_resume(["resume=must", *typed]) == (typed, own)
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert resolve_resume([*typed, "resume=auto"]) == (typed, None)
    with pytest.raises(ResumeError, match=r"^resume=must: no unfinished run that job slurm-9 began with these ov"):
        resolve_resume([*typed, "resume=must"])


def test_auto_outside_jobs_skips_runs_of_jobs(job_run: MakeRun, run: MakeRun) -> None:
    job_run("20250102-000000-aaaaaa", "preempted", "7")
    assert resolve_resume(["resume=auto"])[1] is None
    free = run("20250101-000000-aaaaaa", "preempted")
    assert resolve_resume(["resume=auto"])[1] == free


def test_job_skips_runs_outside_jobs(run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run("20250101-000000-aaaaaa", "preempted")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert resolve_resume(["resume=auto"])[1] is None


def test_job_with_finished_run_exits(
    job_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job_run("20250101-000000-aaaaaa", "done", "7", "seed=3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(SystemExit) as leaving:
        resolve_resume(["resume=auto", "seed=3"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == (
        f"{folder} is done, which job slurm-7 began with these overrides; resume=never starts a new run\n"
    ).replace(str(folder), str(folder.relative_to(folder.parents[2])))
    assert resolve_resume(["resume=auto", "seed=4"])[1] is None


def test_auto_prints_why_it_starts_a_new_run(run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve_resume(["resume=auto"])[1] is None
    line = "resume=auto: no unfinished run of this configuration below outputs/default"
    assert capsys.readouterr().out == f"{line}; starting a new run\n"
    for name, state, seen in (
        ("20250101-000000-aaaaaa", "done", "is done"),
        ("20250102-000000-aaaaaa", "preempted", "differs"),
    ):
        run(name, state, "seed=8")
        assert resolve_resume(["resume=auto"])[1] is None
        assert capsys.readouterr().out == f"{line} (the newest run there, {name}, {seen}); starting a new run\n"
    run("20250103-000000-aaaaaa", "failed", saved=False)
    assert resolve_resume(["resume=auto"])[1] is None
    assert "has no checkpoint" in capsys.readouterr().out


SAMPLING = "rollout.sampling"


def test_run_of_earlier_version_keeps_its_sampling(run: MakeRun) -> None:
    """Versions before Gumbel-max had no key for it and sampled by inverse CDF."""
    folder = run("20250101-000000-aaaaaa", "preempted", "seed=7", "rollout=hf")
    assert dict(iter_leaves(resume.saved_config(folder)))[SAMPLING] == "gumbel"
    file = folder / "config.yaml"
    file.write_text(without(file.read_text(), (SAMPLING,)))
    assert dict(iter_leaves(resume.saved_config(folder)))[SAMPLING] == "inverse_cdf"
    arguments, _ = resolve_resume([f"resume={folder}"])
    assert arguments == [f"{SAMPLING}=inverse_cdf", "seed=7", "rollout=hf"]
    assert load_run_config(folder, "run", []).rollout.sampling.value == "inverse_cdf"
    typed, _ = resolve_resume([f"resume={folder}", f"{SAMPLING}=gumbel"])
    assert load_config(typed).rollout.sampling.value == "gumbel"
    assert f"{SAMPLING}=inverse_cdf" not in resolve_resume([f"resume={folder}", "rollout=openai_server"])[0]


def test_run_of_earlier_version_with_engines_has_no_sampling_of_ours(run: MakeRun) -> None:
    folder = run("20250101-000000-aaaaaa", "preempted", "rollout=vllm", "actor=full", "actor.model=x")
    file = folder / "config.yaml"
    file.write_text(without(file.read_text(), (SAMPLING,)))
    assert not any(SAMPLING in text for text in resume.saved_overrides(folder))

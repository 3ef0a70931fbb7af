"""Errors of sweeps that are raised before any job starts."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.compose.diagnose import diagnose_error
from ippo_cli.compose.exits import MAX_LINES, format_block
from ippo_cli.config.errors import ConfigError, IppoError, ResumeError
from ippo_cli.runs.folder import lock_folder
from ippo_cli.sweeps.folder import JobRow, create_sweep_file
from ippo_cli.sweeps.multirun import is_sweep, run_sweep
from ippo_cli.sweeps.outcome import SweepRefused
from ippo_cli.sweeps.outcome import refused_jobs_error as sweep_refusal


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def refusal(*argv: str) -> str:
    with pytest.raises(SweepRefused) as raised:
        run_sweep(["-m", *argv])
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_all_invalid_jobs_reported(folder: Path) -> None:
    lines = refusal("algorithm=ippo,pppo", "seed=1,x", "num_iterations=3").splitlines()
    assert lines[0].startswith("job 2 of 4: algorithm=ippo seed=x: seed=x must be a whole number; ")
    assert lines[1].startswith("job 3 of 4: algorithm=pppo seed=1: algorithm=pppo is an unknown option; ")
    (both,) = [line for line in lines if line.startswith("job 4 of 4: algorithm=pppo seed=x: ")]
    assert "algorithm=pppo is an unknown option" in both
    assert lines[-1] == "no job was started"
    assert list(folder.iterdir()) == []


def test_config_rules_checked_in_each_job(folder: Path) -> None:
    output = refusal("rollout.num_generations=1,3")
    assert output.startswith("job 2 of 2: rollout.num_generations=3: rollout.num_generations=3 does not divide ")
    assert list(folder.iterdir()) == []


def test_keys_of_swept_option_accepted(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    output = refusal("task=jsonl,gsm8k", "task.train=a.jsonl", "task.eval=a.jsonl", "seed=1,x")
    assert "is not a key" not in output
    assert "jobs 2 4 of 4: seed=x: seed=x must be a whole number" in output


def test_invalid_key_beside_glob() -> None:
    with pytest.raises(ConfigError, match=r"^seeed=1 is not a key; did you mean seed\?"):
        run_sweep(["-m", "algorithm=glob(*)", "seeed=1"])


def test_mode_must_be_equal_in_all_jobs() -> None:
    assert "job 2 of 2: mode=plan: mode cannot differ between jobs" in refusal("mode=train,plan")


def test_jobs_must_have_distinct_folders() -> None:
    assert "hydra.sweep.subdir=same is also the folder of job 1" in refusal("seed=1,2", "hydra.sweep.subdir=same")


def test_error_of_many_jobs_fits_one_block() -> None:
    rows = [JobRow(job, [f"name={'x' * 200}{job}"], str(job)) for job in range(1, 41)]
    error = sweep_refusal(rows, {row.job: ConfigError(f"name={row.job}", "is long " * 20, "x") for row in rows})
    lines = format_block(f"ippo: {error}").splitlines()
    assert len(lines) <= MAX_LINES
    assert lines[-2:] == ["and 30 more", "no job was started"]
    assert lines[0].startswith("ippo: job 1 of 40: name=x")


def test_common_exit_code_of_invalid_jobs() -> None:
    rows = [JobRow(1, ["seed=1"], "1"), JobRow(2, ["seed=2"], "2")]
    resume: IppoError = ResumeError("in use")
    assert sweep_refusal(rows, {1: resume, 2: resume}).exit_code == 14
    assert sweep_refusal(rows, {1: resume, 2: ConfigError("a", "b", "c")}).exit_code == 2


def test_sweep_under_external_launcher_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"^-m starts its own ranks, and this process is already one of 2 ranks"):
        run_sweep(["-m", "seed=1,2"])


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher"),
        ("hydra/launcher=rq", "hydra-rq-launcher"),
        ("hydra/sweeper=nevergrad", "hydra-nevergrad-sweeper"),
    ],
)
def test_missing_plugin_error_names_package(text: str, package: str) -> None:
    if importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(
        f"hydra_plugins.{package.replace('-', '_')}"
    ):
        pytest.skip(f"{package} is installed here")
    error = diagnose_error([text], ValueError())
    assert str(error) == f"{text} needs a plugin that is not installed here; pip install {package}"


def test_old_optuna_plugin_error_names_sweep() -> None:
    error = diagnose_error(["hydra/sweeper=optuna"], ValueError())
    assert str(error) == "hydra/sweeper=optuna needs optuna below version 3; use sweep=optuna"


def test_unknown_launcher_error_lists_known_ones() -> None:
    assert "hydra/launcher=jobib is not known; use one of basic joblib " in str(
        diagnose_error(["hydra/launcher=jobib"], ValueError())
    )


@pytest.fixture
def begun(folder: Path) -> Path:
    """A sweep of three jobs: one is done, one was preempted, one never started."""
    place = folder / "outputs" / "default" / "multirun-1"
    for job in ("1", "2", "3"):
        (place / job).mkdir(parents=True)
    create_sweep_file(place, ["seed=1,2,3"], [JobRow(job, [f"seed={job}"], str(job)) for job in (1, 2, 3)])
    (place / "1" / "run.json").write_text(json.dumps({"state": "done"}))
    (place / "2" / "run.json").write_text(json.dumps({"state": "preempted"}))
    return place


def test_resumed_sweep_checks_only_missing_jobs(begun: Path) -> None:
    with lock_folder(begun / "1"), lock_folder(begun / "3"), pytest.raises(SweepRefused) as raised:
        run_sweep(["-m", "seed=1,2,3", "resume=auto"])
    assert str(raised.value).splitlines()[0].startswith("job 3 of 3: seed=3: ")
    assert "in use by another process" in str(raised.value)
    assert raised.value.exit_code == 14


def test_resume_by_folder_rejects_new_overrides(begun: Path) -> None:
    argv = [f"resume={begun}", "seed=1,2,3,4"]
    assert is_sweep(argv)
    assert not is_sweep(["resume=auto", "seed=1"])
    with pytest.raises(
        ConfigError, match=r"resumes the sweep with its saved arguments, which seed=1,2,3,4 would change; "
    ):
        run_sweep(argv)


def test_running_sweep_cannot_be_resumed(begun: Path) -> None:
    with lock_folder(begun), pytest.raises(ResumeError, match="is running in another process"):
        run_sweep(["-m", "seed=1,2,3", "resume=auto"])


def test_resume_must_without_matching_sweep(begun: Path) -> None:
    with pytest.raises(ResumeError, match=r"no sweep of these overrides in outputs/default; use resume=auto"):
        run_sweep(["-m", "seed=1,2", "resume=must"])
    with pytest.raises(ConfigError, match=r"is not a sweep; use the folder that contains sweep\.json"):
        run_sweep(["-m", "resume=/nope"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sweep=population"], r"^sweep=population has nothing to search over; add a space"),
        (["sweep=population", "seed=1,2"], r"^sweep\.space\.seed cannot change when a run is resumed"),
        (["sweep=population", "critic=none,separate"], r"^critic cannot change when a run is resumed"),
        (
            ["sweep=ppo_population", "max_iterations_this_run=3"],
            r"^max_iterations_this_run=3 is set by the sweep at the end of each generation; ",
        ),
        (
            ["sweep.max_parallel=2", "hydra/launcher=submitit_slurm"],
            r"runs its jobs on this machine, and so cannot use hydra",
        ),
        (
            ["sweep=ppo_learning_rates", "hydra/launcher=submitit_slurm"],
            r"^sweep=optuna .* cannot use hydra/launcher=submitit_slurm; remove the launcher, as inside of one cluster",
        ),
        (["sweep=population", "sweep.members=1"], r"^sweep\.members=1 is out of range; it must be in \[2"),
        (["sweep.trials=3", "seed=1,2"], r"^sweep\.trials=3 is not a key of sweep=grid; use sweep=optuna"),
    ],
)
def test_invalid_search_rejected(folder: Path, argv: list[str], message: str) -> None:
    if "submitit" in " ".join(argv):
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")
    with pytest.raises((ConfigError, HydraException, OmegaConfBaseException)) as raised:
        run_sweep(["-m", *argv])
    error = raised.value if isinstance(raised.value, ConfigError) else diagnose_error(argv, raised.value)
    assert re.search(message, str(error))
    assert list(folder.iterdir()) == []


def test_rules_between_search_and_jobs(folder: Path) -> None:
    output = refusal("sweep=ppo_population", "sweep.members=2", "algorithm=ppo", "num_iterations=7")
    assert "all 2 jobs: sweep.generations=5 does not divide num_iterations=7; use one of 1 7" in output
    assert "is only the initial coefficient" in refusal(
        "sweep=ppo_population",
        "sweep.members=2",
        "algorithm=ppo",
        "num_iterations=10",
        "algorithm.kl.reward.target=0.1",
        "algorithm.kl.reward.horizon=1000",
    )
    assert list(folder.iterdir()) == []

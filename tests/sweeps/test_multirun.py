"""What a sweep refuses before anything of it begins, and with which words."""

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


def test_all_jobs_that_cannot_run_are_named_and_nothing_is_left_behind(folder: Path) -> None:
    lines = refusal("algorithm=ippo,pppo", "seed=1,x", "num_iterations=3").splitlines()
    assert lines[0].startswith("job 2 of 4: algorithm=ippo seed=x: seed=x must be a whole number; ")
    assert lines[1].startswith("job 3 of 4: algorithm=pppo seed=1: algorithm=pppo is an unknown option; ")
    (both,) = [line for line in lines if line.startswith("job 4 of 4: algorithm=pppo seed=x: ")]
    assert "algorithm=pppo is an unknown option" in both
    assert lines[-1] == "no job was started"
    assert list(folder.iterdir()) == []


def test_a_rule_between_groups_is_checked_in_each_job(folder: Path) -> None:
    said = refusal("rollout.num_generations=1,3")
    assert said.startswith("job 2 of 2: rollout.num_generations=3: rollout.num_generations=3 does not divide ")
    assert list(folder.iterdir()) == []


def test_the_keys_of_an_option_that_is_swept_may_be_given(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    said = refusal("task=jsonl,gsm8k", "task.train=a.jsonl", "task.eval=a.jsonl", "seed=1,x")
    assert "is no key" not in said
    assert "jobs 2 4 of 4: seed=x: seed=x must be a whole number" in said


def test_beside_a_glob_the_bad_key_is_found() -> None:
    with pytest.raises(ConfigError, match=r"^seeed=1 is no key; did you mean seed\?"):
        run_sweep(["-m", "algorithm=glob(*)", "seeed=1"])


def test_a_mode_cannot_differ_between_jobs() -> None:
    assert "job 2 of 2: mode=plan: mode cannot differ between jobs" in refusal("mode=train,plan")


def test_two_jobs_cannot_have_one_folder() -> None:
    assert "hydra.sweep.subdir=same is the folder of job 1 as well" in refusal("seed=1,2", "hydra.sweep.subdir=same")


def test_however_many_jobs_are_bad_the_error_is_one_block() -> None:
    rows = [JobRow(job, [f"name={'x' * 200}{job}"], str(job)) for job in range(1, 41)]
    error = sweep_refusal(rows, {row.job: ConfigError(f"name={row.job}", "is long " * 20, "x") for row in rows})
    lines = format_block(f"ippo: {error}").splitlines()
    assert len(lines) <= MAX_LINES
    assert lines[-2:] == ["and 30 more of them", "no job was started"]
    assert lines[0].startswith("ippo: job 1 of 40: name=x")


def test_jobs_that_are_refused_for_one_other_reason_share_its_exit_code() -> None:
    rows = [JobRow(1, ["seed=1"], "1"), JobRow(2, ["seed=2"], "2")]
    resume: IppoError = ResumeError("in use")
    assert sweep_refusal(rows, {1: resume, 2: resume}).exit_code == 14
    assert sweep_refusal(rows, {1: resume, 2: ConfigError("a", "b", "c")}).exit_code == 2


def test_a_sweep_among_ranks_that_somebody_else_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"^-m starts ranks of its own, and this process is one of 2 already; "):
        run_sweep(["-m", "seed=1,2"])


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher"),
        ("hydra/launcher=rq", "hydra-rq-launcher"),
        ("hydra/sweeper=nevergrad", "hydra-nevergrad-sweeper"),
    ],
)
def test_a_plugin_that_is_not_installed_is_told_by_its_package(text: str, package: str) -> None:
    if importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(
        f"hydra_plugins.{package.replace('-', '_')}"
    ):
        pytest.skip(f"{package} is installed here")
    error = diagnose_error([text], ValueError())
    assert str(error) == f"{text} needs a plugin that is not installed here; pip install {package}"


def test_of_the_plugin_for_old_optunas_the_sweep_is_named() -> None:
    error = diagnose_error(["hydra/sweeper=optuna"], ValueError())
    assert str(error) == "hydra/sweeper=optuna is a plugin for optuna below 3; use sweep=optuna"


def test_a_launcher_that_nobody_knows_is_answered_with_those_that_are() -> None:
    assert "hydra/launcher=jobib is not known; use one of basic joblib " in str(
        diagnose_error(["hydra/launcher=jobib"], ValueError())
    )


@pytest.fixture
def begun(folder: Path) -> Path:
    """A sweep of three jobs: one is done, one has left, one never began."""
    place = folder / "outputs" / "default" / "multirun-1"
    for job in ("1", "2", "3"):
        (place / job).mkdir(parents=True)
    create_sweep_file(place, ["seed=1,2,3"], [JobRow(job, [f"seed={job}"], str(job)) for job in (1, 2, 3)])
    (place / "1" / "run.json").write_text(json.dumps({"state": "done"}))
    (place / "2" / "run.json").write_text(json.dumps({"state": "preempted"}))
    return place


def test_a_sweep_that_goes_on_checks_the_jobs_that_are_missing_alone(begun: Path) -> None:
    with lock_folder(begun / "1"), lock_folder(begun / "3"), pytest.raises(SweepRefused) as raised:
        run_sweep(["-m", "seed=1,2,3", "resume=auto"])
    assert str(raised.value).splitlines()[0].startswith("job 3 of 3: seed=3: ")
    assert "in use by another process" in str(raised.value)
    assert raised.value.exit_code == 14


def test_a_sweep_goes_on_by_its_folder_and_with_nothing_else(begun: Path) -> None:
    argv = [f"resume={begun}", "seed=1,2,3,4"]
    assert is_sweep(argv)
    assert not is_sweep(["resume=auto", "seed=1"])
    with pytest.raises(ConfigError, match=r"goes on with the sweep as it was started, without seed=1,2,3,4; "):
        run_sweep(argv)


def test_a_sweep_that_is_going_on_is_not_begun_twice(begun: Path) -> None:
    with lock_folder(begun), pytest.raises(ResumeError, match="is going on in another process"):
        run_sweep(["-m", "seed=1,2,3", "resume=auto"])


def test_must_refuses_where_there_is_no_such_sweep(begun: Path) -> None:
    with pytest.raises(ResumeError, match=r"no sweep of these overrides below outputs/default; use resume=auto"):
        run_sweep(["-m", "seed=1,2", "resume=must"])
    with pytest.raises(ResumeError, match="there is no sweep; give its folder"):
        run_sweep(["-m", "resume=/nope"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["sweep=population"], r"^sweep=population has nothing to search over; type a space"),
        (["sweep=population", "seed=1,2"], r"^sweep\.space\.seed cannot change while a run goes on"),
        (["sweep=population", "critic=none,separate"], r"^critic cannot change while a run goes on"),
        (["sweep=ppo_population", "stop_after=3"], r"^stop_after=3 is what ends a generation; "),
        (["sweep.at_once=2", "hydra/launcher=submitit_slurm"], r"runs its jobs on this machine, and so not by hydra"),
        (
            ["sweep=ppo_learning_rates", "hydra/launcher=submitit_slurm"],
            r"^sweep=optuna .* not by hydra/launcher=submitit_slurm; leave the launcher out, as inside of one job",
        ),
        (["sweep=population", "sweep.members=1"], r"^sweep\.members=1 is out of range; it must lie in \[2"),
        (["sweep.trials=3", "seed=1,2"], r"^sweep\.trials=3 is no key of sweep=grid; use sweep=optuna"),
    ],
)
def test_a_search_that_cannot_be_meant_is_refused_before_anything_of_it_begins(
    folder: Path, argv: list[str], said: str
) -> None:
    if "submitit" in " ".join(argv):
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra `slurm` is not installed")
    with pytest.raises((ConfigError, HydraException, OmegaConfBaseException)) as raised:
        run_sweep(["-m", *argv])
    error = raised.value if isinstance(raised.value, ConfigError) else diagnose_error(argv, raised.value)
    assert re.search(said, str(error))
    assert list(folder.iterdir()) == []


def test_rules_between_a_search_and_its_jobs_refuse_the_first_ones(folder: Path) -> None:
    said = refusal("sweep=ppo_population", "sweep.members=2", "algorithm=ppo", "num_iterations=7")
    assert "all 2 jobs: sweep.generations=5 does not divide num_iterations=7; use one of 1 7" in said
    assert "says only where the coefficient begins" in refusal(
        "sweep=ppo_population",
        "sweep.members=2",
        "algorithm=ppo",
        "num_iterations=10",
        "algorithm.kl.reward.target=0.1",
        "algorithm.kl.reward.horizon=1000",
    )
    assert list(folder.iterdir()) == []

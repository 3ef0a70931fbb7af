"""Tab completion: candidates, speed, and the scripts in real shells."""

from __future__ import annotations

import os
import pty
import re
import resource
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ippo_cli
from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.completion import PROGRAMS, answer_completion, find_candidates
from ippo_cli.compose.diagnose import config_groups

SOURCE = Path(ippo_cli.__file__).parents[1]
CPU_LIMIT_S = 0.5


def test_all_programs_have_keys():
    assert {program for program in PROGRAMS if program != "ippo-train"} == OWN_KEYS.keys()


def test_groups_keys_and_options():
    found = find_candidates("ippo-train ")
    assert {f"{group}=" for group in config_groups() if group != "experiment"} <= set(found)
    assert {"seed=", "rollout.", "task.", "resume="} <= set(found)
    assert find_candidates("/a/b/ippo-train seed=1 rollout.t") == [
        "rollout.temperature=",
        "rollout.top_k=",
        "rollout.top_p=",
    ]
    assert find_candidates("ippo-train algorithm=gr") == ["algorithm=grpo"]
    assert find_candidates("ippo-train critic.value_head_hidden_dim=") == ["critic.value_head_hidden_dim=null"]
    assert find_candidates("ippo-train deterministic=") == ["deterministic=false", "deterministic=true"]
    assert find_candidates("ippo-train --com") == ["--completion"]
    assert find_candidates("ippo-train --explain algo")[:2] == ["algorithm", "algorithm."]
    assert find_candidates("ippo-train nothing") == []
    assert find_candidates("ippo-train 'unclosed ta") == ["task.", "task="]


def test_agents_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("train: a\nagents: # two\n  solver: {template: x}\n  checker:\n    template: y\n")
    assert find_candidates("ippo-train task.agents.") == ["task.agents.high.", "task.agents.low."]
    assert find_candidates("ippo-train task=relay task.agents.f") == ["task.agents.first."]
    assert find_candidates("ippo-train task=mine.yaml task.agents.") == ["task.agents.checker.", "task.agents.solver."]
    assert "task.agents.low.actor.learning_rate=" in find_candidates("ippo-train task.agents.low.actor.lea")
    assert find_candidates("ippo-train ++task.agents.low.critic=val") == ["++task.agents.low.critic=value_head"]


def test_runs_and_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "outputs" / "default" / "20260101-000000-aaaaaa"
    for name in ("run.json", "checkpoints/step_00000040/manifest.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("{}")
    short = "outputs/default/20260101-000000-aaaaaa"
    assert find_candidates("ippo-train resume=") == [f"resume={word}" for word in ("auto", "must", "never", short)]
    assert find_candidates("ippo-eval run=outputs/d") == [f"run={short}"]
    assert find_candidates("ippo-verify ") == ["count=", "iterations=", short, "seed=", "span=", "to="]
    assert set(find_candidates("ippo-runs ")) > {"compare", "show", "state=", short}
    assert find_candidates("ippo-runs state=f") == ["state=failed"]
    assert find_candidates("ippo-runs show outp") == [short]
    assert find_candidates("ippo-report outputs/") == [short]
    assert "--png" in find_candidates("ippo-report --")
    assert find_candidates("ippo-doctor ") == sorted(["json=", "network=", short, "output_dir="])
    assert find_candidates("ippo-doctor --j") == ["--json"]
    assert find_candidates("ippo-eval outputs/") == [short]
    assert find_candidates("ippo-train --diff ")[-1] != ""
    assert short in find_candidates("ippo-train --diff outputs/")
    assert find_candidates(f"ippo-eval run={short} checkpoint=") == [
        f"checkpoint={name}" for name in ("40", "best", "initial", "latest")
    ]


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as leaving:
        answer_completion(["--completion", "tcsh"])
    assert leaving.value.code == 2
    assert capsys.readouterr().err == "ippo: --completion tcsh is not a shell; use bash, zsh or fish\n"
    assert answer_completion(["seed=1"]) is None


def test_a_query_is_fast_and_imports_no_library():
    code = (
        "import sys; sys.argv = ['ippo-train', '--complete', 'ippo-train algorithm=']\n"
        "from ippo_cli.cli.train import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print({'hydra', 'omegaconf', 'yaml', 'torch'} & sys.modules.keys())"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "set()"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_LIMIT_S


SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(ippo-train --completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u; eval "$(ippo-train --completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "ippo-train --completion fish | source"),
}


def type_in_shell(shell: str, text: str, expected: str, folder: Path) -> str:
    """Type a text and a tab in an interactive shell; return what the terminal shows until `expected` appears."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "ippo-train"
    program.write_text(f"#!{sys.executable}\nfrom ippo_cli.cli.train import main\nmain()\n")
    program.chmod(0o755)
    command, install = SHELLS[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        path = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCE),
            "TERM": "xterm",
            "HOME": str(folder),
        }
        os.execvpe(command[0], command, os.environ | path)
    shown = ""
    try:
        os.write(terminal, f"{install}; echo rea''dy\n".encode())
        shown = read_until(terminal, "\nready", 30)
        os.write(terminal, f"{text}\t".encode())
        shown = read_until(terminal, expected, 30)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown


def read_until(terminal: int, expected: str, limit_s: float) -> str:
    shown, end = "", time.monotonic() + limit_s
    while expected not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", os.read(terminal, 4096).decode(errors="replace"))
    return shown


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [("ippo-train algorithm=gr", "algorithm=grpo"), ("ippo-train rollout.temp", "rollout.temperature=")],
)
def test_tab_in_a_real_shell(shell: str, typed: str, expected: str, tmp_path: Path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert expected in type_in_shell(shell, typed, expected, tmp_path)

"""Training in an OpenEnv server: limited sessions, resume at another address, a server that is killed."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks" / "environments"))
from guess_process import GuessServer, need_package, run_server
from small import SMALL, assert_metrics_close, final_weights, new_run, rows, train

from ippo_cli.cli.train import main
from ippo_cli.compose import exits
from ippo_cli.config.errors import RewardError
from ippo_cli.training.process import run_training

pytestmark = pytest.mark.slow
PLAY = (
    "task=openenv",
    "task.num_workers=4",
    "task.max_turns=3",
    "task.agents.player.warm_start_answer='5'",  # responses with digits, so that rewards differ
    "actor.warm_start_steps=30",
    "actor.warm_start_learning_rate=1e-2",
    "rollout.max_new_tokens=2",
    "algorithm=ppo",
)


def overrides(server: GuessServer, *more: str) -> list[str]:
    return [*PLAY, f"task.url={server.url}", *more]


@pytest.mark.core
@pytest.mark.parametrize("package", [(), ("--package",)], ids=["messages", "package"])
def test_command_trains_with_few_sessions(
    package: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package:
        need_package()
    with run_server("--max-sessions", "4", *package) as server:
        given = [*SMALL, *overrides(server, "task.max_sessions=4", "num_iterations=2"), f"output_dir={tmp_path}"]
        monkeypatch.setattr(sys, "argv", ["ippo-train", *given])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as leaving:
            main()
        assert leaving.value.code == 0
        (limited,) = tmp_path.glob("default/*")
    with run_server("--max-sessions", "16", *package) as server:
        unlimited = train(tmp_path / "unlimited", *overrides(server, "num_iterations=2"))
    assert_metrics_close(rows(limited), rows(unlimited))
    assert [row["iteration"] for row in rows(limited)] == [0, 1, 2]
    last = rows(limited)[-1]
    assert last["player/score/part/distance"] > 0
    assert last["player/score/part/invalid"] == 0
    assert last["player/score/std"] > 0


def test_run_that_needs_more_sessions_ends_with_exit_code_2(tmp_path: Path) -> None:
    with run_server("--max-sessions", "4") as server:
        config, folder = new_run(tmp_path, *overrides(server, "evaluation.every=0"))
        with pytest.raises(
            Exception, match=r"has no free session .* or set task.max_sessions to what it allows"
        ) as failed:
            run_training(config, folder, resumed=False)
    assert failed.value.exit_code == 2  # type: ignore[attr-defined]


def test_resume_at_another_address_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    with run_server() as server:
        whole = train(tmp_path, *overrides(server, "num_iterations=3"))
        short = train(tmp_path, *overrides(server, "num_iterations=2"))
    with run_server() as server:
        config, _ = new_run(tmp_path, *overrides(server, "num_iterations=3"))
        run_training(config, short, resumed=True)
    assert rows(short) == rows(whole)
    first, second = final_weights(short, ("player",)), final_weights(whole, ("player",))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_killed_server_ends_the_run_which_resumes_exactly(tmp_path: Path) -> None:
    with run_server() as server:
        whole = train(tmp_path, *overrides(server))
        config, folder = new_run(tmp_path, *overrides(server))

        def kill_after_first_iteration() -> None:
            file = folder / "metrics.jsonl"
            while not (file.exists() and len(file.read_text().splitlines()) > 1):
                time.sleep(0.01)
            server.kill()

        killing = threading.Thread(target=kill_after_first_iteration)
        killing.start()
        with pytest.raises(RewardError, match=r"connection was (closed|lost)|cannot be reached"):
            run_training(config, folder, resumed=False)
        killing.join()
        assert json.loads((folder / "run.json").read_text())["state"] == "failed"
        server.start()
        run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)

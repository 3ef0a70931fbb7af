"""Names that are no files here: at once where nothing can answer for them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.compose.hub_names import UNREACHABLE, check_hub_access, is_path_like
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Config

Make = Callable[..., Config]


@pytest.fixture(autouse=True)
def no_earlier_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNREACHABLE, "")


def full(*overrides: str) -> Config:
    return load_config(["actor=full", "actor.model=org/model", *overrides])


@pytest.mark.parametrize("name", ["./models/x", "/nope/x", "~/x", "../x", "a/b/c", "x/", "rows.jsonl", "a b", "."])
def test_a_path_is_known_as_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_path_like(name)
    if name != ".":
        with pytest.raises(PreflightError, match=f"^actor.model={name}: there is no such file or folder$"):
            check_hub_access(full(f"actor.model='{name}'"))


@pytest.mark.parametrize("name", ["gpt2", "org/model", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_an_id_is_none(name: str) -> None:
    assert not is_path_like(name)


def test_folders_and_generated_tasks_need_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    check_hub_access(full(f"actor.model={tmp_path}"))
    check_hub_access(load_config([]))
    check_hub_access(full(f"actor.model={tmp_path}", "task=arithmetic"))  # rows that a function makes
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.mark.parametrize("key", ["actor.model", "critic.model"])
def test_where_no_hub_answers_a_model_is_refused_within_seconds(key: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    silent = socket.create_server(("127.0.0.1", 0))  # takes the connection and never answers
    monkeypatch.setattr("ippo_cli.compose.hub_names.PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    began = time.monotonic()
    with silent, pytest.raises(PreflightError) as raised:
        check_hub_access(full(f"actor.model={tmp_path}", f"{key}=org/no-such-model"))
    assert time.monotonic() - began < 10.0
    assert str(raised.value).startswith(
        f"{key}=org/no-such-model is no folder here and not in this machine's cache, and http:"
    )
    assert os.environ.pop("HF_HUB_OFFLINE") == "1", "what libraries are told, so that they do not try again"


def test_who_wants_no_hub_is_not_made_to_wait_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PreflightError, match="HF_HUB_OFFLINE is set"):
        check_hub_access(full("actor.model=org/no-such-model"))
    check_hub_access(load_config(["task=jsonl", "task.train=org/data", "task.eval=org/data"]))
    assert "task.train=org/data task.eval=org/data from this machine's cache" in capsys.readouterr().err
    with pytest.raises(PreflightError, match=r"^task\.eval=rows\.jsonl: there is no such file"):
        check_hub_access(load_config(["task=jsonl", "task.train=org/data", "task.eval=rows.jsonl"]))
    check_hub_access(full("actor.model=org/no-such-model"), models=False)


def test_reward_model_that_no_hub_can_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PreflightError, match=r"^reward.model=org/scorer is no folder here .* HF_HUB_OFFLINE is set"):
        check_hub_access(load_config(["reward=model", "reward.model=org/scorer"]))


def test_reason_for_working_offline_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for _ in range(2):  # of models and then of data, or in a child process
        with pytest.raises(PreflightError, match=r"and http://127\.0\.0\.1:1 does not answer"):
            check_hub_access(full())

"""Episodes as plain data and as a table: turns, scores and ends."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from spoken import episode

from ippo_cli.config.schema import Console as Style
from ippo_cli.config.text import text_width
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.sample_table import FIRST_TURNS, LAST_TURNS
from ippo_cli.reporting.samples import sample_rows

TALK = [("low", 0, "a", "3 1>"), ("high", 1, "b", "low: a"), ("low", 2, "cc", "high: b", False)]
NAN = math.nan


def test_sample_row_has_observations_responses_and_scores() -> None:
    played = episode(
        *TALK,
        index=17,
        terminated=False,
        truncation="environment",
        last_observations={"low": "the end"},
        parts={"invalid": 2.0, "odd": NAN},
    )
    scores = {"low": torch.tensor([[0.25, 0.5]]), "high": torch.tensor([[1.0, 0.0]])}
    assert sample_rows("train", [played], scores, 4) == [
        {
            "mode": "train",
            "index": 17,
            "agents": {
                "low": {"prompt": "high: b", "response": "cc", "score": 0.75},
                "high": {"prompt": "low: a", "response": "b", "score": 1.0},
            },
            "turns": [
                {"agent": "low", "step": 0, "observation": "3 1>", "response": "a", "cut": False, "score": 0.25},
                {"agent": "high", "step": 1, "observation": "low: a", "response": "b", "cut": False, "score": 1.0},
                {"agent": "low", "step": 2, "observation": "high: b", "response": "cc", "cut": True, "score": 0.5},
            ],
            "terminated": False,
            "truncation": "environment",
            "partners": [],
            "failure": None,
            "last_observations": {"low": "the end"},
            "parts": {"invalid": 2.0, "odd": None},
        }
    ]


def test_scores_are_rounded_to_float32_precision() -> None:
    paid = torch.tensor([[0.1, 0.2, -0.1, 1 / 3, 1234567.0]])
    played = episode(*[("low", step, "a", "b") for step in range(5)])
    [row] = sample_rows("train", [played], {"low": paid.cumsum(1) - torch.zeros(1, 5)}, 1)
    assert [turn["score"] for turn in row["turns"]] == [0.1, 0.3, 0.2, 0.533333, 1234570.0]
    [row] = sample_rows("train", [played], {"low": torch.tensor([[0.1, 0.1, 0.1, 0.0, 0.0]])}, 1)
    assert row["agents"]["low"]["score"] == 0.3
    [row] = sample_rows("train", [played], {"low": torch.tensor([[1234567.0, 0.0, 0.0, 0.0, 0.0]])}, 1)
    assert row["turns"][0]["score"] == 1234567.0, "whole numbers stay whole"


def test_missing_scores_are_null() -> None:
    silent = episode(("low", 0, "y", "x"))
    failed = episode(("low", 0, "y", "x"), ("high", 0, "z", "x"), terminated=False, failure=ValueError("no"))
    scores = {"low": torch.tensor([[0.0], [NAN]]), "high": torch.tensor([[0.0], [NAN]])}
    first, second = json.loads(json.dumps(sample_rows("train", [silent, failed], scores, 2), allow_nan=False))
    assert first["agents"]["low"]["score"] == 0.0
    assert first["agents"]["high"] == {"prompt": None, "response": None, "score": None}
    assert second["agents"]["low"] == {"prompt": "x", "response": "y", "score": None}
    assert second["turns"][1]["score"] is None
    assert second["failure"] == "ValueError: no"


def test_failure_shows_the_users_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_env.py").write_text("def step():\n    raise KeyError('moves')\n")
    space: dict[str, object] = {}
    exec(compile(Path("my_env.py").read_text(), str(tmp_path / "my_env.py"), "exec"), space)
    with pytest.raises(KeyError) as raised:
        space["step"]()  # type: ignore[operator]
    failed = episode(terminated=False, failure=raised.value)
    # The frame of this test counts as user code, not as library code or ours: the innermost one is quoted.
    assert sample_rows("train", [failed], {}, 1)[0]["failure"] == "my_env.py:2: KeyError: 'moves'"


def shown(capsys: pytest.CaptureFixture[str], style: Style, rows: list[dict[str, object]]) -> str:
    Console(style, ["low", "high"]).show_samples(rows)
    return capsys.readouterr().out


@pytest.mark.parametrize("style", [Style.plain, Style.rich])
def test_single_turn_episode_is_one_row_per_agent(style: Style, capsys: pytest.CaptureFixture[str]) -> None:
    once = episode(("low", 0, "13", "3 1>"), ("high", 0, "5\x1b[31m7", "7 5>"))
    rows = sample_rows("train", [once], {"low": torch.tensor([[0.5]]), "high": torch.tensor([[1.0]])}, 1)
    assert shown(capsys, style, rows) == (
        "samples (train)\n"
        "┏━━━━━━━┳━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━┓\n"
        "┃ agent ┃ prompt ┃ response   ┃ score ┃\n"
        "┡━━━━━━━╇━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━┩\n"
        "│ low   │ 3 1>   │ 13         │ 0.50  │\n"
        "│ high  │ 7 5>   │ 5\\x1b[31m7 │ 1.00  │\n"
        "└───────┴────────┴────────────┴───────┘\n"
    )


@pytest.mark.parametrize("style", [Style.plain, Style.rich])
def test_conversation_is_shown_by_turn(
    style: Style, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    scores = {"low": torch.tensor([[0.25, 0.5]]), "high": torch.tensor([[1.0, 0.0]])}
    lines = shown(capsys, style, sample_rows("train", [episode(*TALK)], scores, 1)).splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert cells == [
        ["low", "3 1>", "a", "0.25"],
        ["high", "low: a", "b", "1.00"],
        ["low", "high: b", "cc (cut)", "0.50"],
        ["low", "", "end of the episode", "sum 0.75"],
        ["high", "", "", "sum 1.00"],
    ]


def test_long_episode_shows_first_and_last_turns(capsys: pytest.CaptureFixture[str]) -> None:
    for count, left_out in ((8, None), (9, None), (10, 2), (100, 92)):
        turns = [("low", step, f"say {step}.", f"told {step}.") for step in range(count)]
        rows = sample_rows(
            "train", [episode(*turns, truncation="context", terminated=False)], {"low": torch.ones(1, count)}, 1
        )
        text = shown(capsys, Style.plain, rows)
        assert ("more turns" in text) == (left_out is not None)
        assert left_out is None or f"{left_out} more turns" in text
        assert text.count("say ") == (count if left_out is None else FIRST_TURNS + LAST_TURNS)
        assert f"say {count - 1}." in text
        assert "truncated: no space in the context" in text
        assert f"sum {count}.00" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_any_text_is_escaped_and_fits_the_width(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    nasty = "[red]x[/red]\x1b[31m\ud800\u202e\r\n" + "y" * 1_000_000
    turns = [("a" * 70, step, nasty, nasty) for step in range(3)]
    failed = episode(*turns, terminated=False, failure=ValueError(nasty), last_observations={"a" * 70: nasty})
    text = shown(capsys, Style.plain, sample_rows("train", [failed], {"a" * 70: torch.full((1, 3), NAN)}, 1))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(map(text_width, text.splitlines())) <= min(width, 160)
    assert "failed" in text
    assert "[red]" in text or width < 80
    assert len(text) < 40_000

"""What a person sees: model text shown harmlessly, and numbers in one line."""

from __future__ import annotations

import io
import re
import time
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from ippo_cli.config.schema import Console as Style
from ippo_cli.training.console import Console, sparkline, visible

NASTY = {
    "markup": "[bold red]x[/bold red] [link=http://a]b[/link] [/] [",
    "escape sequences": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x1b[2J\x1b[H",
    "control characters": "a\x00b\x08\x08c\rd\x7fe\x85f",
    "lone surrogates": "\ud800 and \udfff",
    "direction marks": "abc\u202edef\u2066ghi\u200b\ufeff",
    "lines": "one\ntwo\r\nthree\u2028four\tfive\x0bsix",
    "private and unassigned": "\ue000 \U000fffff \uffff",
    "half an escape": "\\x1b[0m \\",
    "emoji code": ":smile: :warning:",
    "percent": "%s {0} {}",
}


@pytest.mark.parametrize("kind", NASTY)
def test_model_text_is_spelled_out_and_never_acted_upon(kind: str) -> None:
    shown = visible(NASTY[kind], width=200).plain
    assert all(c.isprintable() for c in shown)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    shown.encode("utf-8")
    out = RichConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=300, highlight=False)
    out.print(visible(NASTY[kind], width=200))
    assert out.file.getvalue() == shown + "\n"  # type: ignore[attr-defined]


def test_what_is_printable_stays_as_it_is() -> None:
    for text in ("plain", "[bold]x[/bold]", "naïve 中文 🙂 ẞ", "", " two  spaces "):
        assert visible(text).plain == text


def test_long_text_is_cut_and_says_so() -> None:
    assert visible("x" * 60).plain == "x" * 60
    assert visible("x" * 61).plain == "x" * 59 + "…"
    assert visible("\x00" * 20).plain == "\\x00" * 14 + "\\x0" + "…"


def test_ten_megabytes_are_cut_at_once() -> None:
    began = time.perf_counter()
    for text in ("x" * 10_000_000, "\x1b[31m" * 2_000_000):
        assert len(visible(text).plain) == 60
    assert time.perf_counter() - began < 0.2


def rows(prompt: str, response: str) -> list[dict[str, object]]:
    said = {"prompt": prompt, "response": response, "score": 0.5}
    return [{"mode": "train", "index": 0, "agents": {"low": said, "high": said}}]


@pytest.mark.parametrize("style", [Style.plain, Style.rich])
def test_a_table_of_samples_shows_every_kind_of_text_harmlessly(
    style: Style, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    console = Console(style, ["low", "high"])  # not entered: no live display, the table alone
    for text in (*NASTY.values(), "y" * 10_000_000):
        console.samples(rows("[red]prompt", text))
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "[red]prompt" in shown
    assert "[bold red]x[/bold red]" in shown
    assert "\\x1b[31mred" in shown
    assert "\\ud800" in shown
    assert len(shown) < 20_000


def row(iteration: int, **more: float) -> dict[str, float]:
    numbers = {"score/mean": 0.25 * iteration, "policy/entropy": 1.5, "rollout/response_length": 4.0}
    return {
        "iteration": iteration,
        **{f"{name}/{key}": value for name in ("low", "high") for key, value in numbers.items()},
        "perf/tokens_per_second": 1234.4, "time/iteration": 2.04, "time/rollout": 1.0, "time/score": 0.0,
        "time/targets": 0.3, "time/update": 0.7, **more,
    }  # fmt: skip


def test_where_there_is_no_terminal_an_iteration_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(Style.auto, ["low", "high"]) as console:
        console.iteration(row(1, **{"low/policy/approx_kl": 0.0125}), 60)
        console.iteration(row(2), 60)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("    1/60  low: score 0.250 entropy 1.500 KL 0.013 length 4.000  high: score 0.250 entropy")
    assert "1234 tok/s  2.0s (rollout 1.0 score 0.0 targets 0.3 update 0.7)  ETA " in second
    assert "\x1b" not in first + second


def test_a_live_display_shows_every_agent_with_its_trend(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(Style.rich, ["low", "high"]) as console:
        for iteration in (1, 2, 3):
            console.progress("low writes", iteration, 3)
            console.iteration(row(iteration), 3)
        console.say("[not markup]")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "iteration 3 of 3" in shown
    assert "▁▅█" in shown
    assert "[not markup]" in shown


def test_numbers_that_are_not_finite_break_no_display(capsys: pytest.CaptureFixture[str]) -> None:
    for style in (Style.plain, Style.rich):
        with Console(style, ["low", "high"]) as console:
            console.iteration(row(1, **{"low/score/mean": float("nan"), "high/score/mean": float("inf")}), 3)
            console.iteration(row(2), 3)
    assert "nan" in capsys.readouterr().out


def test_a_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0, 1]) == "▁█"
    assert sparkline(list(range(8))) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert sparkline([-1e9, 0, 1e9]) == "▁▅█"
    assert len(sparkline(list(range(100)), width=24)) == 24
    assert sparkline([float("nan"), 0, 1]) == " ▁█"
    assert sparkline([float("nan")]) == " "


def test_the_summary_says_what_came_out_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = {
        "first": {"iteration": 0, "score": 0.1, "greedy/exact": 0.0},
        "best": {"iteration": 40, "score": 0.95, "greedy/exact": 0.9},
        "last": {"iteration": 60, "score": 0.9, "greedy/exact": 0.8},
    }
    Console(Style.plain, ["low"]).summary(tmp_path / "outputs" / "default" / "run", entries, 61.4)
    shown = capsys.readouterr().out
    assert "0.100 -> 0.900   (best 0.950 after iteration 40)" in shown
    assert "greedy exact     0.000 -> 0.800" in shown
    assert "run folder       outputs/default/run" in shown
    assert "ippo-train resume=outputs/default/run" in shown


def test_an_evaluation_is_one_line_with_the_headline_first(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"sampled/score": 0.5, "greedy/exact": 0.25, "sampled/low/score": 0.75, "sampled/failed_share": 0.0}
    Console(Style.plain, ["low"]).evaluation(3, metrics, "sampled/score")
    shown = capsys.readouterr().out
    assert shown == "evaluation after iteration 3: sampled/score 0.500  (sampled/score 0.500, greedy/exact 0.250)\n"

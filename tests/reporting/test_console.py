"""Console output: escaped model text, and metrics in one line."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

import ippo_cli
from ippo_cli.config.schema import Console as Style
from ippo_cli.config.text import text_width
from ippo_cli.reporting.console import Console, series_by_metric
from ippo_cli.reporting.console_format import COLUMNS, resample, sparkline
from ippo_cli.reporting.metrics import METRICS
from ippo_cli.reporting.sample_table import escape_and_cut

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
def test_model_text_is_escaped(kind: str) -> None:
    shown = escape_and_cut(NASTY[kind], width=200).plain
    assert all(c.isprintable() for c in shown)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    shown.encode("utf-8")
    out = RichConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=300, highlight=False)
    out.print(escape_and_cut(NASTY[kind], width=200))
    assert out.file.getvalue() == shown + "\n"  # type: ignore[attr-defined]


def test_printable_text_is_unchanged() -> None:
    for text in ("plain", "[bold]x[/bold]", "naïve 中文 🙂 ẞ", "", " two  spaces "):
        assert escape_and_cut(text).plain == text


def test_long_text_is_truncated_with_ellipsis() -> None:
    assert escape_and_cut("x" * 60).plain == "x" * 60
    assert escape_and_cut("x" * 61).plain == "x" * 59 + "…"
    assert escape_and_cut("\x00" * 20).plain == "\\x00" * 14 + "\\x0" + "…"


def test_ten_megabytes_are_truncated_fast() -> None:
    began = time.perf_counter()
    for text in ("x" * 10_000_000, "\x1b[31m" * 2_000_000):
        assert len(escape_and_cut(text).plain) == 60
    assert time.perf_counter() - began < 0.2


def rows(prompt: str, response: str) -> list[dict[str, object]]:
    result = {"prompt": prompt, "response": response, "score": 0.5}
    return [{"mode": "train", "index": 0, "agents": {"low": result, "high": result}}]


@pytest.mark.parametrize("style", [Style.plain, Style.rich])
def test_sample_table_escapes_all_text(
    style: Style, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    console = Console(style, ["low", "high"])  # not entered: only the table, no live display
    for text in (*NASTY.values(), "y" * 10_000_000):
        console.show_samples(rows("[red]prompt", text))
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
        "perf/tokens_per_second": 1234.4,
        "time/iteration": 2.04,
        "time/rollout": 1.0,
        "time/score": 0.0,
        "time/targets": 0.3,
        "time/update": 0.7,
        **more,
    }


def test_iteration_is_one_line_without_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(Style.auto, ["low", "high"]) as console:
        console.show_iteration(row(1, **{"low/policy/approx_kl": 0.0125}), 60)
        console.show_iteration(row(2), 60)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("    1/60  low/high:  score 0.250/0.250  entropy 1.500/1.500  approx_kl 0.013/-  response_")
    assert second.endswith("  1234 tok/s  2.0s  ETA 1:58")
    assert "\x1b" not in first + second


def crowd(names: Sequence[str], size: float = 1.0, **more: float) -> dict[str, float]:
    """A row with a value in every column for every agent."""
    numbers = {key: size * (0.125 + place) for place, key in enumerate(COLUMNS.values())}
    times = {"time/iteration": 754.04, "time/logprobs": 12.0}
    return row(1) | times | {f"{name}/{key}": value for name in names for key, value in numbers.items()} | more


@pytest.mark.parametrize("size", [1.0, -123.45, 1e-6, 1e12])
@pytest.mark.parametrize("length", [1, 8, 70])
@pytest.mark.parametrize("agents", [1, 2, 3, 4, 8, 20])
def test_lines_are_at_most_160_columns(
    agents: int, length: int, size: float, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{'n' * (length - 1)}{chr(ord('a') + place)}" for place in range(agents)]
    console = Console(Style.plain, names)
    console.show_iteration(crowd(names, size, iteration=99_999, **{"perf/tokens_per_second": 54_321.0}), 100_000)
    evaluation = {f"{mode}/{name}": size for mode in ("sampled", "greedy") for name in ("score", *names)}
    console.show_evaluation(99_999, evaluation, "greedy/score")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert max(map(text_width, lines)) <= 160
    if abs(size) < 1e3:  # lines with typical numbers are not truncated
        assert "ETA " in lines[0]
        assert lines[1].endswith(")")


def test_many_agents_show_mean_and_worst(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"agent{place}" for place in range(8)]
    numbers = {
        f"{name}/{key}": 0.1 * place
        for place, name in enumerate(names)
        for key in ("score/mean", "policy/entropy", "policy/approx_kl", "value/explained_variance")
    }
    Console(Style.plain, names).show_iteration(crowd(names) | numbers, 60)
    line = capsys.readouterr().out
    assert "  score 0.350 min 0.000  entropy min 0.000  approx_kl max 0.700  kl/reference max 3.125  " in line
    assert "  explained_variance min 0.000  " in line


def test_shared_policy_metrics_are_shown_for_each_agent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = {key: value for key, value in crowd(["low", "high"]).items() if "/policy/" not in key}
    shared = {"shared/policy/entropy": 0.5, "shared/policy/approx_kl": 0.25}
    Console(Style.plain, ["low", "high"], {"low": "shared", "high": "shared"}).show_iteration(result | shared, 60)
    assert "  entropy 0.500/0.500  approx_kl 0.250/0.250  " in capsys.readouterr().out


def test_agent_without_turns_shows_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"agent{place}" for place in range(8)]
    scores = {f"{name}/score/mean": float("nan") if place in (0, 5) else 3.0 for place, name in enumerate(names)}
    Console(Style.plain, names).show_iteration(crowd(names) | scores, 60)
    assert "  score 3.000 min 3.000  " in capsys.readouterr().out


def test_line_distinguishes_approx_kl_and_reference_kl(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for found in ({"policy/approx_kl": 0.25}, {"policy/approx_kl": 0.25, "kl/reference": 0.75}):
        console = Console(Style.plain, ["low"])
        console.show_iteration(row(1, **{f"low/{key}": value for key, value in found.items()}), 60)
    without, with_reference = capsys.readouterr().out.splitlines()
    assert " approx_kl 0.250 " in without
    assert "kl/reference" not in without
    assert " approx_kl 0.250  kl/reference 0.750 " in with_reference
    assert "KL " not in without + with_reference
    assert all(any(key.endswith(f"/{column}") for key in METRICS) or column == "score" for column in COLUMNS)


def test_layout_does_not_depend_on_values(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(Style.plain, ["low", "high"])
    for scale, rate in ((1.0, 999.0), (-1.0, 9_999.0), (0.01, 99_999.0), (1e-5, 1_000.0)):
        console.show_iteration(crowd(["low", "high"], scale, **{"perf/tokens_per_second": rate}), 60)
    lines = capsys.readouterr().out.splitlines()
    assert len({tuple(re.findall("[a-z_/]{3,}", line)) for line in lines}) == 1


def test_long_phases_print_progress_twice_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = Console(Style.plain, ["solo"])
    for iteration in range(1, 21):  # 20 seconds each, and a line after each
        for done in range(20):
            now += 1.0
            console.show_progress("solo writes", done, 20)
        console.show_iteration(row(iteration, **{"solo/score/mean": 0.5}), 60)
    assert len(capsys.readouterr().out.splitlines()) == 20
    for done in range(120):
        now += 1.0
        console.show_progress("solo writes", done, 120)
    assert capsys.readouterr().out.splitlines() == [f"  solo writes: {done}/120" for done in (30, 61, 92)]


@pytest.mark.parametrize("variables", [{"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
def test_forced_colors_do_not_enable_live_display(
    variables: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with Console(Style.auto, ["low", "high"]) as console:
        console.show_progress("low writes", 1, 2)
        console.show_iteration(row(1), 60)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 1
    assert "\x1b" not in shown


def test_unencodable_characters_are_escaped() -> None:
    code = """
from ippo_cli.config.schema import Console as Style
from ippo_cli.reporting.console import Console, series_by_metric
sample = {"prompt": "naïve 中文", "response": "🙂", "score": 0.5}
Console(Style.plain, ["low"]).show_samples([{"mode": "train", "index": 0, "agents": {"low": sample}}])
"""
    ours = os.environ | {"PYTHONPATH": str(Path(ippo_cli.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}
    run = subprocess.run([sys.executable, "-c", code], env=ours, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "na\\xefve \\u4e2d\\u6587" in run.stdout


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("width", [20, 80, 160])
@pytest.mark.parametrize("agents", [2, 20])
def test_display_of_any_width_shows_every_number(
    agents: int,
    width: int,
    variables: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "40")
    names = [f"agent_with_a_rather_long_name_{place}" for place in range(agents)]
    with Console(Style.rich, names) as console:
        for iteration in range(1, 4):
            console.show_progress(f"{names[0]} writes", iteration, 3)
            console.show_iteration(crowd(names, 0.1 * iteration), 3)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert max(len(line.split("\r")[-1]) for line in shown.splitlines()) <= width
    if width >= 80:
        assert shown.count("0.038") >= agents  # the score of the last iteration
        assert "explained" in shown
        assert "kl/reference" in shown


@pytest.mark.parametrize("width", [60, 100, 200])
@pytest.mark.parametrize("agents", [1, 2, 12])
def test_panel_is_at_most_100_columns(
    agents: int, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "40")
    names = [f"agent_with_a_rather_long_name_{place}" for place in range(agents)]
    with Console(Style.rich, names) as console:
        for iteration in range(1, 200):
            console._recent_seconds.append(1.0)
            for name in names:
                console._history[name].append(iteration % 9)
        console.show_phase(f"update {names[0]} value")
        console.show_iteration(crowd(names, iteration=99_999), 100_000)
        console.show_progress(f"generating responses of {names[-1]}", 10_000, 20_000)
        drawn = [line.split("\r")[-1] for line in frame(console)]
    assert max(map(text_width, drawn)) <= min(width, 100)
    text = "\n".join(drawn)
    for word in ("iteration 99999 of 100000", "score", "entropy", "approx", "explained", "clip", "tok/s", "ETA"):
        assert word in text
    assert "update agent_with" in text
    assert "10000/20000" in text
    assert any(set("▁▂▃▄▅▆▇█") & set(line) for line in drawn)
    assert sum(line.count("0.125") for line in drawn) >= agents


def frame(console: Console) -> list[str]:
    """The lines of the live display as it is drawn at present."""
    assert console._live is not None
    out = RichConsole(file=io.StringIO(), width=console._out.width, height=40, force_terminal=True, color_system=None)
    out.print(console._live.renderable)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_panel_fits_the_height_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    names = [f"agent{place}" for place in range(40)]
    scores = {f"{name}/score/mean": float(place) for place, name in enumerate(names)}
    with Console(Style.rich, names) as console:
        console.show_phase("rollout")
        console.show_iteration(crowd(names) | scores, 60)
        drawn = frame(console)
    assert len(drawn) <= 24
    assert any(line.startswith("│  agent10 ") for line in drawn)
    assert any(re.match(r"│  29 more +25\.00 ", line) for line in drawn), "the mean score of those left out"


def test_phases_are_shown_on_a_live_display_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with Console(Style.rich, ["low"]) as console:
        for phase in ("rollout", "update low policy", "save"):
            console.show_phase(phase)
            assert frame(console)[0].strip() == phase
        began = console._phase._began
        monkeypatch.setattr(time, "monotonic", lambda: began + 75.5)
        assert frame(console)[0].strip() == "save  1:15"
        console.show_phase("")
        assert not "".join(frame(console)).strip()
    capsys.readouterr()
    with Console(Style.plain, ["low"]) as console:
        console.show_phase("rollout")
    assert capsys.readouterr().out == ""


def test_score_curve_covers_the_whole_run() -> None:
    assert resample([1.0, 2.0, 3.0], 5) == [1.0, 2.0, 3.0]
    assert resample([1.0, 3.0, 5.0, math.nan, 9.0], 3) == [2.0, 5.0, 9.0]
    assert resample([], 3) == []
    assert len(resample(list(range(1000)), 60)) <= 60


def test_live_display_shows_agents_with_trend(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(Style.rich, ["low", "high"]) as console:
        for iteration in (1, 2, 3):
            console.show_progress("low writes", iteration, 3)
            console.show_iteration(row(iteration), 3)
        console.print_line("[not markup]")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "iteration 3 of 3" in shown
    assert "▁▅█" in shown
    assert "[not markup]" in shown


def test_non_finite_numbers_do_not_break_display(capsys: pytest.CaptureFixture[str]) -> None:
    for style in (Style.plain, Style.rich):
        with Console(style, ["low", "high"]) as console:
            console.show_iteration(row(1, **{"low/score/mean": float("nan"), "high/score/mean": float("inf")}), 3)
            console.show_iteration(row(2), 3)
    output = capsys.readouterr().out
    assert "score -/inf  entropy" in output
    assert "nan" not in output


def test_sparkline_is_scaled_to_range() -> None:
    assert sparkline([0, 1]) == "▁█"
    assert sparkline(list(range(8))) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert sparkline([-1e9, 0, 1e9]) == "▁▅█"
    assert len(sparkline(list(range(100)), width=24)) == 24
    assert sparkline([float("nan"), 0, 1]) == " ▁█"
    assert sparkline([float("nan")]) == " "


def test_summary_shows_results_and_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = {
        "first": {"iteration": 0, "score": 0.1, "greedy/exact": 0.0},
        "best": {"iteration": 40, "score": 0.95, "greedy/exact": 0.9},
        "last": {"iteration": 60, "score": 0.9, "greedy/exact": 0.8},
    }
    Console(Style.plain, ["low"]).show_summary(tmp_path / "outputs" / "default" / "run", entries, 61.4)
    shown = capsys.readouterr().out
    assert "0.100 -> 0.900   (best 0.950 after iteration 40)" in shown
    assert "greedy exact     0.000 -> 0.800" in shown
    assert "run folder       outputs/default/run" in shown
    assert "ippo-train resume=outputs/default/run" in shown
    assert "tensorboard" not in shown, "without event files there is nothing to look at"
    (tmp_path / "outputs" / "default" / "run" / "tb").mkdir(parents=True)
    Console(Style.plain, ["low"]).show_summary(tmp_path / "outputs" / "default" / "run", entries, 61.4)
    assert "curves           tensorboard --logdir outputs/default/run/tb" in capsys.readouterr().out


def test_line_without_kl_of_an_on_policy_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(Style.plain, ["low", "high"])
    for number, kl in ((1, 1e-15), (2, 0.25)):
        console.show_iteration(row(number, **{f"{name}/policy/approx_kl": kl for name in ("low", "high")}), 60)
    first, second = capsys.readouterr().out.splitlines()
    assert "approx_kl" not in first
    assert "approx_kl 0.250/0.250" in second


def test_summary_says_how_to_reach_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("activate", "ippo-eval"):
        (tmp_path / ".venv" / "bin" / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    entries = {name: {"iteration": 1, "score": 0.5} for name in ("first", "last", "best")}
    for path, expected in (("/nowhere", True), (str(tmp_path / ".venv" / "bin"), False)):
        monkeypatch.setenv("PATH", path)
        Console(Style.plain, ["low"]).show_summary(tmp_path / "run", entries, 1.0)
        assert ("activate first   source .venv/bin/activate" in capsys.readouterr().out) is expected


def test_evaluation_line_starts_with_primary_metric(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"sampled/score": 0.5, "greedy/exact": 0.25, "sampled/low/score": 0.75, "sampled/failed_fraction": 0.0}
    Console(Style.plain, ["low"]).show_evaluation(3, metrics, "sampled/score")
    shown = capsys.readouterr().out
    assert shown == "evaluation after iteration 3: sampled/score 0.500  (greedy/exact 0.250)\n"


def test_evaluation_shows_parts_and_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = {"sampled/score": 0.5, "sampled/failed_tests": 0.25, "sampled/failed_fraction": 0.125}
    Console(Style.plain, ["low"]).show_evaluation(3, metrics, "sampled/score")
    assert "(sampled/failed_fraction 0.125, sampled/failed_tests 0.250)" in capsys.readouterr().out
    many = {f"sampled/part_with_a_long_name_{number}": 0.5 for number in range(9)}
    Console(Style.plain, ["low"]).show_evaluation(3, {"sampled/score": 0.5, **many, **metrics}, "sampled/score")
    assert "(sampled/failed_fraction 0.125, sampled/part" in capsys.readouterr().out, (
        "cut off at the end, and not there"
    )


def test_turns_without_values_are_omitted() -> None:
    metrics = {"sampled/score": math.nan, "sampled/low/score/turn/1": 0.5, "sampled/low/score/turn/2": math.nan}
    lines = series_by_metric(metrics | {"sampled/low/score/turn/3": 0.25, "sampled/low/score/turn/4": math.nan})
    assert lines["sampled/low/score/turn"] == pytest.approx([0.5, math.nan, 0.25], nan_ok=True)
    assert list(map(math.isnan, lines["sampled/score"])) == [True]

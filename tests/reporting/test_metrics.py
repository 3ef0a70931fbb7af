"""The table of metrics."""

from __future__ import annotations

import pytest

from ippo_cli.reporting.metrics import METRICS, is_documented


@pytest.mark.parametrize("key", METRICS)
def test_documented_names_match_any_agent_part_and_mode(key: str) -> None:
    name = (
        key.replace("<agent>", "my_agent")
        .replace("<part>", "exact.2-x")
        .replace("<turn>", "3")
        .replace("<mode>", "greedy")
    )
    assert is_documented(name)
    assert METRICS[key]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "iterations",
        "low/score",
        "low/score/median",
        "low/score/part/a/b",
        "score/mean",
        "low/low/score/mean",
        "eval/greedy/low/high/score",
        "time/lunch",
        "perf/",
        "low/policy/",
        "xlow/score/meanx",
    ],
)
def test_unknown_name_is_not_documented(key: str) -> None:
    assert not is_documented(key)

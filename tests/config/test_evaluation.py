"""Requirements on runs that an evaluation compares."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.evaluation import check_comparable_runs, check_evaluation_overrides

DIVIDED = ("task=jsonl", "task.train=a.jsonl", "task.eval=null", "task.eval_share=0.2", "actor.model=x")
ASKED = ("task.agents.solo.template='{q}'", "task.agents.solo.answer='{a}'")


def config(*changes: str) -> Any:
    return load_config([*DIVIDED, *ASKED, *changes])


@pytest.mark.parametrize("change", ["seed=8", "task.train=b.jsonl", "task.train_split=other"])
def test_compared_runs_need_the_same_split(change: str) -> None:
    check_comparable_runs("one", config("seed=7"), "other", config("seed=7"))
    with pytest.raises(
        ConfigError, match=r"^run=other has .*held-out rows .*\(task.eval_share=0.2\) may be training rows of the other"
    ):
        check_comparable_runs("one", config("seed=7"), "other", config("seed=7", change))
    new = ("task.eval_share=null", "task.eval=new.jsonl")
    check_comparable_runs("one", config("seed=7", *new), "other", config("seed=7", change, *new))


JUDGED = ("reward=judge", "reward.url=http://here/v1", "reward.model=large")


def test_compared_runs_need_the_same_judge() -> None:
    one = config(*JUDGED)

    def judged(**changes: Any) -> Any:
        return replace(one, reward=replace(one.reward, **changes))

    check_comparable_runs("one", one, "other", judged(concurrency=2, cache_answers=False))
    for key, value in {"model": "small", "url": "http://there/v1", "template": "{response}"}.items():
        with pytest.raises(ConfigError, match=rf"^run=other has reward\.{key}={re.escape(value)}"):
            check_comparable_runs("one", one, "other", judged(**{key: value}))
        check_evaluation_overrides([f"reward.{key}={value}"], of_model=False)

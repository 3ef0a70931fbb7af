"""Runs with a reward model: two ranks at ZeRO 2 or 3 score and evaluate as one rank at stage 0."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from small import assert_metrics_close, rows, train, train_on_two_ranks
from transformers import AutoModelForSequenceClassification, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "examples"))

from small_model import make

from ippo_cli.config.schema import Dtype
from ippo_cli.models.actor import load_causal_lm
from ippo_cli.models.critic import make_value_model

pytestmark = pytest.mark.slow


def reward_model(root: Path, kind: str) -> Path:
    """A random reward model: a `classifier`, or a `critic` as saved by runs."""
    (root / "text").write_text("sort these letters: a b c d e f g h " * 40)
    make(root / "text", root / "lm", vocabulary=300, hidden=32, layers=1, seed=0)
    torch.manual_seed(0)
    if kind == "critic":
        model = make_value_model(load_causal_lm(str(root / "lm"), None, Dtype.fp32).base_model, None)  # type: ignore[arg-type]
        torch.nn.init.normal_(model.value_head.out.weight)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(root / "lm", num_labels=1)
        torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(root / kind)
    AutoTokenizer.from_pretrained(root / "lm").save_pretrained(root / kind)
    return root / kind


@pytest.mark.parametrize(("kind", "stage"), [("classifier", "zero2"), ("critic", "zero3")])
def test_scores_match_one_rank_with_failed_conversations(kind: str, stage: str, tmp_path: Path) -> None:
    keys = [
        "reward=model",
        f"reward.model={reward_model(tmp_path, kind)}",
        "reward.max_tokens=34",
        "reward.overlong=fail",
        "reward.failure_budget=1",
        "actor.warmup_iterations=0",
        "num_iterations=2",
        "evaluation.every=1",
        "task.eval_size=7",
        "evaluation.num_generations=3",
        "checkpoint.every=0",
    ]
    one = rows(train(tmp_path / "one", *keys, "deepspeed=zero0"))
    assert all(0 < row["eval/sampled/failed_fraction"] < 1 for row in one)
    assert len({row["eval/sampled/score"] for row in one}) == 3, "it learns"
    assert_metrics_close(one, rows(train_on_two_ranks(tmp_path / "two", *keys, f"deepspeed={stage}")))

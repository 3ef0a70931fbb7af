"""`task.agents.NAME.actor=server`: a frozen partner at an inference server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_server import serve_model
from small import final_weights, rows, train
from tiny_engine import build_model, build_tokenizer

pytest.importorskip("httpx2", reason="needs the extra `http`")
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
# One token is certain, so that samples do not depend on random numbers, which differ between samplers.
CERTAIN = ("task.agents.high.frozen=true", "task.agents.high.rollout.top_k=1")


def save_partner(folder: Path) -> Path:
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def partner_at(url: str, model: Path) -> tuple[str, ...]:
    where = "task.agents.high.actor"
    return (f"{where}.kind=server", f"{where}.url={url}", f"{where}.model={model}")


@pytest.mark.core
def test_run_equals_that_with_the_partner_in_its_process(tmp_path: Path) -> None:
    model = save_partner(tmp_path / "partner")
    where = "task.agents.high.actor"
    local = (f"{where}.kind=full", f"{where}.model={model}", f"{where}.dtype=fp32")
    expected = train(tmp_path / "local", *SHORT, *CERTAIN, *local)
    with serve_model(model) as (url, server):
        found = train(tmp_path / "served", *SHORT, *CERTAIN, *partner_at(url, model))
        assert server.prompts
    for one, other in zip(rows(found), rows(expected), strict=True):
        assert one.keys() == other.keys()
        assert {key: one[key] for key in one if not key.startswith("high/rollout/")} == {
            key: other[key] for key in other if not key.startswith("high/rollout/")
        }
    weights = final_weights(expected, ["low"])
    assert all((final_weights(found, ["low"])[name] == value).all() for name, value in weights.items())
    record = json.loads((found / "initial" / "high.json").read_text())
    assert record["model"] == str(model)
    assert "tokenizer.json" in record["sha256"]
    assert "model.safetensors" not in record["sha256"]

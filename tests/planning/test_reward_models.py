"""A run with a server reward, a non-deterministic judge, and a reward model resumes exactly."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

pytest.importorskip("httpx2", reason="needs the extra `http`")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "rewards"))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "examples"))

from servers import ServerAnswer, serving
from small import final_weights, new_run, rows
from small_model import make

from ippo_cli.training.process import run_training


def reward_model(folder: Path) -> Path:
    (folder / "text").write_text("a b c d e f g h sort these letters " * 20)
    make(folder / "text", folder / "lm", vocabulary=300, hidden=16, layers=1, seed=0)
    config = AutoConfig.from_pretrained(folder / "lm", num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "rm")
    AutoTokenizer.from_pretrained(folder / "lm").save_pretrained(folder / "rm")
    return folder / "rm"


@pytest.mark.slow
def test_run_with_external_rewards_resumes_exactly(tmp_path: Path) -> None:
    judged = 0

    def answer(body: Any, number: int) -> ServerAnswer:
        nonlocal judged
        if "rows" in body:
            return ServerAnswer({"rows": [len(row["responses"]["low"]) for row in body["rows"]]})
        judged += 1
        return ServerAnswer({"choices": [{"message": {"content": f"Score: {number % 10 + 1}"}}]})

    with serving(answer) as server:
        judge = f"{{kind: judge, url: '{server.url}/v1', model: large}}"
        parts = f"{{judge: {judge}, http: {{kind: http, url: '{server.url}'}}, model: {{kind: model, model: "
        parts += f"'{reward_model(tmp_path)}'}}}}"
        keys = (f"++reward.parts={parts}", "reward.normalize=[model]", "reward=mix")
        config, folder = new_run(tmp_path, *keys)
        run_training(config, folder, resumed=False)
        whole, weights, asked = rows(folder), final_weights(folder), judged
        assert asked > 8
        assert all(row["low/score/failed_fraction"] == 0 for row in whole[1:])
        shutil.rmtree(folder / "checkpoints" / "step_00000004")
        run_training(config, folder, resumed=True)
    assert rows(folder) == whole
    assert judged == asked
    again = final_weights(folder)
    assert all(again[name].equal(weight) for name, weight in weights.items())
    assert [path.name for path in (folder / "reward" / "judge").iterdir()] == ["answers_rank0.jsonl"]

"""Recipes of published runs: their values match the publication, and they can be planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folders import PRINTABLE, model_folder

from ippo_cli.compose.load import config_dir, load_config
from ippo_cli.planning.plan import show_plan

ROWS = 300
PLANNED = {  # by recipe: iterations, prompts and generations of each, agents, actor steps, longest prompt and response
    "gsm8k_qwen2.5_0.5b": (435, 256, 1, 1, 4, 1024, 512),
    "gsm8k_qwen2.5_0.5b_lora": (116, 64, 5, 1, 1, 512, 1024),
    "rlinf_reasoning": (15 * ROWS // 256 + 1, 256, 1, 1, 1, 512, 11776),
    "openrlhf_ppo": (97, 1024, 1, 1, 8, 1024, 1024),
    "comlrl_writing": (20 * ROWS // 4, 4, 1, 2, 1, 1024, 256),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small configuration with a long context; a plan reads no weights."""
    return model_folder(tmp_path_factory.mktemp("model"), PRINTABLE, context=40000)


def test_every_hub_recipe_is_planned() -> None:
    files = (config_dir() / "experiment").glob("*.yaml")
    assert {file.stem for file in files if "\n  model: " in file.read_text()} == PLANNED.keys()


@pytest.mark.parametrize("recipe", PLANNED)
def test_recipe_matches_publication(
    recipe: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}", "prompt": "A post."} for n in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"task.{key}={tmp_path / 'rows.jsonl'}" for key in ("train", "eval")]
    narrow = ["actor.rank=8"] if recipe.endswith("_lora") else []  # the model here has hidden size 16
    config = load_config([f"+experiment={recipe}", f"actor.model={model}", *data, *narrow, f"output_dir={tmp_path}"])
    iterations, prompts, generations, agents, steps, longest_prompt, longest = PLANNED[recipe]
    assert (config.rollout.max_prompt_tokens, config.rollout.max_new_tokens) == (longest_prompt, longest)
    show_plan(config)
    said = " ".join(capsys.readouterr().out.split())
    assert f"iterations {iterations}, each {prompts} prompts x {generations} generations x {agents} agents" in said
    assert f"actor {steps}" in said
    assert "memory per rank, peak of each phase" in said

"""docs/recipes.md lists every recipe of a pretrained model, and its names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ippo_cli.compose.load import compose_node, config_dir, load_config, resolve_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.user_code.load import load_function

PAGE = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
EXPERIMENTS = sorted(file.stem for file in (config_dir() / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_table_lists_recipes_of_pretrained_models(name: str) -> None:
    pretrained = resolve_config(compose_node([f"+experiment={name}"]))["actor"]["kind"] in ("full", "lora")
    assert (f"\n| `{name}` |" in PAGE) == pretrained


def test_recipes_and_functions_on_page_exist() -> None:
    assert set(re.findall(r"\+experiment=([\w.]+)", PAGE)) - {"NAME"} <= set(EXPERIMENTS)
    functions = [name for name in re.findall(r"ippo_cli\.[\w.]+:\w+", PAGE) if is_code_reference(name)]
    assert functions
    for name in functions:
        load_function(name, "task.train")


PUBLISHED = {
    "gsm8k_qwen2.5_0.5b": [],
    "gsm8k_qwen2.5_0.5b_lora": ["rollout.num_generations=4"],
    "rlinf_reasoning": ["num_epochs=null"],
    "openrlhf_ppo": [],
    "comlrl_writing": ["num_epochs=null"],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipe_accepts_laptop_values(name: str) -> None:
    command = re.findall(r"^ippo-train \+experiment=gsm8k_qwen2\.5_0\.5b (.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    values = command.replace("\\\n", " ").split()
    assert all(value in PAGE for value in PUBLISHED[name])
    check_config(load_config([f"+experiment={name}", *values, *PUBLISHED[name]]), 1)

"""Recipes of published runs: their values match the publication, and they can be planned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from folders import PRINTABLE, SEVEN_B, model_folder, weightless_folder

from ippo_cli.compose.load import config_dir, load_config
from ippo_cli.planning.plan import show_plan
from ippo_cli.processes.sandbox import BWRAP, LOCAL, find_sandbox_problem

ROWS = 300
PLANNED = {  # by recipe: iterations, prompts and generations of each, agents, actor steps, longest prompt and response
    "gsm8k_qwen2.5_0.5b": (435, 256, 1, 1, 4, 1024, 512),
    "gsm8k_qwen2.5_0.5b_lora": (116, 64, 5, 1, 1, 512, 1024),
    "rlinf_reasoning": (15 * ROWS // 256 + 1, 256, 1, 1, 1, 512, 11776),
    "openrlhf_ppo": (97, 1024, 1, 1, 8, 1024, 1024),
    "comlrl_writing": (20 * ROWS // 4, 4, 1, 2, 1, 1024, 256),
}
PAGE = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
QUESTIONS = {
    "question": "Natalia sold clips to 48 friends in April, and half as many in May. How many?",
    "answer": "#### 72",
}
PROGRAM = {"prompt": "def add(x):\n    ...", "entry_point": "add", "test": "def check(f):\n    assert f(1) == 2\n"}
TEAMS = {  # by recipe: a row of its data (None: its own data), agents, and overrides of the page
    "smollm2_debate": (QUESTIONS, 2, []),
    "smollm2_refine": (QUESTIONS, 3, []),
    "smollm2_think_solve": (QUESTIONS, 2, []),
    "smollm2_writing": (None, 2, ["rollout.num_generations=4"]),
    "smollm2_code_pair": (PROGRAM, 2, ["rollout.num_generations=4"]),
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
    text = " ".join(capsys.readouterr().out.split())
    assert f"iterations {iterations}, each {prompts} prompts x {generations} generations x {agents} agents" in text
    assert f"actor {steps}" in text
    assert "memory per rank, peak of each phase" in text


@pytest.mark.parametrize("recipe", TEAMS)
def test_team_recipe_with_7b_fits_eight_devices(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row, agents, overrides = TEAMS[recipe]
    (command,) = re.findall(
        r"^ippo-train \+experiment=smollm2_debate (actor\.model=Qwen.*?)^```", PAGE, re.DOTALL | re.M
    )
    values = command.replace("\\\n", " ").split()
    shared = [value for value in values if value.split("=")[0] not in ("actor.model", "task.train", "task.eval")]
    shared.remove("launch.processes=8")
    assert {"mode=plan", "plan=h100", "plan.devices=8", *overrides} <= set(PAGE.replace("`", " ").split())
    if recipe == "smollm2_code_pair":
        shared.append(f"reward.sandbox={LOCAL if find_sandbox_problem(BWRAP) else BWRAP}")
    if row is not None:
        (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 600)
        shared += [f"task.{key}={tmp_path / 'rows.jsonl'}" for key in ("train", "eval")]
    model = weightless_folder(tmp_path, SEVEN_B)
    plan = ["mode=plan", "plan=h100", "plan.devices=8", f"output_dir={tmp_path}"]
    show_plan(load_config([f"+experiment={recipe}", f"actor.model={model}", *shared, *overrides, *plan]))
    lines = capsys.readouterr().out.splitlines()
    text = " ".join(" ".join(lines).split())
    assert f"generations x {agents} agents" in text
    assert len(re.findall(r" actor +7615\.6 M ", "\n".join(lines))) == agents
    (peak,) = (float(line.split()[4]) for line in lines if line.startswith("* deepspeed=zero3"))
    assert 30 < peak < 79, "one agent has 16 GiB of weights, gradients and optimizer on each device"

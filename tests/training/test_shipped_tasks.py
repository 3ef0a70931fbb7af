"""Tasks and rewards that need user data or a service: an iteration and an evaluation of each, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from folders import PRINTABLE, model_folder
from servers import ServerAnswer, serving
from small import rows, train

from ippo_cli.processes.sandbox import BWRAP, LOCAL, find_sandbox_problem

PROGRAMS = [
    {
        "prompt": f"def add{n}(x):\n    '''Return x + {n}.'''\n",
        "entry_point": f"add{n}",
        "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n    assert candidate(5) == {n + 5}\n",
    }
    for n in range(4)
]
SOLVED = [{"problem": f"{n} + 1?", "solution": f"It is \\boxed{{{n + 1}}}."} for n in range(4)]
PAIRS = [
    {
        name: [{"role": "user", "content": f"{letter}?"}, {"role": "assistant", "content": name}]
        for name in ("chosen", "rejected")
    }
    for letter in "wxyz"
]
GRADE_SCHOOL = [{"question": f"{n} + 1?", "answer": f"so\n#### {n + 1}"} for n in range(4)]
ROWS: dict[str, list[dict[str, Any]]] = {
    "math": SOLVED,
    "preference_prompts": PAIRS,
    "gsm8k": GRADE_SCHOOL,
    "code_pair": PROGRAMS,
    "jsonl": PROGRAMS,
}
SANDBOX = f"reward.sandbox={LOCAL if find_sandbox_problem(BWRAP) else BWRAP}"
CASES: dict[str, tuple[set[str], list[str]]] = {  # by task: the parts of its reward, and the overrides of a small run
    "math": ({"found"}, []),
    "gsm8k": ({"strict", "flexible"}, []),
    "code_pair": ({"parses", "defines", "calls", "tests", "passed"}, [SANDBOX]),
    "jsonl": (
        {"parses", "defines", "passed", "share"},
        ["reward=code", SANDBOX, "task.agents.solo.template='{prompt}'"],
    ),
    "writing": ({"words", "length_ratio", "vocabulary_ratio", "links", "overlap"}, []),
    "word_problems": ({"steps", "near", "right"}, []),
    "arithmetic_pair": ({"near", "bare", "right"}, []),
    "debate": ({"near", "bare", "right"}, []),
    "refine": ({"near", "bare", "right"}, []),
    "think_solve": ({"near", "bare", "right"}, []),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random language model whose vocabulary covers all prompts of these tasks, one token per character."""
    return model_folder(tmp_path_factory.mktemp("model"), PRINTABLE, context=1024)


def ran(root: Path, model: Path, task: str, *overrides: str) -> dict[str, Any]:
    """The metrics of an iteration and of the evaluation after it."""
    named = []
    if task in ROWS:
        (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]))
        named = [f"task.train={root / 'rows.jsonl'}", f"task.eval={root / 'rows.jsonl'}", "task.train_size=4"]
    run = train(
        root / "runs",
        f"task={task}",
        *named,
        "task.eval_size=4",
        "actor=full",
        f"actor.model={model}",
        "actor.dtype=fp32",
        "critic.dtype=fp32",
        "num_iterations=1",
        "evaluation.every=1",
        "rollout.buffer_size=8",
        "rollout.max_new_tokens=12",
        "rollout.max_prompt_tokens=900",
        *overrides,
    )
    return rows(run)[-1]


STANDARD = ("math", "code_pair", "jsonl", "writing", "debate")  # in the standard tier


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=pytest.mark.core) if name in STANDARD else name for name in CASES]
)
def test_every_task_trains_and_evaluates(task: str, model: Path, tmp_path: Path) -> None:
    if task == "math":
        pytest.importorskip("math_verify")
    parts, overrides = CASES[task]
    found = ran(tmp_path, model, task, *overrides)
    trained = {key.rpartition("/part/")[2]: value for key, value in found.items() if "/score/part/" in key}
    assert trained.keys() == parts
    assert all(0 <= value <= 1 for value in trained.values())
    assert all(f"eval/sampled/{part}" in found for part in parts)
    failed = {key: value for key, value in found.items() if key.endswith("failed_fraction")}
    assert len(failed) >= 2
    assert not any(failed.values()), failed


@pytest.mark.slow
def test_thinker_and_solver_learn_from_counterfactual_credit(model: Path, tmp_path: Path) -> None:
    found = ran(tmp_path, model, "think_solve", "+experiment=smollm2_think_solve", "critic=separate")
    for agent in ("thinker", "solver"):
        assert {f"{agent}/credit/counterfactual/{part}" for part in ("mean", "std", "zero_fraction")} <= found.keys()
        assert found[f"{agent}/credit/counterfactual/unknown_fraction"] == 0


@pytest.mark.slow
def test_http_reward_is_trained_on(model: Path, tmp_path: Path) -> None:
    result: list[float] = []

    def answer(body: Any, _: int) -> ServerAnswer:
        result.extend(len(row["responses"]["assistant"]) / 12 for row in body["rows"])
        return ServerAnswer({"rows": result[-len(body["rows"]) :]})

    with serving(answer) as server:
        found = ran(tmp_path, model, "preference_prompts", "reward=http", f"reward.url={server.url}")
    asked = [row for body in server.bodies for row in body["rows"]]
    assert {row["prompts"]["assistant"][0]["content"] for row in asked} == {"w?", "x?", "y?", "z?"}
    assert len(result) == 8 + 8 + 8, "four sampled and four greedy, before and after"
    assert found["assistant/score/mean"] == pytest.approx(sum(result[8:16]) / 8)
    assert found["eval/sampled/score"] + found["eval/greedy/score"] == pytest.approx(sum(result[16:]) / 4)
    assert found["assistant/score/std"] > 0


@pytest.mark.slow
def test_judge_reward_is_trained_on(model: Path, tmp_path: Path) -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        assert body["messages"][-1]["content"].count("?")
        return ServerAnswer({"choices": [{"message": {"content": "It is fine. Score: 7"}}]})

    with serving(answer) as server:
        given = (
            "reward=judge",
            f"reward.url={server.url}",
            "reward.model=any",
            "reward.min_score=0",
            "reward.max_score=10",
        )
        found = ran(tmp_path, model, "preference_prompts", *given)
    assert found["assistant/score/mean"] == pytest.approx(0.7)
    assert found["eval/sampled/score"] == pytest.approx(0.7)

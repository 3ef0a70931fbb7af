"""Agent frameworks train: their examples call the gateway from environments of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import tokenizer_of
from small import open_trainer, rows, train
from tool_chats import TOOL_FAMILIES
from transformers import LlamaConfig, LlamaForCausalLM

from ippo_cli.types import Completion

pytest.importorskip("aiohttp", reason="needs the extra program")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
VENVS = Path(os.environ.get("IPPO_FRAMEWORK_VENVS", ROOT / ".venv-frameworks"))


def write_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Framework:
    """A framework's example, and responses with which it succeeds."""

    script: str
    responses: dict[str, list[str]]  # by agent and its turn
    rewrites: tuple[str, ...] = ()  # agents whose responses later calls do not repeat as they were


FRAMEWORKS = {
    "pydantic_ai": Framework(
        "pydantic_ai_editor.py",
        {
            "editor": [write_call("write_titles", count=2), "By the sea"],
            "writer": ["One and two.", write_call("final_result", response=["By the sea", "Waves"])],
        },
    ),
    "langgraph": Framework("langgraph_calculator.py", {"solo": [write_call("add", a=3, b=4), "It is 7."]}),
    "smolagents": Framework(
        "smolagents_weather.py",
        {
            "manager": [
                'Thought: I ask.\n<code>\nprint(meteorologist(task="Paris?"))\n</code>',
                'Thought: I know.\n<code>\nfinal_answer("It rains.")\n</code>',
            ],
            "worker": [write_call("get_weather", place="Paris"), write_call("final_answer", answer="It rains.")],
        },
        rewrites=("worker",),  # tool calls become text
    ),
}


class ScriptedGenerator:
    """A generator whose responses are replaced by given ones."""

    def __init__(self, generator: Any, responses: dict[str, list[str]], tokenizer: Any) -> None:
        self._generator, self._responses, self._tokenizer = generator, responses, tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def generate(self, agents: Sequence[str], requests: Sequence[Any], draws: Any, **_: Any) -> list[Completion]:
        short = [replace(request, max_new_tokens=1) for request in requests]
        self._generator.generate(agents, short, draws)
        return [self._complete(self._responses[request.agent][request.turn], request) for request in requests]

    def _complete(self, text: str, request: Any) -> Completion:
        ids = self._tokenizer(text, add_special_tokens=False).input_ids
        if not text.endswith(request.stop_strings or ("no stop string",)):
            ids = [*ids, self._tokenizer.eos_token_id]
        zeros = torch.zeros(len(ids))
        return Completion(ids=torch.tensor(ids), logprobs=zeros, behavior_logprobs=zeros, text=text, finished=True)


def save_model(folder: Path) -> Any:
    """A small random model with a chat template that shows tools; its tokenizer."""
    tokenizer = tokenizer_of(TOOL_FAMILIES["hermes"])
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
            vocab_size=len(tokenizer),
            max_position_embeddings=32768,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_example_of_a_framework_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = VENVS / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {VENVS / name}: scripts/framework_environments.sh makes it")
    framework = FRAMEWORKS[name]
    tokenizer = save_model(tmp_path / "model")
    agents = ",".join(f"{agent}: {{}}" for agent in framework.responses)
    overrides = [
        "task=program",
        "~task.agents.solo",
        f"++task.agents={{{agents}}}",
        f"task.command={python} {Path(__file__).parent / 'agents' / framework.script}",
        "task.num_workers=2",
        "task.train_size=4",
        "task.eval_size=2",
        "evaluation.every=0",
        "rollout.buffer_size=2",
        "rollout.max_new_tokens=16",
        "rollout.max_prompt_tokens=32000",
        "rollout.context_limit=32768",
        "actor=full",
        f"actor.model={tmp_path / 'model'}",
        "actor.dtype=fp32",
        "algorithm=reinforce_plus_plus",
        "num_iterations=2",
    ]
    with open_trainer(tmp_path, *overrides) as trainer:
        collector = trainer.collector
        monkeypatch.setattr(
            collector, "generator", ScriptedGenerator(collector.generator, framework.responses, tokenizer)
        )
        episodes = collector.play_episodes(collector._batch(0), collector._draws(0))
    assert len(episodes) == 2
    for episode in episodes:
        assert episode.failure is None
        assert set(episode.rewards[-1].values()) == {1.0}, "the framework understood every response"
        for agent, texts in framework.responses.items():
            turns = episode.turns_of_agent(agent)
            assert [turn.text for turn in turns] == texts
            for earlier, later in pairwise(turns):
                known = earlier.prompt + earlier.completion.ids.tolist()
                assert (later.prompt[: len(known)] == known) == (agent not in framework.rewrites)
    iterations = [row for row in rows(train(tmp_path, *overrides)) if "iteration" in row]
    assert all(row[f"{next(iter(framework.responses))}/score/part/refused_calls"] == 0.0 for row in iterations[-2:])

"""`task=program`: programs call agents by chat completions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small import final_weights, rows, train

pytest.importorskip("aiohttp", reason="needs the extra program")
pytest.importorskip("openai", reason="needs OpenAI's client")

AGENTS = ("~task.agents.solo", "+task.agents={low: {}, high: {}}")
DIALOGUE = """
from openai import AsyncOpenAI


async def play(example, endpoint):
    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages = {"low": [], "high": []}

    async def say(agent, text):
        messages[agent].append({"role": "user", "content": text})
        completion = await client.chat.completions.create(model=agent, messages=messages[agent])
        messages[agent].append(completion.choices[0].message)
        return completion.choices[0].message.content

    text = example["question"] + "="
    for _ in range(2):
        answer = await say("low", text)
        text = await say("high", answer + "<") + ">"
"""
REWARD = """
def reward(examples, responses):
    return {"team": [len(set(low) & set(high)) / 4 for low, high in zip(responses["low"], responses["high"])]}
"""


def write_data(root: Path) -> list[str]:
    """Rows, a reward, and small models without a warm start."""
    root.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": f"{a}+{b}"}) for a in range(6) for b in range(8)]
    (root / "rows.jsonl").write_text("\n".join(lines))
    (root / "reward.py").write_text(REWARD)
    return [
        f"task.train={root / 'rows.jsonl'}",
        f"task.eval={root / 'rows.jsonl'}",
        "reward=function",
        f"reward.function={root / 'reward.py'}:reward",
        "actor.alphabet=printable",
        "actor.warm_start_steps=0",
        "rollout.max_new_tokens=4",
        "num_iterations=2",
        "algorithm=ppo",
    ]


def program_run(root: Path, source: str = DIALOGUE) -> list[str]:
    overrides = write_data(root)
    (root / "play.py").write_text(source)
    return ["task=program", f"task.program={root / 'play.py'}:play", *AGENTS, *overrides]


@pytest.mark.core
def test_program_equals_the_same_protocol_to_the_bit(tmp_path: Path) -> None:
    agents = (
        'low: {template: "{question}=", turn_template: "{agents.high}>"}, '
        'high: {template: "{agents.low}<", turn_template: "{agents.low}<"}'
    )
    built_in = ["task=jsonl", "task.protocol=dialogue", "task.num_turns=2", AGENTS[0], "+task.agents={" + agents + "}"]
    expected = train(tmp_path / "protocol", *built_in, *write_data(tmp_path / "a"))
    found = train(tmp_path / "program", *program_run(tmp_path / "b"), "task.max_turns=2")
    for row, wanted in zip(rows(found), rows(expected), strict=True):
        own = {key for key in row if key.endswith(("/calls", "/refused_calls"))}
        assert {key: (row.get(key), wanted.get(key)) for key in row.keys() ^ wanted.keys() ^ own} == {}
        assert {key: (row[key], wanted[key]) for key in wanted if row[key] != wanted[key]} == {}
    weights = final_weights(expected)
    assert all(torch.equal(value, weights[name]) for name, value in final_weights(found).items())

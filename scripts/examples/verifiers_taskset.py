"""Train on a taskset of `verifiers`: its tasks become rows, and its rewards become the reward.

    pip install 'verifiers>=0.4,<0.5'
    ippo-train task=jsonl task.train=verifiers_taskset.py:train task.eval=verifiers_taskset.py:held_out \
      "task.agents={solver: {template: '{prompt}'}}" \
      reward=function reward.function=verifiers_taskset.py:score reward.per_sample=true ...

Copy this file and set the taskset below. Each task gets a single response: tasks with tools, users or a container are
rejected, and so are rewards that need a runtime. A task's system prompt is put before its prompt.
"""

from __future__ import annotations

import inspect
import os
from functools import cache
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_taskset

TASKSET = os.environ.get("TASKSET", "my_taskset")
"""An installed package or a module on the path, as `--env.taskset.id` names it."""

HELD_OUT = 100
"""Number of first tasks that are excluded from training."""

MOST = 10000
"""Maximum number of tasks: some tasksets are endless."""


def train() -> list[dict[str, Any]]:
    """Return all tasks except the held-out ones."""
    return _rows()[HELD_OUT:]


def held_out() -> list[dict[str, Any]]:
    return _rows()[:HELD_OUT]


async def score(example: dict[str, Any], responses: dict[str, str]) -> dict[str, Any]:
    """Return the task's weighted reward of one answer; single rewards and metrics are reported by name."""
    task, (answer,) = _tasks()[example["number"]], responses.values()
    nodes = [
        vf.MessageNode(message=vf.UserMessage(content=example["prompt"])),
        vf.MessageNode(message=vf.AssistantMessage(content=answer), parent=0, sampled=True),
    ]
    recorded = vf.TraceTask(type=type(task).__name__, data=task.data)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    trace = vf.Trace(task=recorded, agent=agent, nodes=nodes, is_completed=True, ok=True)
    await task.score(trace)
    parts = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    if len(parts) < len(trace.rewards) or not parts:
        raise RuntimeError(f"{TASKSET}: a reward of task {example['number']} returned no score")
    parts |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
    return {"team": trace.reward, "parts": parts}


@cache
def _tasks() -> list[vf.Task]:
    taskset = load_taskset(vf.TasksetConfig(id=TASKSET))
    tasks = list(taskset.take(MOST))
    for task in tasks:
        if _needs_more(task):
            raise ValueError(f"{TASKSET}: {type(task).__name__} needs tools, a runtime, or a user who begins")
    return tasks


def _needs_more(task: vf.Task) -> bool:
    """Whether a task needs more than a prompt and an answer's rewards. (Rewards that need a runtime are skipped.)"""
    scores = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
    needed = [inspect.signature(score).parameters.get("runtime") for score in scores]
    in_runtime = any(parameter is not None and parameter.default is parameter.empty for parameter in needed)
    return task.NEEDS_CONTAINER or task.data.prompt is None or in_runtime or bool(type(task).toolsets(task.config))


def _rows() -> list[dict[str, Any]]:
    rows = []
    for number, task in enumerate(_tasks()):
        parts = [task.data.system_prompt, task.data.prompt_text]
        rows.append({"number": number, "prompt": "\n\n".join(part for part in parts if part)})
    return rows

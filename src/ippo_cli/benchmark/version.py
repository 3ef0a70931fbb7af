"""The version of a task: a hash of what its agents observe and of how their actions are scored."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from functools import cache
from itertools import islice

from ippo_cli.benchmark.replay import load_rows, play_valid_responses, replay_row, score_episodes
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.controls.arms import TEAM
from ippo_cli.tasks.environment import closing_environment
from ippo_cli.tasks.task import make_task_factory

EPISODES = 8
DIGITS = 8  # of the hash


@cache
def task_version(name: str) -> str:
    """Return the hash of a task's overrides, metric, number of rows, and of some episodes with fixed actions.

    It does not depend on the wording of the source, which may be rewritten; changed prompts, rules, rows or scores
    change it.
    """
    task = BENCHMARK_TASKS[name]
    whole = load_rows(name, TEAM, 0)
    rows = replace(whole, examples=list(islice(whole.examples, EPISODES)))
    episodes = []
    environment = make_task_factory(rows.config.task)()
    with closing_environment(environment):
        for row in range(len(rows.examples)):
            responses = play_valid_responses(rows, row, random.Random(f"version {row}"))
            episodes.append(replay_row(rows, environment, row, responses))
    played = [
        [dict(episode.example), [[turn.agent, turn.observation, turn.text] for turn in episode.turns]]
        for episode in episodes
    ]
    score = round(score_episodes(rows, episodes)[task.metric], 6)  # of float32 numbers
    content = [task.overrides, task.score_name, len(whole.examples), played, score]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGITS]

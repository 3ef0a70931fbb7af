"""Episodes of one turn per agent, made of rollouts: until collecting produces episodes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ippo_cli.rewards.streaming import OnFinished
from ippo_cli.types import Completion, Episode, Example, PromptBatch, Rollout, Turn


def episodes_of(batch: Mapping[str, PromptBatch], rollouts: Mapping[str, Rollout]) -> list[Episode]:
    """One episode per row in which every agent spoke once."""
    prompts = next(iter(batch.values()))
    return [
        spoken_once(
            example,
            int(prompts.index[row]),
            {name: rollout.texts[row] for name, rollout in rollouts.items()},
        )
        for row, example in enumerate(prompts.examples)
    ]


def spoken_once(example: Example, index: int, texts: Mapping[str, str]) -> Episode:
    """An episode of one step of which only the texts are known."""
    none, nothing = torch.zeros(0, dtype=torch.long), torch.zeros(0)
    turns = [
        Turn(
            agent=name,
            step=0,
            observation="",
            prompt=[],
            completion=Completion(ids=none, logprobs=nothing, behavior_logprobs=nothing, text=text, finished=True),
        )
        for name, text in texts.items()
    ]
    return Episode(
        example=example,
        index=index,
        turns=turns,
        rewards=[{}],
        final={},
        last_observations={},
        terminated=True,
        unfinished=frozenset(),
        truncation="",
        failure=None,
        parts={},
    )


def by_agent(
    on_finished: OnFinished, batch: Mapping[str, PromptBatch]
) -> Callable[[str, Sequence[int], Sequence[str]], None]:
    """Tells of episodes where agents tell of their rows: when every agent has finished one."""
    prompts = next(iter(batch.values()))
    texts: list[dict[str, str]] = [{} for _ in prompts.examples]

    def told(agent: str, rows: Sequence[int], said: Sequence[str]) -> None:
        for row, text in zip(rows, said, strict=True):
            texts[row][agent] = text
            if len(texts[row]) == len(batch):
                own = {name: texts[row][name] for name in batch}
                on_finished([row], [spoken_once(prompts.examples[row], int(prompts.index[row]), own)])

    return told

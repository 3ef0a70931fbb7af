"""Slow reference of an episode's rows, rebuilt from texts. Tests import this file by its path.

A `Script` maps the previous rounds to the next observations. From it, the texts of finished episodes and the tokenizer,
`reference_row` writes every conversation as text, tokenises it again, and runs one forward per token: without padding,
without a cache, and without any code of the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ippo_cli.tasks.environment import Action, Step
from ippo_cli.types import Episode, Example

Round = Mapping[str, str]  # agent -> its message
Words = Callable[[str, str, int], str]


@dataclass(frozen=True)
class ScriptedStep:
    """The outcome of some rounds."""

    observations: Mapping[str, str]
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False


Script = Callable[[Example, Sequence[Round]], ScriptedStep]


class ScriptedWorld:
    """An environment that follows a script."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.example, self.rounds = example, []
        return self.script(example, []).observations

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.rounds.append({agent: action.text for agent, action in actions.items()})
        result = self.script(self.example, self.rounds)
        return Step(
            observations=result.observations,
            rewards=result.rewards,
            terminated=result.terminated,
            truncated=result.truncated,
        )

    def close(self) -> None:
        pass


def templated(
    templates: Mapping[str, tuple[str, str]], speakers: Callable[[int], Sequence[str]], rounds: int
) -> Script:
    """The script of a protocol: `speakers(r)` act in round r, with their first and later templates."""

    def script(example: Example, played: Sequence[Round]) -> ScriptedStep:
        if len(played) == rounds:
            return ScriptedStep({}, terminated=True)
        flat = [(name, one[name]) for one in played for name in templates if name in one]
        return ScriptedStep({name: message(name, example, flat, played) for name in speakers(len(played))})

    def message(agent: str, example: Example, transcript: Sequence[tuple[str, str]], by_round: Sequence[Round]) -> str:
        own = [number for number, one in enumerate(by_round) if agent in one]
        later = by_round[own[-1] if own else 0 :]  # messages of the same round were not observable at that time
        history = [(name, one[name]) for one in later for name in templates if name in one and name != agent]
        text = templates[agent][1 if own else 0]
        for word, meant in {
            "turn": str(len(own) + 1),
            "transcript": lines(transcript),
            "heard": lines(history),
        }.items():
            text = text.replace("{" + word + "}", meant)
        for name, what in transcript:  # the last one counts
            text = text.replace("{agents." + name + "}", dict(transcript).get(name, what))
        return text.replace("{q}", example["q"])

    def lines(turns: Sequence[tuple[str, str]]) -> str:
        return "\n".join(f"{name}: {what}" for name, what in turns)

    return script


@dataclass(frozen=True)
class Reader:
    """How an agent's texts are encoded and its tokens generated."""

    agent: str
    tokenizer: Any
    model: Any
    chat: bool
    system: str | None
    context_mode: str  # prefix | turns | latest
    context: int
    temperature: float
    top_k: int
    stop_string: str

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def answer(self, text: str, finished: bool) -> list[int]:
        """The tokens of a response: with a stop token at the end unless a stop string or a limit ended it."""
        by_string = bool(self.stop_string) and self.stop_string in text
        return self.ids(text) + ([self.tokenizer.eos_token_id] if finished and not by_string else [])

    def prompt(self, observations: Sequence[str], responses: Sequence[tuple[str, bool]]) -> list[int]:
        """The prompt after the last observation, from texts only."""
        if self.context_mode == "last_only":
            observations, responses = observations[-1:], []
        if not self.chat:
            ids = self.tokenizer(observations[0]).input_ids
            for answer, text in zip(responses, observations[1:], strict=True):
                ids = ids + self.answer(*answer) + self.ids(text)
            return ids
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        messages += [{"role": "user", "content": observations[0]}]
        for (answer, _), text in zip(responses, observations[1:], strict=True):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": text}]
        written = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.ids(written)

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> list[tuple[float, float]]:
        """Log-probabilities of an answer's tokens: of the policy and of the sampling distribution; one forward each."""
        found = []
        for place, token in enumerate(answer):
            read = torch.tensor([[*prompt, *answer[:place]]])
            logits = self.model(input_ids=read, use_cache=False).logits[0, -1].float() / self.temperature
            kept = logits
            if self.top_k:
                kept = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], -torch.inf)
            found.append((float(logits.log_softmax(-1)[token]), float(kept.log_softmax(-1)[token])))
        return found


@dataclass
class Row:
    """The expected row of a rollout, without padding."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    behavior: list[float] = field(default_factory=list)
    detached: list[tuple[int, list[int]]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)  # by turn
    finished: bool = False
    text: str = ""

    def read(self, known: list[int], prompt: list[int]) -> None:
        """Add the tokens that the agent read between `known` and its next turn."""
        if prompt[: len(known)] != known:
            self.detached.append((len(self.ids), prompt))
            return
        self.add(prompt[len(known) :], -1, [(0.0, 0.0)] * (len(prompt) - len(known)))

    def add(self, ids: list[int], turn: int, logprobs: Sequence[tuple[float, float]]) -> None:
        self.ids += ids
        self.turn += [turn] * len(ids)
        self.logprobs += [own for own, _ in logprobs]
        self.behavior += [drawn for _, drawn in logprobs]


@dataclass
class Replay:
    """A replayed episode: its texts and its end."""

    observations: dict[
        str, list[str]
    ]  # observations of each agent, in order; the last one has no response if truncated
    responses: dict[str, list[tuple[str, bool]]]  # text, and whether it ended before its limit
    steps: dict[str, list[int]]
    rewards: list[Mapping[str, float]]
    terminated: bool = False
    truncation: str = ""


def replayed(script: Script, episode: Episode, readers: Mapping[str, Reader]) -> Replay:
    """Recompute every observation of an episode from its texts, and its expected end."""
    found = Replay({name: [] for name in readers}, {name: [] for name in readers}, {name: [] for name in readers}, [])
    spoken = iter(episode.turns)
    rounds: list[Round] = []
    result = script(episode.example, rounds)
    while True:
        found.terminated = result.terminated
        if result.terminated:
            break
        for name, text in result.observations.items():
            found.observations[name].append(text)
        room = {
            name: len(readers[name].prompt(found.observations[name], found.responses[name])) < readers[name].context
            for name in result.observations
        }
        found.truncation = "environment" if result.truncated else "" if all(room.values()) else "context"
        if found.truncation:
            for name in result.observations:
                if not room[name]:
                    found.observations[name].pop()
            break
        now = {}
        for name in (name for name in readers if name in result.observations):
            turn = next(spoken)
            assert (turn.agent, turn.step, turn.observation) == (name, len(rounds), result.observations[name])
            now[name] = turn.completion.text
            found.responses[name].append((turn.completion.text, turn.completion.finished))
            found.steps[name].append(len(rounds))
        rounds.append(now)
        result = script(episode.example, rounds)
        found.rewards.append(result.rewards)
    assert next(spoken, None) is None, "more messages than rounds"
    return found


def reference_row(replay: Replay, reader: Reader, *, cut_answers_are_unfinished: bool) -> Row:
    """The expected row of one agent. An agent without a message has one token."""
    observations, responses, steps = (
        part[reader.agent] for part in (replay.observations, replay.responses, replay.steps)
    )
    if not responses:
        return Row([0], finished=replay.terminated)
    prompts = [reader.prompt(observations[: turn + 1], responses[:turn]) for turn in range(len(observations))]
    answers = [reader.answer(*one) for one in responses]
    row = Row(prompts[0], text=responses[-1][0])
    for turn, answer in enumerate(answers):
        if turn:
            row.read(prompts[turn - 1] + answers[turn - 1], prompts[turn])
        row.add(answer, turn, reader.logprobs(prompts[turn], answer))
    if len(prompts) > len(answers):
        row.read(prompts[len(answers) - 1] + answers[-1], prompts[-1])
    row.rewards = [0.0] * len(responses)
    for step, paid in enumerate(replay.rewards):
        before = [turn for turn, own in enumerate(steps) if own <= step]
        row.rewards[before[-1] if before else 0] += paid.get(reader.agent, 0.0)
    row.finished = replay.terminated and (responses[-1][1] or not cut_answers_are_unfinished)
    return row

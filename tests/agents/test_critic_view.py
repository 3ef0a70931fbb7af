"""Inputs of a centralised critic, token by token, against a slow reference built from the episodes' texts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from string import ascii_lowercase, digits
from typing import Any

import pytest
import torch
from players import TOKENIZER, Players
from spoken import episode as an_episode

from ippo_cli.agents.critic_view import CriticLayout, build_central_view
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.tiny import byte_tokenizer
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.types import Completion, CriticView, Episode, Example, Rollout, Targets, Turn

AGENTS = ("low", "high", "mid")
ROWS = range(24)
END = "¶"


class Anything:
    """Random observations to random agents, until the episode ends in one of all possible ways."""

    agents: Sequence[str] = AGENTS

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.random = random.Random(example["row"])
        self.row, self.left = example["row"], self.random.randint(0, 4)
        return self.observations()

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.left -= 1
        if self.left >= 0:
            return Step(observations=self.observations())
        way = self.row % 4
        if way == 0:
            raise OSError("the board is gone")
        if way == 1:
            return Step(observations={}, terminated=True)
        cut = frozenset(self.agents[:1]) if way == 2 else frozenset()
        return Step(observations=self.observations(), terminated=way == 2, truncated=way == 3, unfinished=cut)

    def observations(self) -> dict[str, str]:
        there = self.random.sample(self.agents, self.random.randint(1, len(self.agents)))
        return {agent: f"{self.random.randint(0, 999)}{agent[0]}" for agent in there}

    def close(self) -> None:
        pass


class Parallel(Anything):
    def observations(self) -> dict[str, str]:
        return {agent: f"{self.random.randint(0, 999)}{agent[0]}" for agent in self.agents}


class InTurn(Anything):
    """Agents act one after another, each with all earlier messages."""

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.history, self.number = "", 0
        return super().reset(example, seed)

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.history += "".join(f"{agent[0]}:{action.text};" for agent, action in actions.items())
        return super().step(actions)

    def observations(self) -> dict[str, str]:
        agent = self.agents[self.number % len(self.agents)]
        self.number += 1
        return {agent: f"{self.row}{self.history}{agent[0]}"}


PROTOCOLS = (Anything, Parallel, InTurn)
KINDS = [(make, context_mode) for make in PROTOCOLS for context_mode in ("append", "last_only")]


@pytest.fixture(scope="module")
def played() -> dict[tuple[Any, str], list[Episode]]:
    """Episodes of each protocol and history."""
    found = {}
    for context_mode in ("append", "last_only"):
        players = Players(*AGENTS, context_mode=context_mode)
        for make in PROTOCOLS:
            found[make, context_mode] = players.play(make, ROWS, max_new_tokens=4)
    turns = [turn for episodes in found.values() for episode in episodes for turn in episode.turns]
    assert {turn.completion.finished for turn in turns} == {True, False}
    assert {episode.truncation for episodes in found.values() for episode in episodes} >= {"", "environment"}
    return found


def layout(context_mode: str = "append", **changes: Any) -> CriticLayout:
    plain: dict[str, Any] = {
        "agents": AGENTS,
        "tokenizer": TOKENIZER,
        "reads_text": False,
        "is_last_only": context_mode == "last_only",
        "context": 512,
        "max_new_tokens": dict.fromkeys(AGENTS, 4),
        "contexts": dict.fromkeys(AGENTS, 512),
    }
    return CriticLayout(**(plain | changes))


def rows(episodes: Sequence[Episode], agent: str) -> Rollout:
    return build_rollout(episodes, agent, device=torch.device("cpu"), filtered=False)


def view(episodes: Sequence[Episode], agent: str, how: CriticLayout) -> CriticView:
    return build_central_view(episodes, agent, rows(episodes, agent), how)


def written(ids: Sequence[int]) -> str:
    tokens = TOKENIZER.convert_ids_to_tokens(list(ids))
    return "".join(END if token == TOKENIZER.eos_token else token for token in tokens)


def read(found: Rollout, decode: Callable[[Sequence[int]], str] = written) -> list[dict[int, str]]:
    """By row: the text before each action column in its sequence, and, under -1, before the end."""
    texts: list[dict[int, str]] = []
    for row in range(len(found.texts)):
        sequences = build_sequences(found, torch.tensor([row]), packed=False)
        width = sequences.input_ids.shape[1]
        tokens = sequences.input_ids.flatten().tolist()

        def before(state: int, width: int = width, tokens: Sequence[int] = tokens) -> str:
            return decode(tokens[state // width * width : state + 1])

        states = sequences.state[0].tolist()
        columns = found.response_mask[row].nonzero().flatten().tolist()
        texts.append({column: before(states[column]) for column in columns} | {-1: before(states[-1])})
    return texts


def expected_states(
    episode: Episode, agent: str, *, is_last_only: bool, reads_text: bool = False
) -> tuple[list[str], str]:
    """The text before every action token (or turn) of the agent, and before the end; a readable reference."""
    states: list[str] = []
    text, since, after = "", "", ""
    own, turns = episode.turns_of_agent(agent), episode.turns
    others = [name for name in AGENTS if name != agent]

    def hear(words: str) -> None:
        nonlocal text, since
        gap = END if text and not text.endswith(END) else ""  # after a truncated response
        text += gap + words
        since += words

    def add_end(words: str) -> str:
        return words + END if reads_text else words

    for step in sorted({turn.step for turn in turns}):
        here = {turn.agent: turn for turn in turns if turn.step == step}
        for name in others:
            if name in here:
                hear(here[name].observation + END)
        if agent in here:
            turn = here[agent]
            state = (since if is_last_only else text) + add_end(turn.observation)
            message = written(turn.completion.ids.tolist())
            message = turn.completion.text + END if reads_text else message
            states += [state] if reads_text else [state + message[:place] for place in range(len(message))]
            after = state + message
            text, since = text + add_end(turn.observation) + message, ""
            if turn is own[-1] and episode.finished(agent):
                return states, after
        for name in others:
            if name in here:
                hear(written(here[name].completion.ids.tolist()).removesuffix(END) + END)
    if not own:
        return [], "<pad>"
    for name in others:
        if name in episode.last_observations:
            hear(episode.last_observations[name] + END)
    if agent in episode.final:
        return states, (since if is_last_only else text) + add_end(episode.last_observations[agent])
    gap = END if since and not after.endswith(END) else ""
    return states, after + gap + since if is_last_only else text


@pytest.mark.parametrize(("make", "context_mode"), KINDS)
def test_token_states_match_reference(make: Any, context_mode: str, played: Mapping[Any, list[Episode]]) -> None:
    episodes = played[make, context_mode]
    for agent in AGENTS:
        own, found = rows(episodes, agent), view(episodes, agent, layout(context_mode))
        assert not found.is_truncated.any()
        for row, (episode, texts) in enumerate(zip(episodes, read(found.rollout), strict=True)):
            states, end = expected_states(episode, agent, is_last_only=context_mode == "last_only")
            assert [texts[column] for column in sorted(texts) if column >= 0] == states
            assert texts[-1] == end
            mask, there = own.response_mask[row], found.rollout.response_mask[row]
            assert own.response_ids[row][mask].tolist() == found.rollout.response_ids[row][there].tolist()
            assert own.turn[row][mask].tolist() == found.rollout.turn[row][there].tolist()


@pytest.mark.parametrize(("make", "context_mode"), KINDS)
def test_text_states_match_reference(make: Any, context_mode: str, played: Mapping[Any, list[Episode]]) -> None:
    reader, episodes = byte_tokenizer(), played[make, context_mode]
    for agent in AGENTS:
        found = view(episodes, agent, layout(context_mode, tokenizer=reader, reads_text=True))

        def decode(ids: Sequence[int]) -> str:
            return reader.decode(ids).replace("<eos>", END)

        for episode, texts in zip(episodes, read(found.rollout, decode), strict=True):
            states, end = expected_states(episode, agent, is_last_only=context_mode == "last_only", reads_text=True)
            assert [texts[column] for column in sorted(texts) if column >= 0] == states
            assert texts[-1] == end


@pytest.mark.parametrize(("make", "context_mode"), KINDS)
def test_single_agent_view_equals_row(make: Any, context_mode: str) -> None:
    class Solo(make):
        agents = ("low",)

    episodes = Players("low", context_mode=context_mode).play(Solo, ROWS, max_new_tokens=4)
    own = rows(episodes, "low")
    read_at_once = [len(turn.prompt) + len(turn.completion.ids) for episode in episodes for turn in episode.turns]
    ends = [len(prompt) for episode in episodes for prompt in episode.final.values()]
    for context in (512, max(*read_at_once, *ends)):
        contexts = {"low": context}
        found = view(episodes, "low", layout(context_mode, agents=("low",), context=context, contexts=contexts))
        assert not found.is_truncated.any()
        for entry in fields(Rollout):
            value, wanted = getattr(found.rollout, entry.name), getattr(own, entry.name)
            if "logprobs" not in entry.name and entry.name != "cut_turns":  # a critic reads neither
                assert torch.equal(value, wanted) if isinstance(value, torch.Tensor) else value == wanted, entry.name


@pytest.mark.parametrize("reads_text", [False, True])
@pytest.mark.parametrize("context", [512, 24])
@pytest.mark.parametrize(("make", "context_mode"), KINDS)
def test_values_independent_of_simultaneous_and_later_actions(
    make: Any, context_mode: str, context: int, reads_text: bool, played: Mapping[Any, list[Episode]]
) -> None:
    how, compared = layout(context_mode, context=context, reads_text=reads_text), 0
    for agent in AGENTS:
        for episode in played[make, context_mode][:8]:
            before = values_read(episode, agent, how)
            spoken = 0  # action tokens, or turns, before this turn
            for turn in episode.turns_of_agent(agent):
                count = 1 if reads_text else len(turn.completion.ids)
                after = values_read(otherwise(episode, agent, turn.step), agent, how)
                assert after[: spoken + count] == before[: spoken + count]
                # Also independent of the agent's own next tokens and their number.
                after = values_read(otherwise(episode, agent, turn.step, own_too=True), agent, how)
                assert after[: spoken + 1] == before[: spoken + 1]
                spoken += count
            compared += spoken
    assert compared > 20


def values_read(episode: Episode, agent: str, how: CriticLayout) -> list[str]:
    """The text before each action column."""
    return [text for column, text in sorted(read(view([episode], agent, how).rollout)[0].items()) if column >= 0]


def otherwise(episode: Episode, agent: str, step: int, *, own_too: bool = False) -> Episode:
    """A copy that is equal up to the observations of a step; other agents' actions in it and later events differ."""

    def change(turn: Turn) -> Turn:
        if turn.step < step or (turn.step == step and turn.agent == agent and not own_too):
            return turn
        if turn.step == step and turn.agent == agent:
            tokens = torch.cat([turn.completion.ids[:1], torch.tensor(ids("hgf"))])
            return replace(turn, completion=replace(make_completion("hgf"), ids=tokens))
        changed = replace(turn, completion=make_completion("hgfedcba"))
        if turn.step > step:
            more = ", and much more"
            prompt = [*turn.prompt, *TOKENIZER(more).input_ids]
            changed = replace(changed, observation=turn.observation + more, prompt=prompt)
        return changed

    observed = dict.fromkeys(AGENTS, "another end")
    turns = [change(turn) for turn in episode.turns]
    return replace(episode, turns=turns, last_observations=observed, terminated=False, ended=frozenset())


@pytest.mark.parametrize("reads_text", [False, True])
@pytest.mark.parametrize("make", PROTOCOLS)
def test_values_depend_on_earlier_events_of_others(
    make: Any, reads_text: bool, played: Mapping[Any, list[Episode]]
) -> None:
    how, observed, wrote = layout(reads_text=reads_text), 0, 0
    for agent in AGENTS[:1]:
        for episode in played[make, "append"][:16]:
            before = values_read(episode, agent, how)
            for place, turn in enumerate(episode.turns):
                if turn.agent == agent:
                    continue
                for change in ({"observation": "x"}, {"completion": make_completion("hgfedcba")}):
                    turns = [*episode.turns[:place], replace(turn, **change), *episode.turns[place + 1 :]]
                    after = values_read(replace(episode, turns=turns), agent, how)
                    steps = [
                        one.step
                        for one in episode.turns_of_agent(agent)
                        for _ in (range(1) if reads_text else one.completion.ids)
                    ]
                    reached = [step >= turn.step if "observation" in change else step > turn.step for step in steps]
                    assert [one != two for one, two in zip(before, after, strict=True)] == reached
                    observed, wrote = observed + ("observation" in change) * sum(reached), wrote + sum(reached)
    assert observed > 10
    assert wrote > observed


@pytest.mark.parametrize("context", [24, 16])
@pytest.mark.parametrize(("make", "context_mode"), KINDS)
def test_truncation_drops_oldest_parts(
    make: Any, context_mode: str, context: int, played: Mapping[Any, list[Episode]]
) -> None:
    episodes, cut = played[make, context_mode], 0
    for agent in AGENTS:
        found = view(episodes, agent, layout(context_mode, context=context))
        for row, (episode, texts) in enumerate(zip(episodes, read(found.rollout), strict=True)):
            states, end = expected_states(episode, agent, is_last_only=context_mode == "last_only")
            have = [texts[column] for column in sorted(texts) if column >= 0]
            result = [
                turn.observation[-8:] + written(turn.completion.ids)[:number]
                for turn in episode.turns_of_agent(agent)
                for number in range(len(turn.completion.ids))
            ]
            assert all(len(there) <= context for there in have)
            for state, there, last in zip(states, have, result, strict=True):
                place = 0
                for character in there:  # the input is a subsequence of the history
                    place = state.index(character, place) + 1
                assert there.endswith(last)
            assert found.is_truncated[row] or (have == states and end == texts[-1])
            cut += have != states
    assert cut > 0


def test_own_tokens_truncated_last() -> None:
    first = Turn(agent="low", step=0, observation="123", prompt=ids("123"), completion=make_completion("ab"))
    others = [
        Turn(agent=name, step=0, observation=f"{name}55555", prompt=ids("55555"), completion=make_completion("cccc"))
        for name in ("high", "mid")
    ]
    prompt = [*ids("123"), *ids("ab"), TOKENIZER.eos_token_id, *ids("678")]
    last = Turn(agent="low", step=1, observation="678", prompt=prompt, completion=make_completion("d"))
    (episode,) = [an_episode(turns=[first, *others, last])]
    texts = read(view([episode], "low", layout(context=26)).rollout)[0]
    # All that fits exactly is kept. In a smaller context the oldest is dropped before the first turn.
    assert [texts[c] for c in sorted(texts)][1] == "high55555¶mid55555¶123"
    found = view([episode], "low", layout(context=23))
    texts = read(found.rollout)[0]
    assert [texts[c] for c in sorted(texts)][1] == "mid55555¶123"
    assert found.is_truncated.tolist() == [True]
    assert [texts[c] for c in sorted(texts)][-2] == "123ab¶cccc¶cccc¶678"


def test_rewritten_history_starts_new_sequence() -> None:
    first = Turn(agent="low", step=0, observation="1", prompt=ids("1"), completion=make_completion("ab"))
    other_one = Turn(agent="high", step=1, observation="2", prompt=ids("2"), completion=make_completion("c"))
    rewritten = Turn(agent="low", step=2, observation="3", prompt=ids("1b3"), completion=make_completion("d"))
    found = view([an_episode(turns=[first, other_one, rewritten])], "low", layout())
    texts = read(found.rollout)[0]
    assert [texts[column] for column in sorted(texts) if column >= 0] == [
        "1",
        "1a",
        "1ab",
        "2¶c¶1b3",
        "2¶c¶1b3d",
    ]


def test_opponent_episode_has_empty_row() -> None:
    turns = [
        Turn(agent=name, step=0, observation="1", prompt=ids("1"), completion=make_completion("ab"))
        for name in ("low", "high")
    ]
    episodes = [replace(an_episode(turns=turns), partners=frozenset({"low"}))]
    assert not view(episodes, "low", layout()).rollout.response_mask.any()
    assert read(view(episodes, "high", layout()).rollout)[0][0] == "1¶1"  # its turns are read like those of others


def test_bos_token_remains_first() -> None:
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.bos_token = "^"
    begins = tokenizer.bos_token_id
    own = Turn(agent="low", step=0, observation="1", prompt=[begins, *ids("1")], completion=make_completion("a"))
    replies = Turn(agent="high", step=0, observation="2", prompt=[begins, *ids("2")], completion=make_completion("b"))
    episode = an_episode(turns=[own, replies])
    for agent, text in {"low": "^2¶1", "high": "^1¶2"}.items():
        texts = read(view([episode], agent, layout(tokenizer=tokenizer)).rollout)[0]
        assert texts[min(column for column in texts if column >= 0)] == text


@pytest.mark.parametrize(("make", "context_mode"), KINDS)
def test_targets_at_value_columns(make: Any, context_mode: str, played: Mapping[Any, list[Episode]]) -> None:
    torch.manual_seed(0)
    episodes = played[make, context_mode]
    for agent in AGENTS:
        own = rows(episodes, agent)
        targets = some_targets(own)
        found = view(episodes, agent, layout(context_mode))
        there = found.scatter_targets(targets)
        for entry in fields(Targets):
            wanted, value = getattr(targets, entry.name), getattr(there, entry.name)
            if wanted.dim() == 2:
                assert torch.equal(value[found.rollout.response_mask], wanted[own.response_mask]), entry.name
                assert not value[~found.rollout.response_mask].any()
                back = found.gather_values(value.float(), own)
                assert torch.equal(back, wanted.float().masked_fill(~own.response_mask, 0.0))
            else:
                assert value is wanted
        text_view = view(episodes, agent, layout(context_mode, reads_text=True))
        there = text_view.scatter_targets(targets)
        values = torch.rand(text_view.rollout.response_ids.shape).masked_fill(~text_view.rollout.response_mask, 0.0)
        back = text_view.gather_values(values, own)
        for row, episode in enumerate(episodes):
            for number in range(len(episode.turns_of_agent(agent))):
                mine, (column,) = own.turn[row] == number, (text_view.rollout.turn[row] == number).nonzero()
                assert set(back[row][mine].tolist()) == {float(values[row, column])}
                assert there.returns[row, column] == targets.returns[row][mine][-1]


def some_targets(own: Rollout) -> Targets:
    shape, count = own.response_ids.shape, len(own.texts)
    names = ("rewards", "values", "ref_logprobs", "advantages", "returns", "behavior_weights")
    return Targets(
        **{name: torch.randn(shape) for name in names},
        final_values=torch.randn(count),
        loss_mask=own.response_mask & (torch.rand(count) > 0.3)[:, None],
        value_mask=own.response_mask & (torch.rand(shape) > 0.5),
        sample_counts=torch.ones(count, dtype=torch.long),
        positive=torch.zeros(count, dtype=torch.bool),
    )


def ids(text: str) -> list[int]:
    assert set(text) <= set(ascii_lowercase + digits)
    return list(TOKENIZER(text).input_ids)


def make_completion(text: str) -> Completion:
    tokens = torch.tensor([*ids(text), TOKENIZER.eos_token_id])
    zeros = torch.zeros(len(tokens))
    return Completion(ids=tokens, logprobs=zeros, behavior_logprobs=zeros, text=text, finished=True)

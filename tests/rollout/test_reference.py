"""Rows of episodes match a slow reference: random protocols, templates and truncations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from string import printable
from typing import Any

import pytest
import torch
from chats import FAMILIES, tokenizer_of
from players import model_of
from reference import Reader, Row, Script, ScriptedStep, ScriptedWorld, reference_row, replayed, templated

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import AgentConfig
from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import HfGenerator, SamplingStream
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.protocols import Dialogue, Parallel, Sequential, UserProtocol
from ippo_cli.types import Batch, Rollout

ROWS = 4
NAMES = ("low", "mid", "high")
ROLLOUT = load_config([]).rollout


def irregular(chance: random.Random, agents: Sequence[str]) -> Script:
    """Agents selected by the previous messages, rewards at any step for any agent, and any kind of end."""
    salt = chance.random()

    def script(example: Any, rounds: Sequence[Any]) -> ScriptedStep:
        luck = random.Random(f"{salt} {example['q']} {[sorted(one.items()) for one in rounds]}")
        observations = {
            name: "".join(luck.choices("xyz\n", k=luck.randint(1, 9)))
            for name in luck.sample(agents, luck.randint(1, len(agents)))
        }
        paid = {name: float(luck.randint(-3, 3)) for name in agents if luck.random() < 0.4}
        over = luck.random() if len(rounds) > 1 else 1.0
        ended, cut = over < 0.25 or len(rounds) == 5, over > 0.75 and len(rounds) > 1
        return ScriptedStep(observations, paid if rounds else {}, terminated=ended, truncated=cut and not ended)

    return script


class Case:
    """Random rollout settings, with their environment and models."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.agents = NAMES[: chance.randint(1, 3)]
        family = chance.choice([None, None, "chatml", "qwen2", "llama3", "gemma", "mistral", "phi3", "mistral last"])
        kind = FAMILIES[family] if family else None
        self.context_mode = chance.choice(
            ["append", "retokenize", "last_only"] if not kind or kind.keeps_history else ["retokenize"]
        )
        system = "so:" if kind and (kind.system or family == "mistral last") and chance.random() < 0.7 else None
        tokenizer = tokenizer_of(kind) if kind else character_tokenizer(printable)
        models = {name: model_of(tokenizer, seed + place) for place, name in enumerate(self.agents)}
        self.rollout = replace(
            ROLLOUT,
            max_new_tokens=chance.randint(1, 6),
            temperature=chance.choice([1.0, 1.7]),
            top_k=chance.choice([0, 0, 3]),
            stop_strings=chance.choice([[], ["h"]]),
            decode_batch_size=chance.choice([1, 2, 16]),
            context_limit=chance.choice([None, 45, 60, 90] if not kind else [None, 120, 160, 200]),
            max_prompt_tokens=300,
        )
        self.environments, self.script = self._protocol(chance)
        self.policies = {
            name: FrozenAgent(name=name, tokenizer=tokenizer, held_policy=Policy(model).eval())
            for name, model in models.items()
        }
        self.continues = chance.random() < 0.5
        self.formats = {
            name: PromptFormat(
                name,
                tokenizer,
                system=system,
                chat_template=bool(kind),
                max_prompt_tokens=300,
                context_mode=self.context_mode,
            )
            for name in self.agents
        }
        self.readers = {
            name: Reader(
                agent=name,
                tokenizer=tokenizer,
                model=models[name],
                chat=bool(kind),
                system=system,
                context_mode=self.context_mode,
                context=min(512, self.rollout.context_limit or 512),
                temperature=self.rollout.temperature,
                top_k=self.rollout.top_k,
                stop_string="".join(self.rollout.stop_strings),
            )
            for name in self.agents
        }
        self.batch = Batch(
            examples=[{"q": "".join(chance.choices("pqr", k=chance.randint(1, 8)))} for _ in range(ROWS)],
            index=torch.tensor(chance.sample(range(1000), ROWS)),
        )
        self.draws = SamplingStream(seed=seed, purpose="train/7")

    def _protocol(self, chance: random.Random) -> tuple[EnvironmentPool, Script]:
        agents, turns = self.agents, chance.randint(1, 4)
        later = chance.choice(["{heard}|", "{turn}:{q}\n", "{transcript}\n{turn}"])
        first = {name: "{q}<" if place == 0 else "{q}{transcript}>" for place, name in enumerate(agents)}
        if len(agents) > 1:
            first[agents[1]] = "{heard}~"
        kind = chance.choice(["parallel", "sequential", "dialogue", "own", "world"])
        self.protocol = kind
        if kind == "parallel":
            first = {name: "{q}" + name for name in agents}
        if len(agents) > 2 and kind in ("sequential", "dialogue"):
            first[agents[2]] = "{agents.low},{agents.mid}>"
        templates = {name: (first[name], later) for name in agents}
        made = {name: AgentConfig(template=one, turn_template=two) for name, (one, two) in templates.items()}
        if kind == "parallel":
            return EnvironmentPool(lambda: Parallel(made, turns)), templated(templates, lambda _: agents, turns)
        if kind == "sequential":
            script = templated(templates, lambda number: [agents[number]], len(agents))
            return EnvironmentPool(lambda: Sequential(made)), script
        if kind == "dialogue":
            script = templated(templates, lambda number: [agents[number % len(agents)]], turns * len(agents))
            return EnvironmentPool(lambda: Dialogue(made, turns)), script
        script = irregular(chance, agents)
        if kind == "world":
            return EnvironmentPool(lambda: ScriptedWorld(script), workers=4), script
        return EnvironmentPool(lambda: UserProtocol(own(script), "my.py:debate", agents)), without_cuts(script)


def own(script: Script) -> Any:
    """The script as a user's generator, which only ends by itself."""
    script = without_cuts(script)

    def debate(example: Any, agents: Sequence[str]) -> Any:
        rounds: list[Any] = []
        result = script(example, rounds)
        while not result.terminated:
            rounds.append((yield dict(result.observations)))
            result = script(example, rounds)
        return dict(result.rewards)

    return debate


def without_cuts(script: Script) -> Script:
    """The script with rewards only at the end and without truncation."""

    def uncut(example: Any, rounds: Sequence[Any]) -> ScriptedStep:
        result = script(example, rounds)
        ended = result.terminated or result.truncated
        return replace(result, rewards=result.rewards if ended else {}, terminated=ended, truncated=False)

    return uncut


def same_row(rollout: Rollout, number: int, expected: Row) -> None:
    prompt = rollout.prompt_ids[number][rollout.prompt_mask[number]].tolist()
    assert prompt == expected.prompt
    length = int(rollout.length[number])
    assert rollout.response_ids[number, :length].tolist() == expected.ids
    assert rollout.turn[number, :length].tolist() == expected.turn
    assert rollout.response_mask[number, :length].tolist() == [turn >= 0 for turn in expected.turn]
    assert [(one.column, one.prompt) for one in rollout.detached[number]] == expected.detached
    assert bool(rollout.finished[number]) == expected.finished
    assert rollout.texts[number] == expected.text
    for found, wanted in ((rollout.logprobs, expected.logprobs), (rollout.behavior_logprobs, expected.behavior)):
        torch.testing.assert_close(found[number, :length], torch.tensor(wanted), atol=1e-5, rtol=0)
    assert not rollout.response_mask[number, length:].any()
    assert (rollout.turn[number, length:] == -1).all()
    for padded in (rollout.response_ids, rollout.logprobs, rollout.behavior_logprobs):
        assert not padded[number, length:].any()
    assert not rollout.prompt_ids[number][~rollout.prompt_mask[number]].any()


def trained_logprobs(policy: Policy, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Log-probabilities of the rows from the training forward."""
    sequences = build_sequences(rollout, torch.arange(len(rollout.texts)), packed=policy.packs, final=False)
    with torch.no_grad():
        return policy(sequences, temperature=temperature, chunk_tokens=64).logprobs


def played(case: Case, **changes: Any) -> Any:
    settings = {"continues": case.continues, "rollout": case.rollout, "batch": case.batch, **changes}
    rollout = settings["rollout"]
    sampling = dict.fromkeys(case.policies, rollout)
    generator = HfGenerator(case.policies, rollout, sampling, continues=settings["continues"])
    return collect(case.environments, case.formats, settings["batch"], generator, case.draws)


SEEN: dict[str, set[Any]] = {}


@pytest.mark.parametrize("seed", range(8, 48))  # 47: a full context, see test_cases_cover_all_kinds
def test_rows_match_reference(seed: int) -> None:
    case = Case(seed)
    episodes = played(case)
    paid = EnvironmentReward(case.agents)(episodes).agent_by_turn
    replays = [replayed(case.script, episode, case.readers) for episode in episodes]
    for episode, replay in zip(episodes, replays, strict=True):
        assert episode.failure is None
        assert episode.terminated == replay.terminated
        assert episode.truncation == replay.truncation
        assert [dict(one) for one in episode.rewards] == [dict(one) for one in replay.rewards]
    for name in case.agents:
        rollout = build_rollout(episodes, name, device=torch.device("cpu"), filtered=bool(case.rollout.top_k))
        for number, replay in enumerate(replays):
            row = reference_row(replay, case.readers[name], cut_answers_are_unfinished=case.protocol != "world")
            same_row(rollout, number, row)
            assert paid[name][number] == row.rewards
            note("detached", bool(row.detached))
        trained = trained_logprobs(case.policies[name].policy, rollout, case.rollout.temperature)
        width = trained.shape[1]
        expected = rollout.logprobs[:, :width]
        torch.testing.assert_close(
            trained.where(rollout.response_mask[:, :width], torch.zeros(())), expected, atol=1e-5, rtol=0
        )
    for word, what in (("protocol", case.protocol), ("context_mode", case.context_mode), ("reuse", case.continues)):
        note(word, what)
    for episode in episodes:
        note("truncation", episode.truncation)
        note("turns", max((len(episode.turns_of_agent(name)) for name in case.agents), default=0))
        note("silent", any(not episode.turns_of_agent(name) for name in case.agents))


def note(word: str, what: Any) -> None:
    SEEN.setdefault(word, set()).add(what)


def test_cases_cover_all_kinds() -> None:
    if len(SEEN.get("protocol", ())) < 5:
        pytest.skip("only some of the cases have run")
    assert SEEN["context_mode"] == {"append", "retokenize", "last_only"}
    assert SEEN["truncation"] == {"", "environment", "context"}
    assert SEEN["turns"] >= {1, 2, 3, 4}
    assert SEEN["reuse"] == SEEN["silent"] == SEEN["detached"] == {False, True}

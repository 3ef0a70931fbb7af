"""Small models that generate letters, and environments for them. Tests import this file by its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import printable
from typing import Any

import torch
from fake_engine import FakeEngine, use_fake_engines
from transformers import LlamaConfig, LlamaForCausalLM

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.compose.load import load_config
from ippo_cli.models.actor import Policy
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import HfGenerator, SamplingStream
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import Action, Environment, EnvironmentPool, Step
from ippo_cli.types import Batch, Episode, Example

LETTERS = "abcdefgh"  # the models' output alphabet: each of its texts has a unique tokenisation
ROLLOUT = load_config(["rollout.max_new_tokens=5", "rollout.decode_batch_size=4"]).rollout
DRAWS = SamplingStream(seed=3, purpose="train/1")
TOKENIZER = character_tokenizer(printable)


def model_of(tokenizer: Any, seed: int) -> LlamaForCausalLM:
    """A small random model that generates letters and stops."""
    torch.manual_seed(seed)
    eos = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=eos,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(6.0)
    speakable = torch.full((len(tokenizer),), -1e4)
    speakable[[tokenizer.convert_tokens_to_ids(letter) for letter in LETTERS] + [eos]] = 0.0
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + speakable)
    return model


class Players:
    """Agents with separate models, reusable for several collections."""

    def __init__(self, *names: str, context_mode: str = "append", with_engines: bool = False) -> None:
        self.with_engines = with_engines
        self.engines: list[FakeEngine] = []  # of the last collection
        self.policies = {
            name: FrozenAgent(name=name, tokenizer=TOKENIZER, held_policy=Policy(model_of(TOKENIZER, seed)).eval())
            for seed, name in enumerate(names)
        }
        self.formats = {
            name: PromptFormat(name, TOKENIZER, max_prompt_tokens=300, context_mode=context_mode) for name in names
        }

    def play(
        self,
        make: Callable[[], Environment],
        rows: Sequence[int] = range(8),
        *,
        workers: int = 1,
        continues: bool = False,
        draws: SamplingStream = DRAWS,
        poll: Any = None,
        on_episodes: Any = None,
        **rollout: Any,
    ) -> list[Episode]:
        """Collect the episodes of these row numbers."""
        settings = replace(ROLLOUT, **rollout)
        sampling = dict.fromkeys(self.policies, settings)
        generator: Any = HfGenerator(self.policies, settings, sampling, continues=continues)
        if self.with_engines:
            self.engines = []
            engines = use_fake_engines(self.policies, self.engines)
            generator = EngineGenerator(self.policies, settings, sampling, engines=engines, verify_every=1)
        batch = Batch(examples=[{"row": row} for row in rows], index=torch.tensor(list(rows), dtype=torch.long))
        pool = make if isinstance(make, EnvironmentPool) else EnvironmentPool(make, workers=workers)
        return collect(pool, self.formats, batch, generator, draws, poll=poll, on_episodes=on_episodes)


class Rounds:
    """All agents act simultaneously, `length(row)` times."""

    agents: Sequence[str] = ("low", "high")

    def length(self, row: int) -> int:
        return 1 + row % 3

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.row, self.number = example["row"], 0
        return self.observations()

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.number += 1
        over = self.number >= self.length(self.row)
        paid = {agent: float(action.text.count("a")) for agent, action in actions.items()}
        return Step(observations={} if over else self.observations(), rewards=paid, terminated=over)

    def observations(self) -> dict[str, str]:
        return {agent: f"{self.row}.{self.number}:" for agent in self.agents}

    def close(self) -> None:
        pass


def transcript(episode: Episode) -> list[Any]:
    """All prompts and completions of an episode."""
    return [
        (turn.agent, turn.step, turn.observation, turn.prompt, turn.completion.ids.tolist(), turn.completion.finished)
        for turn in episode.turns
    ]

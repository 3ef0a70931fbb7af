"""Inputs of benchmarks: a random-init Llama, prompts of eight words, a task of N agents, and a word-count reward."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PROMPT_WORDS = 8
PROMPTS = 8192
EVALUATED = 8  # rows of the first and last evaluation, which are not timed

REWARD = '''"""The fraction of one word in all responses of a row."""


def reward(examples, responses, **_):
    joint = [" ".join(row).split() for row in zip(*responses.values(), strict=True)]
    return {"team": [words.count("t4") / max(len(words), 1) for words in joint]}
'''
TASK = """defaults:
  - /base/jsonl@_here_
  - _self_

agents:
"""
AGENT = """  a{number}:
    template: "{template}"
    turn_template: {turn_template}
    system: null
    answer: null
"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape of a Llama; `key_value_heads` defaults to `heads`."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    intermediate: int = 1024
    vocabulary: int = 64
    context: int = 1024
    key_value_heads: int | None = None
    tied: bool = False  # whether head and embedding share weights

    @property
    def parameters(self) -> int:
        """Number of weights, without norms."""
        kv = (self.key_value_heads or self.heads) * (self.hidden // self.heads)
        layer = 2 * self.hidden * (self.hidden + kv) + 3 * self.hidden * self.intermediate
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden


def make(
    folder: Path, shape: Shape, agents: int, *, talk: bool = False, heard: int = 0, dtype: torch.dtype = torch.float32
) -> list[str]:
    """Write all files below `folder` and return the overrides that use them.

    In a `talk` an agent observes earlier responses of others. If `heard` is set, from its second turn on it observes
    that many constant words instead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model"
    if not model.exists():
        make_model(shape).to(dtype).save_pretrained(model)  # pyright: ignore[reportArgumentType]
        _tokenizer(shape.vocabulary).save_pretrained(model)
    words = random.Random(0)
    for name, rows in (("train", PROMPTS), ("eval", EVALUATED)):
        lines = (
            " ".join(f"t{words.randrange(4, min(shape.vocabulary, 64))}" for _ in range(PROMPT_WORDS))
            for _ in range(rows)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines))
    (folder / "reward.py").write_text(REWARD)
    (folder / "conf" / "task").mkdir(parents=True, exist_ok=True)
    turn_template = json.dumps(" ".join(["t5"] * heard)) if heard else "null"
    templates = ["{prompt} {heard}" if talk and number else "{prompt}" for number in range(agents)]
    (folder / "conf" / "task" / f"bench_{agents}.yaml").write_text(
        TASK
        + "".join(
            AGENT.format(number=n, template=text, turn_template=turn_template) for n, text in enumerate(templates)
        )
    )
    return [
        f"hydra.searchpath=[file://{folder / 'conf'}]",
        f"task=bench_{agents}",
        f"task.train={folder / 'train.jsonl'}",
        f"task.eval={folder / 'eval.jsonl'}",
        "actor=full",
        f"actor.model={model}",
        "reward=function",
        f"reward.function={folder / 'reward.py'}:reward",
        f"output_dir={folder / 'outputs'}",
        "tracker.samples_every=0",
    ]


def make_model(shape: Shape) -> LlamaForCausalLM:
    """A Llama with random weights, always the same on one device."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads or shape.heads,
            max_position_embeddings=shape.context,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            tie_word_embeddings=shape.tied,
        )
    )


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3} | {f"t{number}": number for number in range(4, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )

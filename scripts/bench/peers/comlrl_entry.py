"""Enter the benchmark with CoMLRL: train its IAC on rows of `copy_1`, and write responses to held-out rows.

In an environment of its own: pip install "torch==2.13.0" comlrl==1.4.3

    ippo-bench prompts copy_1 to=train.jsonl split=train seeds=1
    ippo-bench prompts copy_1 to=rows.jsonl seeds=1
    python scripts/bench/peers/comlrl_entry.py train.jsonl rows.jsonl --episodes 2048 > answers.jsonl
    ippo-bench import answers.jsonl task=copy_1 entry=comlrl_iac trainer='comlrl 1.4.3'

Both agents begin with the same small random model over characters. A training is one seed: rows of other seeds are
skipped (`--seed`). Only the standard library, torch, transformers and CoMLRL are used.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}

import torch
from comlrl.trainers import IACConfig, IACTrainer
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

AGENTS = ("first", "second")
LETTERS = "abc"
LENGTH = 2


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of characters."""
    vocabulary = {text: place for place, text in enumerate(["<pad>", "<eos>", "<unk>", *"AB", *LETTERS])}
    raw = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def save_model(folder: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Save a small random model that writes only visible characters."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=16,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    hidden = [tokenizer.convert_tokens_to_ids(text) for text in ("<pad>", "<eos>", "<unk>", "A", "B")]
    model.generation_config.suppress_tokens = hidden
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def reward(first: Sequence[str], second: Sequence[str], *, batch_items: Sequence[dict[str, Any]]) -> list[float]:
    """Return the reward of `copy_1`: the fraction of right letters of both, 0 if one of the answers is invalid."""
    (item,) = batch_items
    word, found = item["prompt"], []
    for one, other in zip(first, second, strict=True):
        following = "".join(LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in word)
        valid = len(one) == len(other) == LENGTH
        right = [mine == wanted for mine, wanted in zip(one + other, word + following, strict=False)]
        found.append(sum(right) / (2 * LENGTH) if valid else 0.0)
    return found


def read_rows(file: Path, seed: int) -> list[dict[str, Any]]:
    """Return the rows of one seed."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row for row in rows if row["seed"] == seed]


def train(words: Sequence[str], folder: str, tokenizer: PreTrainedTokenizerFast, rate: float) -> IACTrainer:
    """Train both agents, one episode for each word."""
    args = IACConfig(
        num_agents=len(AGENTS),
        num_turns=1,
        num_generations=1,
        num_train_epochs=1,
        agent_learning_rate=rate,
        critic_learning_rate=rate,
        rollout_buffer_size=64,
        train_batch_size=64,
        max_new_tokens=LENGTH,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        agent_devices="cpu",
        critic_devices="cpu",
        eval_interval=0,
    )
    trainer = IACTrainer(
        agent_model=folder,
        critic_model=folder,
        tokenizer=tokenizer,
        reward_func=reward,
        formatters=[lambda row, letter=letter: letter + row["prompt"] for letter in "AB"],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": list(words)}),
    )
    trainer.verbose = False
    trainer.train()
    return trainer


@torch.no_grad()
def answer(model: Any, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> list[str]:
    """Sample one response to each prompt; all prompts have equally many tokens."""
    inputs = tokenizer(list(prompts), return_tensors="pt", return_token_type_ids=False)
    ids = model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=LENGTH)
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="rows of ippo-bench prompts split=train")
    parser.add_argument("rows", type=Path, help="rows of ippo-bench prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=3e-3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    tokenizer, source = make_tokenizer(), random.Random(given.seed)
    known = [row["observations"]["first"].removeprefix("A") for row in read_rows(given.train, given.seed)]
    words = source.choices(known, k=given.episodes)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, tokenizer)
        trainer = train(words, folder, tokenizer, given.rate)
    rows = read_rows(given.rows, given.seed)
    texts = [
        answer(agent.model, tokenizer, [row["observations"][name] for row in rows])
        for name, agent in zip(AGENTS, trainer.agents, strict=True)
    ]
    tokens = len(AGENTS) * LENGTH * given.episodes
    print(json.dumps({"seed": given.seed, "training": {"tokens": tokens, "episodes": given.episodes}}))
    for place, row in enumerate(rows):
        responses = [[name, own[place]] for name, own in zip(AGENTS, texts, strict=True)]
        version = {"version": row["version"]}
        print(json.dumps({"seed": given.seed, "row": row["row"], **version, "responses": responses}))
    print(f"{given.episodes} episodes of seed {given.seed}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Models of different families in folders, and a task for two agents that use them. Imported by path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.models.tiny import byte_tokenizer

CHAT = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
WORDS = [f"{one} and {other}" for one in ("apple", "pear", "plum") for other in ("bread", "milk", "salt", "rice")]
REWARD = """
def reward(examples, responses):
    return {"agent": {name: [text.count("a") - len(text) / 9 for text in texts] for name, texts in responses.items()}}
"""


def pieces_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with multi-character tokens, its own vocabulary, and a chat template."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|pad|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(WORDS * 3 + ["[user] [assistant] "] * 5, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|end|>")
    tokenizer.chat_template = CHAT
    return tokenizer


def family(folder: Path, kind: str) -> Path:
    """A random model with its tokenizer: `llama` with BPE and a chat template, `gpt2` or `mamba` with bytes."""
    if folder.is_dir():
        return folder
    tokenizer = pieces_tokenizer() if kind == "llama" else byte_tokenizer()
    ids: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config: PretrainedConfig
    if kind == "llama":
        config = LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=512,
            **ids,
        )
    elif kind == "gpt2":
        config = GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=384, **ids)
    else:
        config = MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, time_step_rank=2, **ids)
    torch.manual_seed(len(kind))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # so that the input affects the output
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def mixed(root: Path, *typed: str, protocol: str = "sequential", second: str = "gpt2") -> list[str]:
    """Overrides of a short run of `writer`, a bf16 Llama, and `reader`, an fp32 one, with individual rewards."""
    (root / "reward.py").write_text(REWARD)
    for name, words in (("train", WORDS), ("eval", WORDS[:4])):
        (root / f"{name}.jsonl").write_text("".join(json.dumps({"words": text}) + "\n" for text in words))
    history = "{words}?" if protocol == "parallel" else "{agents.writer}?"
    return normalize_arguments(
        [
            *of_two(family(root / "llama", "llama"), family(root / second, second), history),
            f"task.train={root}/train.jsonl",
            f"task.eval={root}/eval.jsonl",
            f"task.protocol={protocol}",
            *([] if protocol != "dialogue" else ["task.num_turns=2", "task.agents.reader.turn_template=null"]),
            "reward=function",
            f"reward.function={root}/reward.py:reward",
            "reward.team_weight=0",
            "reward.agent_weight=1",
            *typed,
        ]
    )


def of_two(writer: Path, reader: Path, history: str) -> Sequence[str]:
    """Overrides that replace the locally created models of the small run by these two families."""
    return (
        "task=jsonl",
        "task.agents={writer:{template:'{words}'},reader:{template:'" + history + "'}}",
        f"task.agents.writer.actor.model={writer}",
        f"task.agents.reader.actor.model={reader}",
        "task.agents.reader.actor.dtype=fp32",
        *(
            f"task.agents.{name}.{setting}"
            for name in ("writer", "reader")
            for setting in (
                "actor=full",
                "actor.learning_rate=1e-3",
                "actor.warmup_iterations=0",
                "critic.learning_rate=1e-3",
            )
        ),
        "algorithm=ppo",
        "algorithm.ppo_epochs=1",
        "algorithm.mini_batch_size=8",
        "rollout.max_new_tokens=6",
        "num_iterations=2",
        "evaluation.every=0",
        "checkpoint.every=0",
    )

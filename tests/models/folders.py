"""Model folders in hub format, with a character tokenizer: of a few thousand random weights, or without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ippo_cli.models.tiny import character_tokenizer

PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SEVEN_B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def model_folder(
    folder: Path, characters: str = "abcdefgh", *, seed: int = 0, chat: bool = False, context: int = 64
) -> Path:
    """A causal language model in safetensors format with its tokenizer."""
    tokenizer = character_tokenizer(list(characters))
    if chat:
        tokenizer.chat_template = CHAT
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def weightless_folder(root: Path, shape: dict[str, Any]) -> Path:
    """A model's configuration and tokenizer, without weights."""
    folder = root / "model"
    character_tokenizer([chr(code) for code in range(32, 127)]).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(shape))
    return folder

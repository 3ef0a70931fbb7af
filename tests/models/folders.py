"""Model folders in hub format: a few thousand random weights and a character tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ippo_cli.models.tiny import character_tokenizer

PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


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

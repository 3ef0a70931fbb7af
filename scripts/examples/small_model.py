"""Make a small random-init Llama with a byte-level BPE tokenizer trained on a file's text: `small_model.py TEXT OUT`.

Use it to try real data without pretrained weights; the model is untrained, so its scores are low.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make(text: Path, out: Path, *, vocabulary: int, hidden: int, layers: int, seed: int) -> None:
    """Write a folder that `actor=full actor.model=OUT` loads."""
    trainer = ByteLevelBPETokenizer()
    trainer.train(str(text), vocab_size=vocabulary, min_frequency=2, special_tokens=["<pad>", "<eos>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trainer._tokenizer, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = CHAT
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=1024,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make(given.text, given.out, vocabulary=given.vocabulary, hidden=given.hidden, layers=given.layers, seed=given.seed)

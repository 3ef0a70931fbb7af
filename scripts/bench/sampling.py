"""Agreement of samples across batch sizes: `sampling.py MODEL [--rows 16] [--tokens 48] [--dtype bfloat16]`.

The same prompts with the same random numbers are decoded in batches of several sizes. Rounding depends on the batch,
and a token changes where rounding decides its choice. Printed for each method of sampling: the mean share of a response
before its first differing token, and the number of equal responses.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ippo_cli.rollout.decode import decode
from ippo_cli.rollout.decode_state import DecodeRows
from ippo_cli.rollout.noise import GumbelNoise, TokenNoise, UniformNoise, row_keys, uniforms
from ippo_cli.rollout.sampling import Sampling

QUESTIONS = ("Write a sentence about {}.", "What is {}?", "Name three kinds of {}.", "Why do people like {}?")
WORDS = ("rivers", "music", "bread", "mountains", "glass", "trains", "chess", "tea")


def measure(folder: str, rows: int, tokens: int, dtype: torch.dtype, sizes: list[int]) -> None:
    """Print a line for each method and batch size, compared with the first size."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    asked = [QUESTIONS[row % 4].format(WORDS[row // 4 % 8]) for row in range(rows)]
    prompts = [tokenizer(text).input_ids for text in asked]
    index = torch.arange(rows)
    noises: dict[str, TokenNoise] = {
        "gumbel": GumbelNoise(row_keys(0, "agreement", index), tokens),
        "inverse_cdf": UniformNoise(uniforms(0, "agreement", index, tokens)),
    }
    settings = Sampling(max_new_tokens=tokens)
    for name, noise in noises.items():
        responses = {}
        for size in sizes:
            inputs = DecodeRows(prompts=prompts, noise=noise)
            found = decode(model, tokenizer, inputs, settings, batch_size=size, context_limit=2048)
            responses[size] = [one.ids.tolist() for one in found]
        first = responses[sizes[0]]
        for size in sizes[1:]:
            shares = [share_before_difference(*pair) for pair in zip(first, responses[size], strict=True)]
            equal = sum(share == 1 for share in shares)
            print(
                f"{name}: batches of {size} and {sizes[0]}: "
                f"{sum(shares) / rows:.3f} up to the first difference, {equal} of {rows} responses equal"
            )


def share_before_difference(first: list[int], second: list[int]) -> float:
    """The part of the longer response before the first token that differs."""
    longest = max(len(first), len(second), 1)
    same = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return (min(len(first), len(second)) if same is None else same) / longest if first != second else 1.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 7, 64])
    given = parser.parse_args()
    measure(given.model, given.rows, given.tokens, getattr(torch, given.dtype), given.sizes)

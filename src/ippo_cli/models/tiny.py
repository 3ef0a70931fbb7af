"""The embedded model: a small transformer and a character tokenizer, warmed up on reference answers, cached."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ippo_cli.config.schema import TinyActorConfig

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CONTEXT = 256
Progress = Callable[[int, int, float], None]  # step, steps, loss


def character_tokenizer(characters: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per character; what is not listed becomes `<unk>`."""
    vocabulary = {token: number for number, token in enumerate([PAD, EOS, UNKNOWN, *sorted(set(characters))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # a line's end is a character as well
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def tokenizer_of(pairs: Sequence[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """The tokenizer of a model that is warmed up on these prompts and answers."""
    return character_tokenizer([character for pair in pairs for text in pair for character in text])


def make_tiny_actor(
    config: TinyActorConfig, pairs: Sequence[tuple[str, str]], seed: int, cache: Path, progress: Progress
) -> Path:
    """The folder of a model with these settings, made now or taken from the cache.

    `pairs` are prompts with their reference answers: they give the alphabet and, shuffled by `seed`, the supervised
    batches. The folder appears whole or not at all.
    """
    settings = {
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "steps": config.warm_start_steps,
        "batch": config.warm_start_batch_size,
        "learning_rate": config.warm_start_learning_rate,
        "seed": seed,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "version": 3,
        "pairs": hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest(),
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / f"tiny-{key}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".tiny-{key}-", dir=cache))
    try:
        tokenizer = tokenizer_of(pairs)
        lm = _random_model(config, tokenizer, seed)
        warm_start(lm, tokenizer, pairs, config, seed, progress)
        lm.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "warm_start.json").write_text(json.dumps(settings, indent=2) + "\n")
        if not folder.is_dir():  # another run may have made the same model meanwhile
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def warm_start(
    lm: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[tuple[str, str]],
    config: TinyActorConfig,
    seed: int,
    progress: Progress,
) -> None:
    """A few supervised steps: cross-entropy of the reference answers, end-of-sequence included.

    Every distinct answer is drawn equally often. Drawn as often as they occur, rare answers are left so improbable
    that a policy gradient soon gives them up.
    """
    if not config.warm_start_steps:
        return
    optimizer = torch.optim.AdamW(lm.parameters(), lr=config.warm_start_learning_rate, weight_decay=0.0)
    picks = torch.Generator().manual_seed(seed)
    occurrences = Counter(answer for _, answer in pairs)
    weights = torch.tensor([1.0 / occurrences[answer] for _, answer in pairs], dtype=torch.float64)
    for step in range(config.warm_start_steps):
        chosen = torch.multinomial(weights, config.warm_start_batch_size, replacement=True, generator=picks).tolist()
        ids, answers = _supervised_batch(tokenizer, [pairs[row] for row in chosen])
        logits = lm(input_ids=ids).logits[:, :-1]
        loss = cross_entropy(logits[answers[:, 1:]], ids[:, 1:][answers[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step + 1, config.warm_start_steps, loss.item())


def _supervised_batch(
    tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `[B, L]`, right-padded, and where the answers stand in them (the token that ends them included)."""
    assert tokenizer.eos_token_id is not None
    prompts = tokenizer([prompt for prompt, _ in pairs]).input_ids
    answers = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([answer for _, answer in pairs]).input_ids]
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    keep = torch.zeros(len(pairs), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        keep[row, len(prompt) : len(prompt) + len(answer)] = True
    return ids, keep


def tiny_config(config: TinyActorConfig, vocabulary: int) -> LlamaConfig:
    """The transformer's shape."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=config.hidden_size,
        intermediate_size=4 * config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        tie_word_embeddings=False,
    )


def _random_model(config: TinyActorConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    shape = tiny_config(config, len(tokenizer))
    shape.update({"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(shape)

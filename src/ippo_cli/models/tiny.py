"""Tiny models: a small transformer with a character or byte tokenizer, warm-started on lessons, cached."""

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

from ippo_cli.config.schema import Alphabet, TinyActorConfig
from ippo_cli.types import Lesson

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CONTEXT_LENGTH = 4096  # positions are computed, so a longer context costs nothing
LESSON_TOKENS = 256  # a longer lesson is cut to its whole turns within this length, but keeps its first turn
Progress = Callable[[int, int, float], None]  # step, steps, loss


def character_tokenizer(characters: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per character; unlisted characters become `<unk>`."""
    vocabulary = {token: number for number, token in enumerate([PAD, EOS, UNKNOWN, *sorted(set(characters))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # newlines are characters as well
    raw.decoder = decoders.Fuse()
    return _fast_tokenizer(raw)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte: no unknown tokens, and decoding is lossless.

    Names of special tokens are ordinary characters in a text, so that writing `<eos>` does not end a turn.
    """
    bytes_as_characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([PAD, EOS, UNKNOWN, *bytes_as_characters])}
    raw = Tokenizer(models.BPE(vocabulary, []))  # no merges
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return _fast_tokenizer(raw, split_special_tokens=True)


def _fast_tokenizer(raw: Tokenizer, **settings: bool) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        **settings,
    )


def make_lesson_tokenizer(alphabet: Alphabet, lessons: Sequence[Lesson]) -> PreTrainedTokenizerFast:
    """The tokenizer of a model with these warm-start lessons."""
    if alphabet is Alphabet.printable:
        return byte_tokenizer()
    return character_tokenizer(
        [character for lesson in lessons for turn in lesson for text in turn for character in text]
    )


def make_tiny_actor(
    config: TinyActorConfig,
    lessons: Sequence[Lesson],
    seed: int,
    cache: Path,
    progress: Progress,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Path:
    """The folder of a model with these settings, created or from the cache.

    The lessons, shuffled by `seed`, give the supervised batches, and without a `tokenizer` the characters of
    `alphabet=auto`; without lessons the weights are random. The folder is created atomically.
    """
    own = make_lesson_tokenizer(config.alphabet, lessons)
    tokenizer = tokenizer or own
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
        "version": 4,
        "alphabet": config.alphabet.value,
        "lessons": hashlib.sha256(json.dumps(lessons).encode()).hexdigest(),
    }
    if tokenizer.get_vocab() != own.get_vocab():
        settings["vocabulary"] = sorted(tokenizer.get_vocab())
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / f"tiny-{key}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".tiny-{key}-", dir=cache))
    try:
        lm = _random_model(config, tokenizer, seed)
        warm_start(lm, tokenizer, lessons, config, seed, progress)
        lm.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "warm_start.json").write_text(json.dumps(settings, indent=2) + "\n")
        if not folder.is_dir():  # another run may have created the same model meanwhile
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def warm_start(
    lm: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    lessons: Sequence[Lesson],
    config: TinyActorConfig,
    seed: int,
    progress: Progress,
) -> None:
    """A few supervised steps: cross-entropy of the lessons' answers, end tokens included.

    Distinct answer sequences are sampled equally often. Sampled by frequency, rare answers would be so improbable that
    a policy gradient soon drops them.
    """
    if not config.warm_start_steps or not lessons:
        return
    optimizer = torch.optim.AdamW(lm.parameters(), lr=config.warm_start_learning_rate, weight_decay=0.0)
    picks = torch.Generator().manual_seed(seed)
    answers = [tuple(answer for _, answer in lesson) for lesson in lessons]
    occurrences = Counter(answers)
    weights = torch.tensor([1.0 / occurrences[answer] for answer in answers], dtype=torch.float64)
    for step in range(config.warm_start_steps):
        chosen = torch.multinomial(weights, config.warm_start_batch_size, replacement=True, generator=picks).tolist()
        ids, answered = supervised_batch(tokenizer, [lessons[row] for row in chosen])
        logits = lm(input_ids=ids).logits[:, :-1]
        loss = cross_entropy(logits[answered[:, 1:]], ids[:, 1:][answered[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step + 1, config.warm_start_steps, loss.item())


def supervised_batch(
    tokenizer: PreTrainedTokenizerFast, lessons: Sequence[Lesson]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `[B, L]`, right-padded, and the mask of the answers (end tokens included)."""
    rows = [_encode_lesson(tokenizer, lesson) for lesson in lessons]
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    keep = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (tokens, answered) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        keep[row, : len(tokens)] = torch.tensor(answered)
    return ids, keep


def _encode_lesson(tokenizer: PreTrainedTokenizerFast, lesson: Lesson) -> tuple[list[int], list[bool]]:
    """Encode a lesson as the policy reads it: observation, answer, end token, and so on; with a mask of the answers."""
    assert tokenizer.eos_token_id is not None
    texts = [text for turn in lesson for text in turn]
    pieces = tokenizer(texts).input_ids
    tokens: list[int] = []
    is_answer: list[bool] = []
    for observation, answer in zip(pieces[::2], pieces[1::2], strict=True):
        if tokens and len(tokens) + len(observation) + len(answer) + 1 > LESSON_TOKENS:
            break
        tokens += [*observation, *answer, tokenizer.eos_token_id]
        is_answer += [False] * len(observation) + [True] * (len(answer) + 1)
    return tokens, is_answer


def tiny_config(config: TinyActorConfig, vocabulary: int) -> LlamaConfig:
    """The transformer's configuration."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=config.hidden_size,
        intermediate_size=4 * config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=None,
        tie_word_embeddings=False,
    )


def _random_model(config: TinyActorConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    shape = tiny_config(config, len(tokenizer))
    shape.update({"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(shape)

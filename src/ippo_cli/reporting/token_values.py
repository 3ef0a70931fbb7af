"""Values of sampled tokens for `samples/*.jsonl`: log-probabilities, ratios, values, returns, advantages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ippo_cli.types import Episode, Rollout, Targets, Turn

VALUE_DIGITS = 4  # significant digits
MAX_CHARACTER_TOKENS = 4  # a character has at most 4 bytes, so at most 4 tokens
REPLACEMENT = "\ufffd"  # decoded from an incomplete character

TokenColumns = Mapping[str, Tensor]
"""Numbers of action tokens by key of `samples/*.jsonl`, `[b, R]` each, in the columns of a rollout; NaN: unknown."""

TurnTokens = dict[str, list[Any]]
"""One turn's tokens: lists of equal length by key."""


def token_columns(
    rollout: Rollout,
    targets: Targets,
    new_logprobs: Tensor,
    entropies: Tensor,
    valid: Tensor,
    *,
    has_reference: bool,
    has_values: bool,
) -> dict[str, Tensor]:
    """The numbers of an agent's action tokens.

    `new_logprobs` and `entropies` `[B, R]` are those of the updated policy. Targets are NaN in rows that are not
    `valid` `[B]`, which have no score.
    """
    columns = {"logprob": rollout.logprobs, "behavior_logprob": rollout.behavior_logprobs}
    if has_reference:
        columns["ref_logprob"] = targets.ref_logprobs
    columns |= {"entropy": entropies, "ratio": (new_logprobs - rollout.logprobs).exp()}
    if has_values:
        columns["value"] = targets.values
    known = {"return": targets.returns, "advantage": targets.advantages, "reward": targets.rewards}
    columns |= {name: numbers.where(valid[:, None], math.nan) for name, numbers in known.items()}
    columns["trained"] = targets.loss_mask & (targets.sample_counts > 0)[:, None]
    return columns


def tokens_by_turn(
    episodes: Sequence[Episode],
    agent: str,
    tokenizer: PreTrainedTokenizerBase,
    limit: int,
    turn_index: Tensor | None = None,
    columns: TokenColumns | None = None,
) -> list[list[TurnTokens]]:
    """The first `limit` tokens of each of an agent's turns, by episode.

    `turn_index` `[b, R]`: as `Rollout.turn`, the turn of each column. Turns without columns, of a frozen agent or of
    earlier weights, have only texts and log-probabilities.
    """
    rows: list[list[TurnTokens]] = []
    for row, episode in enumerate(episodes):
        is_trained = columns is not None and agent not in episode.partners
        rows.append([])
        for number, turn in enumerate(episode.turns_of_agent(agent)):
            numbers = sampled_logprobs(turn, limit)
            if is_trained:
                assert columns is not None
                assert turn_index is not None
                place = (turn_index[row] == number).nonzero()[:limit, 0]
                numbers = {name: column[row, place] for name, column in columns.items()}
            rows[-1].append(_format_turn(token_texts(tokenizer, turn.completion.ids[:limit].tolist()), numbers))
    return rows


def sampled_logprobs(turn: Turn, limit: int) -> TokenColumns:
    """The log-probabilities of a turn's first tokens when they were sampled, `[n]` each; no token is trained on."""
    logprobs = turn.completion.logprobs[:limit]
    return {
        "logprob": logprobs,
        "behavior_logprob": turn.completion.behavior_logprobs[:limit],
        "trained": logprobs.new_zeros(len(logprobs)),
    }


def _format_turn(texts: list[str], numbers: TokenColumns) -> TurnTokens:
    """The lists of one turn, without those that say nothing."""
    lists: TurnTokens = {"text": texts}
    for name, column in numbers.items():
        if name == "trained":
            lists[name] = column.int().tolist()
        else:
            lists[name] = [round_value(value) for value in column.tolist()]
    if lists["behavior_logprob"] == lists["logprob"]:
        del lists["behavior_logprob"]
    if all(lists["trained"]):
        del lists["trained"]
    return lists


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to the decoded response, special tokens included.

    A character of several tokens is the text of its last one; the others have none.
    """
    texts: list[str] = []
    start = emitted = 0  # tokenizers drop a space at the start, so the tokens of the last text are decoded as well
    for end in range(1, len(ids) + 1):
        text = _decode(tokenizer, ids[start:end])
        is_incomplete = text.endswith(REPLACEMENT) and end - emitted < MAX_CHARACTER_TOKENS and end < len(ids)
        if is_incomplete:
            texts.append("")
            continue
        texts.append(text[len(_decode(tokenizer, ids[start:emitted])) :])
        start, emitted = emitted, end
    return texts


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    if not ids:
        return ""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def round_value(value: float) -> float | None:
    """A number of a token with few digits, to limit the file size; None if it is not finite."""
    return float(f"{value:.{VALUE_DIGITS}g}") + 0.0 if math.isfinite(value) else None

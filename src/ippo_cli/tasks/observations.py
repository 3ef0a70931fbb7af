"""Checks of what environments return: texts that can be encoded, of bounded length, and finite numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ippo_cli.tasks.environment import Step
from ippo_cli.tasks.messages import MessagesText
from ippo_cli.tasks.model_call import ModelCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PART_CHARACTERS = 1 << 14
"""Texts are counted in parts of this size: tokenizing takes longer than in proportion to a text's length."""
MAX_REWARD = 1e15
"""Sums of larger rewards, and their squares, may not be finite in single precision."""
MAX_PARTS = 100
"""Numbers to log of a step: each name is a metric."""
CHARACTERS_PER_TOKEN = 8
"""Texts with fewer characters per token of the context are not counted: most of them fit."""


def check_text(text: str, source: str) -> str:
    """Return a text that can be encoded as UTF-8. Raises `ValueError` for one with an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{source} has an unpaired surrogate ({text[error.start : error.start + 1]!a} after {error.start} "
            "characters), which no tokenizer encodes"
        ) from error
    return text


def check_observations(observations: Mapping[str, str]) -> None:
    """Raise an exception for an observation that is not a text or cannot be encoded."""
    for agent, text in observations.items():
        if not isinstance(text, str):
            raise TypeError(f"the environment returned {text!r:.60} as the observation of {agent}; it must be a string")
        check_text(text, f"the observation of {agent}")


def check_step(step: Step) -> None:
    """Raise an exception for a step with unusable observations or rewards, or too many numbers to log."""
    check_observations(step.observations)
    for agent, reward in step.rewards.items():
        if not abs(float(reward)) <= MAX_REWARD:
            raise ValueError(
                f"the environment returned {float(reward)!r} as the reward of {agent}; it must be finite, and at most "
                f"{MAX_REWARD:g}"
            )
    if len(step.parts) > MAX_PARTS:
        raise ValueError(f"the environment returned {len(step.parts)} numbers to log; at most {MAX_PARTS} are logged")


def cut_observation(observation: str, tokenizer: PreTrainedTokenizerBase, limit: int) -> str:
    """The observation, or its beginning if that alone has far more tokens than `limit`.

    A prompt with the beginning is too long as well, and takes less time and memory: 20 MB of text take minutes and
    gigabytes.
    """
    # Templates may leave out responses, or parts of them.
    whole = "\n".join(_new_contents(observation)) if isinstance(observation, MessagesText) else str(observation)
    beginning = cut_text(whole, tokenizer, limit)
    if len(beginning) == len(whole):
        return observation
    return ModelCall([{"role": "user", "content": beginning}]) if isinstance(observation, ModelCall) else beginning


def cut_text(text: str, tokenizer: PreTrainedTokenizerBase, limit: int) -> str:
    """The text, or its beginning if that alone has far more tokens than `limit`."""
    if len(text) <= max(PART_CHARACTERS, CHARACTERS_PER_TOKEN * limit):
        return text
    count, most = 0, max_counted_tokens(limit)
    for begin in range(0, len(text), PART_CHARACTERS):
        end = begin + PART_CHARACTERS
        count += len(tokenizer(text[begin:end], add_special_tokens=False, verbose=False).input_ids)
        if count > most:
            return text[:end]
    return text


def max_counted_tokens(limit: int) -> int:
    """Longer texts may have been cut: twice the limit, because the borders of parts change numbers of tokens."""
    return max(2 * limit, PART_CHARACTERS)


def describe_num_tokens(tokens: int, limit: int) -> str:
    """A number of tokens; that of a text that may have been cut is at least as high."""
    most = max_counted_tokens(limit)
    return f"more than {most}" if tokens > most else str(tokens)


def describe_length(tokens: int, limit: int) -> str:
    """Why a call has no response. `limit`: exclusive limit on the tokens of its prompt."""
    if not tokens:
        return "the messages have no token"
    number = describe_num_tokens(tokens, limit)
    return f"the messages have {number} tokens, and the context has {limit - 1} before the response"


def _new_contents(messages: MessagesText) -> list[str]:
    return [message["content"] for message in messages.messages if message["role"] != "assistant"]

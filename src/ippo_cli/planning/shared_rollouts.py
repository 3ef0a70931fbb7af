"""The check that agents which share responses have one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.centralized import vocabularies_match
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config


def check_shared_tokens(config: Config, tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
    """Raise `ConfigError` if token ids of one agent's responses have another meaning for another agent."""
    if not config.team.share_rollouts:
        return
    (first, its), *others = tokenizers.items()
    for name, own in others:
        if not (vocabularies_match(its, own) and vocabularies_match(own, its)):
            difference = "another vocabulary"
        elif its.eos_token_id != own.eos_token_id:
            difference = "another end-of-sequence token"
        elif its.chat_template != own.chat_template:
            difference = "another chat template"
        else:
            continue
        raise ConfigError(
            "team.share_rollouts=true",
            f"trains {name} on the tokens of {first}, and {name}'s tokenizer has {difference}",
            "use models of one family, of any size, or one actor.tokenizer",
        )

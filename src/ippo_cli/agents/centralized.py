"""Layouts of centralised critics: input as tokens or text, vocabulary, and context length."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from ippo_cli.agents.critic_view import CriticLayout
from ippo_cli.agents.initial import embedding_count
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import CentralizedCriticConfig, Config, ContextMode, Credit, TurnValue, ValueUnit
from ippo_cli.config.teams import agents_by_critic
from ippo_cli.config.text import join_names
from ippo_cli.models.actor import remove_loading_settings

BY_TURN = {"credit": Credit.turn, "turn_value": TurnValue.first, "value_unit": ValueUnit.turn}
"""Settings of `algorithm` required for critics that read text: they have one value per turn."""


def build_critic_layouts(
    config: Config,
    tokenizers: Mapping[str, PreTrainedTokenizerBase],
    contexts: Mapping[str, int],
    critic_contexts: Mapping[str, int],
) -> dict[str, CriticLayout]:
    """The row layout of each centralised critic, by the critic's name; empty for other critics.

    `tokenizers`, `contexts`: of each agent; `critic_contexts`: by the critic's name. Raises `ConfigError` if agents
    have different vocabularies, so that critics must read text, and values are not by turn.
    """
    if not config.critic.reads_team:
        return {}
    readers = {
        name: _load_critic_tokenizer(config, names, tokenizers) for name, names in agents_by_critic(config).items()
    }
    by_text = any(
        not vocabularies_match(reader, tokenizer) for reader in readers.values() for tokenizer in tokenizers.values()
    )
    if by_text:
        _check_values_by_turn(config, tokenizers)
    return {
        name: CriticLayout(
            agents=tuple(config.task.agents),
            tokenizer=readers[name],
            reads_text=by_text,
            is_last_only=config.rollout.context is ContextMode.last_only,
            context=critic_contexts[name],
            max_new_tokens={name: agent.rollout.max_new_tokens for name, agent in config.task.agents.items()},
            contexts=dict(contexts),
        )
        for name in readers
    }


def critic_context(config: Config, critic: CentralizedCriticConfig, model: PreTrainedConfig) -> int:
    """Context length of a critic in tokens. Raises `ConfigError` if a single response does not fit."""
    made_for = getattr(model, "max_position_embeddings", None) or 1 << 30
    most = max(agent.rollout.max_new_tokens for agent in config.task.agents.values())
    if made_for <= most or (critic.context_limit or 0) > made_for:
        raise ConfigError(
            f"critic.context_limit={critic.context_limit or 'null'} rollout.max_new_tokens={most}",
            f"do not fit the critic model's context length of {made_for} tokens",
            "lower them, or use another critic.model",
        )
    return min(made_for, critic.context_limit or made_for)


def _load_critic_tokenizer(
    config: Config, names: tuple[str, ...], tokenizers: Mapping[str, PreTrainedTokenizerBase]
) -> PreTrainedTokenizerBase:
    """The tokenizer of a critic: that of its model, or else that of its first agent."""
    critic = config.task.agents[names[0]].critic
    key = "warm_start" if critic.warm_start is not None else "model"
    source = getattr(critic, key)
    if source is None:
        return tokenizers[names[0]]
    revision = critic.revision if key == "model" else None
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
        if len(tokenizer) <= len(tokenizer.added_tokens_decoder):  # created empty where files are missing
            raise FileNotFoundError("no vocabulary")
    except Exception as error:
        first, size = tokenizers[names[0]], embedding_count(source, revision)
        known = size is None or max(first.get_vocab().values()) < size
        if known and all(vocabularies_match(first, other) for other in tokenizers.values()):
            return first  # a critic's folder does not need a tokenizer
        raise ConfigError(
            f"critic.{key}={source}",
            "has no tokenizer, and needs one to read text of agents with different tokenizers"
            if known
            else f"has no tokenizer, and its embedding has {size} tokens, fewer than its agent's tokenizer",
            "save its model's tokenizer there",
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"critic.{key}={source}",
            "has a tokenizer without an end-of-sequence token, which must end each agent's text",
            "set eos_token in its tokenizer_config.json",
        )
    remove_loading_settings(tokenizer)
    return tokenizer


def vocabularies_match(reader: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether the other's token ids mean the same to the reader. Names of special tokens may differ within a family."""
    own, its = reader.get_vocab(), other.get_vocab()
    if own == its:
        return True
    added = {*reader.get_added_vocab(), *other.get_added_vocab()}  # pyright: ignore[reportCallIssue, reportOptionalCall]
    plain = [{token: number for token, number in vocabulary.items() if token not in added} for vocabulary in (own, its)]
    return plain[0] == plain[1] and max(its.values()) <= max(own.values())


def _check_values_by_turn(config: Config, tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
    if all(getattr(config.algorithm, key) is value for key, value in BY_TURN.items()):
        return
    agents_differ = len({frozenset(tokenizer.get_vocab().items()) for tokenizer in tokenizers.values()}) > 1
    owners = f"those of {join_names(list(tokenizers))}" if agents_differ else "that of critic.model and the agents'"
    required = " ".join(f"algorithm.{key}={value.value}" for key, value in BY_TURN.items())
    raise ConfigError(
        "critic=centralized",
        f"reads text where vocabularies differ, as {owners} do, and then has one value per turn, not per token",
        f"set {required}, or use models of one family",
    )

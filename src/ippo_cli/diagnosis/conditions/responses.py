"""Conditions of responses: truncation, overflowing contexts, silence, stop tokens, and another model's format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ippo_cli.config.schema import (
    ActorKind,
    Config,
    ContextMode,
    EnvironmentTaskConfig,
    GridConfig,
    JsonlConfig,
    LettersConfig,
    ProgramConfig,
)
from ippo_cli.config.text import join_names
from ippo_cli.diagnosis.finding import Certainty, Evidence, Finding, NotChecked, Observations, Outcome, metric_evidence
from ippo_cli.diagnosis.series import (
    MIN_ROWS,
    column_mean,
    has_gained,
    last_rows,
    metric_value,
    trained_agents,
)

# Tasks with responses of exactly the limit's length, or with episodes that end at the environment's limit.
FIXED_LENGTHS = (LettersConfig, GridConfig, EnvironmentTaskConfig, ProgramConfig)
NEARLY_ALL = 0.99  # a fraction that counts as all
MOST = 0.9  # a fraction of truncated responses that hides the score of whole ones
SOME, MANY = 0.05, 0.5  # thresholds for the fractions of overflowed episodes and of truncated turns
FIRST_ROWS = 3  # iterations with many truncated turns
MIN_RESPONSES = 8  # sampled responses of an agent, at least, to count markers in
SAMPLES_ADVICE = "set tracker.samples_every and tracker.samples"
MARKED_FRACTION = 0.25  # fraction of responses with a marker of a conversation
# Control tokens of chat templates, and names of roles at the start of a line: they end a turn or begin one.
TURN_MARKERS = re.compile(
    r"<\|(?:im_start|im_end|user|assistant|system|end|eot_id|start_header_id|end_header_id|endoftext|begin_of_text)\|>"
    r"|<(?:start|end)_of_turn>|\[/?INST\]|<<SYS>>|</s>|<s>"
    r"|^\s*(?:#+\s*)?(?:User|Human|Assistant|System|Instruction|Response|Question|Answer)\s*:",
    re.MULTILINE,
)

# Tokens with which chat models end a turn.
END_TOKENS = re.compile(
    r"<\|(?:im_end|end|eot|eot_id|eom_id|endoftext|end_of_text|end_of_turn|return)\|>|<end_of_turn>|</s>|<eos>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>"
)


def find_truncation(observations: Observations) -> Outcome:
    """Every response of an agent is cut at the limit."""
    config, rows = observations.config, observations.rows
    if isinstance(config.task, FIXED_LENGTHS):
        return None

    def is_always_truncated(name: str) -> bool:
        several_turns = f"{name}/rollout/cut_fraction" in rows[-1]  # their rows are also truncated at other limits
        return not several_turns and metric_value(rows[-1], f"{name}/rollout/truncated_fraction") >= NEARLY_ALL

    cut = [name for name in config.task.agents if is_always_truncated(name)]
    if not cut:
        return None

    def is_cut_before_limit(name: str) -> bool:
        limit = config.task.agents[name].rollout.max_new_tokens
        return rows[-1].get(f"{name}/rollout/response_length", limit) < NEARLY_ALL * limit

    limit = f"rollout.max_new_tokens={_format_limits(config, cut)}"
    evidence = tuple(metric_evidence(rows, f"{name}/rollout/truncated_fraction") for name in cut)
    if all(map(is_cut_before_limit, cut)):
        return Finding(
            agents=tuple(cut),
            text=f"every response of {join_names(cut)} was truncated at a full context, before {limit}",
            advice="shorten prompts, or increase rollout.context_limit",
            evidence=evidence,
            overrides=("rollout.context_limit=null",),
            certainty=Certainty.certain,
        )
    longest = max(config.task.agents[name].rollout.max_new_tokens for name in cut)
    return Finding(
        agents=tuple(cut),
        text=f"every response of {join_names(cut)} was truncated at {limit}",
        advice="increase the limit, or ask for shorter responses",
        evidence=evidence,
        overrides=(f"rollout.max_new_tokens={4 * longest}", "rollout.stop_strings=['\\n']"),
        certainty=Certainty.certain,
    )


def find_frequent_truncation(observations: Observations) -> Outcome:
    """Nearly all responses of the last iterations are cut at the limit, and the score does not rise."""
    certain = find_truncation(observations)
    rows, config = observations.rows, observations.config
    if certain is not None or len(rows) < MIN_ROWS or isinstance(config.task, FIXED_LENGTHS):
        return certain
    key = "rollout/truncated_fraction"
    names = [
        name
        for name in trained_agents(config)
        if f"{name}/rollout/cut_fraction" not in rows[-1]
        and column_mean(last_rows(rows), f"{name}/{key}") >= MOST
        and not has_gained(observations, name)
    ]
    if not names:
        return None
    share = column_mean(last_rows(rows), f"{names[0]}/{key}")
    longest = max(config.task.agents[name].rollout.max_new_tokens for name in names)
    return Finding(
        agents=tuple(names),
        text=f"{share:.0%} of the responses of {join_names(names)} were truncated at "
        f"rollout.max_new_tokens={_format_limits(config, names)}, and the score does not rise",
        advice="increase the limit, or ask for shorter responses",
        evidence=tuple(metric_evidence(rows, f"{name}/{key}") for name in names),
        overrides=(f"rollout.max_new_tokens={4 * longest}", "rollout.stop_strings=['\\n']"),
    )


def find_context_overflow(observations: Observations) -> Outcome:
    """Later turns do not fit into the context."""
    config, row = observations.config, observations.rows[-1]
    shares = {name: row.get(f"{name}/rollout/overflow_fraction", 0.0) for name in config.task.agents}
    names = [name for name, share in shares.items() if share > SOME]
    if not names:
        return None
    is_last_only = config.rollout.context is ContextMode.last_only
    return Finding(
        agents=tuple(names),
        text=f"{max(shares.values()):.0%} of episodes were truncated: a turn did not fit into the context of "
        f"{join_names(names)}",
        advice="increase rollout.max_prompt_tokens"
        if is_last_only
        else "lower rollout.max_new_tokens or the number of turns",
        evidence=tuple(metric_evidence(observations.rows, f"{name}/rollout/overflow_fraction") for name in names),
        overrides=(f"rollout.max_prompt_tokens={2 * config.rollout.max_prompt_tokens}",)
        if is_last_only
        else (f"rollout.max_new_tokens={max(config.rollout.max_new_tokens // 2, 1)}", "rollout.context=last_only"),
        certainty=Certainty.certain,
    )


def find_cut_turns(observations: Observations) -> Outcome:
    """Most turns of an episode with several turns are truncated."""
    config, last = observations.config, observations.rows[-FIRST_ROWS:]
    if len(last) < FIRST_ROWS:
        return None
    shares = {
        name: min(_value_or_zero(row.get(f"{name}/rollout/cut_fraction")) for row in last)
        for name in config.task.agents
    }
    names = [name for name, share in shares.items() if share > MANY]
    if not names:
        return None
    longest = max(config.task.agents[name].rollout.max_new_tokens for name in names)
    return Finding(
        agents=tuple(names),
        text=f"{max(shares[name] for name in names):.0%} of the turns of {join_names(names)} are truncated at "
        f"rollout.max_new_tokens={_format_limits(config, names)}",
        advice="increase the limit, or ask for shorter responses",
        evidence=tuple(metric_evidence(observations.rows, f"{name}/rollout/cut_fraction") for name in names),
        overrides=(f"rollout.max_new_tokens={2 * longest}",),
        certainty=Certainty.certain,
    )


def find_silence(observations: Observations) -> Outcome:
    """An agent generates no token in a whole buffer."""
    row = observations.rows[-1]
    names = [name for name in observations.config.task.agents if row.get(f"{name}/rollout/response_length") == 0]
    if not names:
        return None
    return Finding(
        agents=tuple(names),
        text=f"{join_names(names)} generated no tokens in a whole buffer and does not learn",
        advice="check samples/, and when the task calls it",
        evidence=tuple(metric_evidence(observations.rows, f"{name}/rollout/response_length") for name in names),
        overrides=("rollout.min_new_tokens=1",),
        certainty=Certainty.certain,
    )


def find_missing_stop_token(observations: Observations) -> Outcome:
    """Responses go on after a token that ends a turn of the model, because it is no stop token."""
    tokens, agents = _sampled_tokens(observations.episodes), observations.config.task.agents
    loaded = [name for name in trained_agents(observations.config) if agents[name].actor.model is not None]
    counts = {name: _count_passed_ends(tokens.get(name, [])) for name in loaded}
    names = [
        name
        for name, ends in counts.items()
        if len(tokens.get(name, [])) >= MIN_RESPONSES and ends.total() >= MARKED_FRACTION * len(tokens[name])
    ]
    if not names:
        known = all(len(tokens.get(name, [])) >= MIN_RESPONSES for name in loaded)
        return (
            None if known else NotChecked(f"fewer than {MIN_RESPONSES} sampled responses with tokens; {SAMPLES_ADVICE}")
        )
    [(token, count)] = counts[names[0]].most_common(1)
    return Finding(
        agents=tuple(names),
        text=f"responses of {join_names(names)} go on after {token}, which ends a turn of the model and is no stop "
        "token",
        advice="stop at it: name it as eos_token in tokenizer_config.json, or as a stop string",
        evidence=(
            Evidence(f"samples of {names[0]}", f"{count} of {len(tokens[names[0]])} contain {token} before their end"),
            *(metric_evidence(observations.rows, f"{name}/rollout/truncated_fraction") for name in names),
        ),
        overrides=(f"rollout.stop_strings=['{token}']",),
    )


def _sampled_tokens(episodes: Sequence[Mapping[str, Any]]) -> dict[str, list[list[str]]]:
    """Texts of the tokens of sampled responses, special tokens included, without outer spaces, by agent."""
    found: dict[str, list[list[str]]] = {}
    for turn in (turn for episode in episodes for turn in episode.get("turns") or ()):
        if texts := (turn.get("tokens") or {}).get("text"):
            found.setdefault(str(turn.get("agent")), []).append([str(text).strip() for text in texts])
    return found


def _count_passed_ends(responses: Sequence[Sequence[str]]) -> Counter[str]:
    """The first token that ends a turn, of each response that has one before its last token.

    In Harmony's format (GPT-OSS) `<|end|>` ends a message, of which a response has several.
    """
    single = (texts for texts in responses if "<|channel|>" not in texts)
    firsts = (next(filter(END_TOKENS.fullmatch, texts[:-1]), None) for texts in single)
    return Counter(token for token in firsts if token is not None)


def find_template_mismatch(observations: Observations) -> Outcome:
    """The prompt does not have the format of the model: responses do not end, or continue with further turns."""
    config = observations.config
    if not isinstance(config.task, JsonlConfig):
        return None
    texts = {name: own for name, own in _sampled_texts(observations.episodes).items() if len(own) >= MIN_RESPONSES}
    agents = trained_agents(config)
    continuing = [name for name in agents if name in texts and _marked_fraction(texts[name]) >= MARKED_FRACTION]
    if continuing:
        return _continued_conversation(observations, continuing, texts)
    unformatted = [name for name in agents if _ignores_template(observations, name)]
    if unformatted:
        return _unused_template(observations, unformatted)
    endless = [name for name in agents if _is_endless_base_model(observations, name)]
    if endless:
        return _base_model(observations, endless)
    if texts or observations.chat_templates:
        return None
    return NotChecked(f"fewer than {MIN_RESPONSES} sampled responses; {SAMPLES_ADVICE}")


def _continued_conversation(
    observations: Observations, names: Sequence[str], texts: Mapping[str, Sequence[str]]
) -> Finding:
    template = observations.config.task.chat_template  # type: ignore[attr-defined]  # of JsonlConfig
    shares = {name: _marked_fraction(texts[name]) for name in names}
    markers = {name: _marked_texts(texts[name])[0] for name in names}
    return Finding(
        agents=tuple(names),
        text=f"{max(shares.values()):.0%} of the sampled responses of {join_names(names)} contain markers of further "
        "turns: the prompt does not have the format of the model's chat template",
        advice="let the tokenizer format the prompt, and remove roles and control tokens from the template",
        evidence=(
            Evidence("task.chat_template", str(template).lower()),
            *(
                Evidence(f"samples of {name}", f"{shares[name]:.0%} with a marker, such as {markers[name]!r}")
                for name in names
            ),
            *(metric_evidence(observations.rows, f"{name}/rollout/truncated_fraction") for name in names),
        ),
        overrides=(
            "task.chat_template=false" if template is True else "task.chat_template=true",
            "rollout.stop_strings=['" + markers[names[0]].strip().replace("'", "") + "']",
            "actor.model=AN_INSTRUCTION_TUNED_MODEL",
        ),
    )


def _ignores_template(observations: Observations, name: str) -> bool:
    """Whether the tokenizer has a chat template that is not applied, and most responses do not end."""
    is_off = observations.config.task.chat_template is False  # type: ignore[attr-defined]  # of JsonlConfig
    truncated = column_mean(observations.rows, f"{name}/rollout/truncated_fraction")
    return is_off and observations.chat_templates.get(name, False) and truncated > MANY


def _unused_template(observations: Observations, names: Sequence[str]) -> Finding:
    return Finding(
        agents=tuple(names),
        text=f"most responses of {join_names(names)} do not end, and task.chat_template=false does not apply the chat "
        "template of the model",
        advice="let the tokenizer format the prompt, so that the model ends its answer with the template's stop token",
        evidence=(
            Evidence("task.chat_template", "false"),
            Evidence("chat template of actor.model", "present"),
            *(metric_evidence(observations.rows, f"{name}/rollout/truncated_fraction") for name in names),
            *(metric_evidence(observations.rows, f"{name}/score/mean") for name in names),
        ),
        overrides=("task.chat_template=true", "rollout.stop_strings=['\\n']"),
    )


def _is_endless_base_model(observations: Observations, name: str) -> bool:
    """Whether the tokenizer has no chat template, no stop string is set, and no response ends."""
    agent = observations.config.task.agents[name]
    is_loaded = agent.actor.kind in (ActorKind.full, ActorKind.lora) and not agent.rollout.stop_strings
    truncated = column_mean(observations.rows, f"{name}/rollout/truncated_fraction")
    return is_loaded and observations.chat_templates.get(name) is False and truncated >= NEARLY_ALL


def _base_model(observations: Observations, names: Sequence[str]) -> Finding:
    return Finding(
        agents=tuple(names),
        text=f"no response of {join_names(names)} ends: the tokenizer has no chat template, as of a base model, and "
        "rollout.stop_strings is empty",
        advice="use an instruction-tuned model, or a stop string that ends an answer",
        evidence=(
            Evidence("chat template of actor.model", "absent"),
            *(metric_evidence(observations.rows, f"{name}/rollout/truncated_fraction") for name in names),
        ),
        overrides=("actor.model=AN_INSTRUCTION_TUNED_MODEL", "rollout.stop_strings=['\\n']"),
        certainty=Certainty.possible,
    )


def _sampled_texts(episodes: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Sampled responses by agent."""
    found: dict[str, list[str]] = {}
    for episode in episodes:
        for turn in episode.get("turns") or ():
            found.setdefault(str(turn.get("agent")), []).append(str(turn.get("response") or ""))
    return found


def _marked_texts(texts: Sequence[str]) -> list[str]:
    """The first marker of every response that has one after its first character."""
    found = [TURN_MARKERS.search(text, 1) for text in texts]
    return [match[0] for match in found if match is not None]


def _marked_fraction(texts: Sequence[str]) -> float:
    return len(_marked_texts(texts)) / len(texts)


def _format_limits(config: Config, names: Sequence[str]) -> str:
    """The distinct response limits of some agents."""
    return "/".join(map(str, dict.fromkeys(config.task.agents[name].rollout.max_new_tokens for name in names)))


def _value_or_zero(share: float | None) -> float:
    """The value, or 0 for None and NaN."""
    return 0.0 if share is None or share != share else share

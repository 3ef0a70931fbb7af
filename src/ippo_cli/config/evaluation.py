"""Which keys of a run can have an effect on an evaluation: all others are refused, since its result would name them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ippo_cli.config.errors import ConfigError

# Groups of which another option may be chosen, and keys; `*` stands for an agent's name.
OF_BOTH = (
    "task",
    "reward",
    "task.primary_metric",
    "task.eval",
    "task.eval_split",
    "task.eval_size",
    "task.data_config",
    "task.chat_template",
    "task.alphabet",
    "task.length",
    "task.size",
    "task.signals",
    "task.strides",
    "task.num_rungs",
    "task.protocol",
    "task.num_turns",
    "task.num_workers",
    "task.env_id",
    "task.environment",
    "task.environment_args",
    "task.max_turns",
    "task.observation",
    "task.invalid_reward",
    "task.illegal_move",
    "task.opponent",
    "task.seat",
    "task.dataset",
    "task.dataset_args",
    "task.answer_tag",
    "task.agents.*.template",
    "task.agents.*.turn_template",
    "task.agents.*.system",
    "task.agents.*.answer",
    "actor.dtype",
    "task.agents.*.actor.dtype",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.top_k",
    "rollout.min_p",
    "rollout.repetition_penalty",
    "rollout.max_new_tokens",
    "rollout.min_new_tokens",
    "rollout.stop_strings",
    "rollout.decode_batch_size",
    "rollout.max_prompt_tokens",
    "rollout.context_limit",
    "rollout.history",
    "reward.team_weight",
    "reward.agent_weight",
    "reward.failure_budget",
    "reward.whole_batch",
    "reward.match",
    "reward.right",
    "reward.near",
    "reward.bare",
    "reward.function",
    "reward.step_cost",
    "evaluation.seed",
    "evaluation.greedy",
    "tracker.console",
    "tracker.samples",
    "launch.device",
    "launch.threads",
    "launch.timeout_s",
    "deterministic",
)
# Of a Hugging Face model; a run has these, and another value would be another run's.
OF_MODELS = ("seed", "output_dir", "actor.revision", "task.agents.*.actor.model", "task.agents.*.actor.revision")
SEARCH_PATH = "hydra.searchpath"
EXPERIMENT = "experiment"


def refuse_without_effect(overrides: Iterable[str], *, of_model: bool) -> None:
    """Raise `ConfigError` for the first override that can change nothing about an evaluation."""
    known = (*OF_BOTH, *OF_MODELS) if of_model else OF_BOTH
    for text in overrides:
        key = text.partition("=")[0].lstrip("+~")
        general = re.sub(r"^task\.agents\.\w+\.", "task.agents.*.", key)
        general = re.sub(r"^(task\.\w+_args)\..*", r"\1", general)  # keys of the user's choice
        if general in known or key == SEARCH_PATH or (of_model and key == EXPERIMENT):
            continue
        of = "a model's" if of_model else "a run's"
        raise ConfigError(text, f"can have no effect on {of} evaluation", f"those that can: {_listed(known)}")


def _listed(keys: Iterable[str]) -> str:
    """Keys with what they have in common written once: `rollout.{temperature,top_p}`."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        group, dot, leaf = key.rpartition(".")
        groups.setdefault(group + dot, []).append(leaf)
    return " ".join(
        " ".join(leaves) if not group else f"{group}{leaves[0] if len(leaves) == 1 else '{' + ','.join(leaves) + '}'}"
        for group, leaves in groups.items()
    )

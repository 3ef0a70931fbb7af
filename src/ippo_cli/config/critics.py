"""Rules of `critic`: categorical values and ensembles."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    CentralizedCriticConfig,
    Config,
    SeparateCriticConfig,
    TrainedCriticConfig,
    ValueUnit,
)
from ippo_cli.config.teams import agents_by_policy, ensemble_names

BIN_KEYS = ("value_min", "value_max", "bin_sigma")


def check_critics(config: Config) -> Iterator[ConfigError]:
    """One error per broken rule of each critic; agents with equal settings are reported once."""
    seen: list[TrainedCriticConfig] = []
    for agent in config.task.agents.values():
        critic = agent.critic
        if agent.frozen or not isinstance(critic, TrainedCriticConfig) or critic in seen:
            continue
        seen.append(critic)
        yield from _check_bins(config, critic)
        if isinstance(critic, SeparateCriticConfig):
            yield from _check_ensemble(config, critic)
    for holder, names in agents_by_policy(config).items():
        critic = config.task.agents[names[0]].critic
        if isinstance(critic, SeparateCriticConfig):
            for name in ensemble_names(holder, critic)[1:]:
                if name in config.task.agents or name in agents_by_policy(config):
                    yield ConfigError(
                        f"critic.ensemble={critic.ensemble}",
                        f"creates a critic named {name}, and an agent or a group has that name",
                        "rename the agent or the group",
                    )


def _check_ensemble(config: Config, critic: SeparateCriticConfig) -> Iterator[ConfigError]:
    setting = f"critic.ensemble={critic.ensemble}"
    prompts = config.rollout.buffer_size // config.rollout.num_generations
    if critic.ensemble == 1:
        for key in ("mask_agreement", "mask_entropy"):
            if (value := getattr(critic, key)) is not None:
                yield ConfigError(
                    f"critic.{key}={value:g}", f"has no effect: {setting} has no disagreement", "use null"
                )
        return
    if isinstance(critic, CentralizedCriticConfig):
        yield ConfigError(
            setting,
            "divides the prompts of one agent among its critics, and critic=centralized reads the rows of all agents",
            "use critic.ensemble=1, or critic=separate",
        )
    if prompts < critic.ensemble:
        yield ConfigError(
            setting,
            f"leaves a critic without data: rollout.buffer_size={config.rollout.buffer_size} has {prompts} prompts",
            "use a larger buffer or fewer critics",
        )
    if config.algorithm.value_clip_range is not None:
        yield ConfigError(
            f"algorithm.value_clip_range={config.algorithm.value_clip_range:g}",
            f"clips to the values of the rollout, and with {setting} these are means over critics",
            "set algorithm.value_clip_range=null",
        )
    if critic.mask_entropy is not None and not config.algorithm.entropy_coef:
        yield ConfigError(
            f"critic.mask_entropy={critic.mask_entropy:g}", "has no effect: algorithm.entropy_coef=0", "use null"
        )


def _check_bins(config: Config, critic: TrainedCriticConfig) -> Iterator[ConfigError]:
    if critic.value_bins is None:
        for key in BIN_KEYS:
            if (value := getattr(critic, key)) is not None:
                yield ConfigError(
                    f"critic.{key}={value:g}", "has no effect: critic.value_bins=null has no bins", "use null"
                )
        return
    setting = f"critic.value_bins={critic.value_bins}"
    low, high = critic.value_min, critic.value_max
    if critic.popart_beta is None and (low is None or high is None):
        yield ConfigError(
            setting,
            "needs the range of the returns",
            "set critic.value_min and critic.value_max, or critic.popart_beta=0.9 for bins of normalised returns",
        )
    elif low is not None and high is not None and low >= high:
        yield ConfigError(
            f"critic.value_min={low:g} critic.value_max={high:g}", "are not a range", "use a smaller value_min"
        )
    elif (low is not None and low >= 5.0 and high is None) or (high is not None and high <= -5.0 and low is None):
        yield ConfigError(
            f"critic.value_min={'null' if low is None else f'{low:g}'} "
            f"critic.value_max={'null' if high is None else f'{high:g}'}",
            "are not a range: null is -5 and 5 in units of normalised returns",
            "set both",
        )
    for key in ("value_clip_range", "huber_delta"):
        if (value := getattr(config.algorithm, key)) is not None:
            yield ConfigError(
                f"algorithm.{key}={value:g}",
                f"is of the squared error, and {setting} trains values by cross-entropy",
                f"set algorithm.{key}=null, or critic.value_bins=null",
            )
    if config.algorithm.value_unit is ValueUnit.turn:
        yield ConfigError(
            "algorithm.value_unit=turn",
            f"pools the values of a turn's tokens, and {setting} has a distribution for each token",
            "use value_unit=token, or critic.value_bins=null",
        )

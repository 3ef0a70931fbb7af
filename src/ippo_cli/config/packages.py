"""Optional packages that training needs and a plan does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.model_args import quantized_bits
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import (
    Config,
    Hub,
    MathRewardConfig,
    MlflowTrackerConfig,
    RemoteRewardConfig,
    TrackerConfig,
    TrackioTrackerConfig,
    VllmRolloutConfig,
    WandbTrackerConfig,
)
from ippo_cli.config.served_agents import local_agents


def remote_trackers(config: TrackerConfig) -> list[str]:
    """Packages of the tracking services of a run."""
    kinds = {"wandb": WandbTrackerConfig, "mlflow": MlflowTrackerConfig, "trackio": TrackioTrackerConfig}
    return [name for name, kind in kinds.items() if isinstance(config, kind)]


def check_tracker_packages(config: TrackerConfig) -> None:
    """Raise `ConfigError` if the package of a configured tracker is not installed."""
    for package in remote_trackers(config):
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # a folder of that name, such as wandb's output, is not a package
            raise ConfigError(
                f"tracker={config.kind.value}",
                f"needs the package {package}, which is not installed",
                f"run pip install 'ippo-cli[{package}]'",
            )


@dataclass(frozen=True, slots=True)
class OptionalPackage:
    """A package that a setting needs, and the extra that installs it."""

    setting: str
    module: str
    extra: str

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported; a folder of its name, such as wandb's output, is no package."""
        spec = find_spec(self.module)
        return spec is not None and spec.origin is not None

    def __str__(self) -> str:
        name = self.module.replace("_", "-")
        return f"{self.setting} needs {name} to train, which is not installed; pip install 'ippo-cli[{self.extra}]'"


def missing_packages(config: Config) -> list[OptionalPackage]:
    """Packages that training with this configuration needs and that are not installed."""
    return [package for package in dict.fromkeys(_find_packages(config)) if not package.is_installed]


def lacks_reward_package(config: Config) -> bool:
    """Whether the reward, or a part of a mix, cannot be built without a package that is not installed."""
    return any(not package.is_installed for package in _find_reward_packages(config))


def _find_reward_packages(config: Config) -> Iterator[OptionalPackage]:
    for where, own in rewards_with_prefixes(config):
        setting = f"{where}={own.reward.kind}" if where == "reward" else f"{where}.kind={own.reward.kind}"
        if isinstance(own.reward, MathRewardConfig):
            yield OptionalPackage(setting, "math_verify", "math")
        if isinstance(own.reward, RemoteRewardConfig):
            yield OptionalPackage(setting, "httpx2", "http")


def _find_packages(config: Config) -> Iterator[OptionalPackage]:
    rollout = config.rollout
    if isinstance(rollout, VllmRolloutConfig) and not rollout.vllm.url:
        yield OptionalPackage("rollout=vllm", "vllm", "vllm")
    yield from _find_reward_packages(config)
    for name in remote_trackers(config.tracker):
        yield OptionalPackage(f"tracker={name}", name, name)
    if config.hub is Hub.modelscope:
        yield OptionalPackage("hub=modelscope", "modelscope", "modelscope")
    for agent in local_agents(config).values():
        if (bits := quantized_bits(agent.actor)) is not None:
            yield OptionalPackage(f"actor.model_args.load_in_{bits}bit=true", "bitsandbytes", "quantization")

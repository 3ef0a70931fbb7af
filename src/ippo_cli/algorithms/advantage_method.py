"""Estimators of packages and files that take part in play, in the plan or in the checks of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ippo_cli.algorithms.estimator import Estimator
from ippo_cli.config.applicability import check_read_keys
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.needs import Need, Taker, check_need_names, find_lost_needs
from ippo_cli.config.schema import AlgorithmConfig, Config


class AdvantageMethod(Estimator):
    """An estimator that `algorithm.advantage` names, with what a run has to know of it. Every default adds nothing."""

    Keys: ClassVar[type[Any] | None] = None  # dataclass of the keys of `algorithm.advantage_args`
    METRICS: ClassVar[Mapping[str, str]] = {}  # meanings of its metrics by full name, such as `<agent>/name`
    needs: ClassVar[tuple[Need, ...]] = ()
    takes: ClassVar[Mapping[Need, str]] = {}  # what it takes away, and its effect
    reads: ClassVar[Mapping[str, str]] = {}  # keys of `READABLE_KEYS` that it needs, and values that would work

    def __init__(self, config: AlgorithmConfig, keys: Any) -> None:
        super().__init__(config)
        self.keys = keys  # an instance of `Keys`, or None without

    def check(self, config: Config) -> Iterator[ConfigError]:
        """Further combinations of keys that do not work."""
        yield from ()

    def build_method(self, config: Config, algorithm: Any) -> Any:
        """A `training.methods.method.Method` of the run; `algorithm`: its `training.targets.Algorithm`."""
        return None

    def build_plan(self, config: Config) -> Any:
        """A `planning.method_plan.MethodPlan` of the run."""
        return None


def check_advantage_method(config: Config, estimator: AdvantageMethod) -> None:
    """Check a configuration against what an estimator needs, takes away and reads. Raises `ConfigError`."""
    setting = f"algorithm.advantage={config.algorithm.advantage}"
    check_need_names(setting, [*estimator.needs, *estimator.takes])
    takers = [
        Taker((need,), setting, effect, "another algorithm.advantage") for need, effect in estimator.takes.items()
    ]
    errors = [
        *find_lost_needs(config, setting, estimator.needs, takers),
        *check_read_keys(config, estimator.reads),
        *estimator.check(config),
    ]
    if errors:
        raise combine_errors(errors)

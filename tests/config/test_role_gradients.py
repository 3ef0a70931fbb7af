"""Settings with which agents' gradients cannot be measured or weighted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError

Make = Callable[..., Any]
SHARED, MEASURED = "team=shared_policy", {"team.role_gradients_every": 1}
EQUAL = {"team.role_balance": "equal_norm"}
GRADNORM = {"team.role_balance": "gradnorm", "team.gradnorm_alpha": 1.5, "team.gradnorm_best_score": 1.0}
ALONE = {"team.groups": {"one": ["low"], "other": ["high"]}}


@pytest.mark.parametrize(
    ("options", "keys", "key", "wanted"),
    [
        ((), MEASURED, "team.role_gradients_every", "use team=shared_policy with several trained agents"),
        ((SHARED,), MEASURED | ALONE, "team.role_gradients_every", "each policy and critic is trained by one agent"),
        ((SHARED, "deepspeed=zero3"), MEASURED, "deepspeed.stage", "use deepspeed=zero0, zero1 or zero2"),
        ((SHARED,), MEASURED | {"deepspeed.sequence_parallel": 2}, "deepspeed.sequence_parallel", "divides"),
        ((SHARED,), MEASURED | {"deepspeed.tensor_parallel": 2}, "deepspeed.tensor_parallel", "divides"),
        ((SHARED,), MEASURED | {"algorithm.router_loss_coef": 0.1}, "algorithm.router_loss_coef", "not a sum over"),
        ((SHARED,), EQUAL, "team.role_gradients_every", "use team.role_gradients_every=1"),
        ((SHARED,), MEASURED | EQUAL | ALONE, "team.role_balance", "each policy is trained by one agent"),
        ((SHARED,), MEASURED | EQUAL | {"team.gradnorm_alpha": 1.5}, "team.gradnorm_alpha", "has no effect"),
        ((SHARED,), MEASURED | EQUAL | {"team.gradnorm_best_score": 1.0}, "team.gradnorm_best_score", "has no effect"),
        ((SHARED,), MEASURED | GRADNORM | {"team.gradnorm_alpha": None}, "team.gradnorm_alpha", "such as 1.5"),
        ((SHARED,), MEASURED | GRADNORM | {"team.gradnorm_best_score": None}, "team.gradnorm_best_score", "such as 1"),
        ((SHARED,), MEASURED | EQUAL | {"mode": "critic"}, "team.role_balance", "mode=critic does not train"),
    ],
)
def test_refused_settings(config: Make, options: tuple[str, ...], keys: dict[str, Any], key: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(config(options, **keys), 2)
    assert key in str(error.value)
    assert wanted in str(error.value)


def test_accepted_settings(config: Make) -> None:
    for keys in ({}, EQUAL, GRADNORM):
        check_config(config((SHARED,), **MEASURED, **keys), 1)
    critic = config(("algorithm=mappo",), **MEASURED, **{"critic.shared": True})
    check_config(critic, 1)

"""A loss of a user: equal to the built-in one, with keys and a state, and refused before a model is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch

from ippo_cli.algorithms.user_objectives import UserLoss, build_user_loss, try_loss
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.formulas import clipped_policy_loss

CODE = """
from dataclasses import dataclass

def clip(logprobs, old_logprobs, advantages, mask, *, width=0.2):
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - width, 1 + width)
    return -(ratio * advantages).minimum(clipped * advantages), {"clipped": (ratio != clipped).float()}

class Adaptive:
    @dataclass
    class Keys:
        beta: float = 1.0

    def __init__(self, keys):
        self.beta = keys.beta

    def __call__(self, logprobs, old_logprobs, advantages, mask):
        return self.beta * (logprobs - old_logprobs) ** 2 - logprobs * advantages

    def observe(self, metrics):
        self.beta *= 2 if metrics["approx_kl"] > 0.01 else 0.5

    def state_dict(self):
        return {"beta": self.beta}

    def load_state_dict(self, state):
        self.beta = state["beta"]

class Forgetful(Adaptive):
    load_state_dict = property()

class Counting(Adaptive):
    def __call__(self, *arguments):
        self.beta += 1
        return super().__call__(*arguments)

class Unwritable(Adaptive):
    def state_dict(self):
        return {"beta": {1, 2}}

def narrow(logprobs):
    return logprobs

def scalar(logprobs, old_logprobs, advantages, mask):
    return logprobs.mean()

def constant(logprobs, old_logprobs, advantages, mask):
    return old_logprobs * advantages

def infinite(logprobs, old_logprobs, advantages, mask):
    return logprobs / 0.0

def words(logprobs, old_logprobs, advantages, mask):
    return logprobs, "a statistic"

def broken(logprobs, old_logprobs, advantages, mask):
    raise ValueError("no")

async def later(logprobs, old_logprobs, advantages, mask):
    return logprobs
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path / "mine.py"


def algorithm(objective: str, **args: Any) -> AlgorithmConfig:
    return replace(load_config().algorithm, objective=objective, objective_args=args)


def test_loss_equals_the_clipped_one(code: Path) -> None:
    torch.manual_seed(0)
    new, old, advantages = torch.randn(3, 4, 5)
    mask = torch.rand(4, 5) > 0.3
    loss, statistics = UserLoss(algorithm(f"{code}:clip", width=0.3)).compute(new, old, advantages, mask)
    expected = clipped_policy_loss(new, old, advantages, clip_range_low=0.3, clip_range_high=0.3)
    assert torch.allclose(loss, torch.where(mask, expected, 0.0), atol=1e-6)
    assert torch.equal(statistics["objective/clipped"], (mask & (((new - old).exp() - 1).abs() > 0.3)).float())


def test_state_is_restored(code: Path) -> None:
    loss = UserLoss(algorithm(f"{code}:Adaptive", beta=3.0))
    loss.observe({"approx_kl": 1.0})
    again = UserLoss(algorithm(f"{code}:Adaptive"))
    again.load_state_dict(json.loads(json.dumps(loss.state_dict())))
    assert again.state_dict() == {"beta": 6.0}


def test_builtin_objectives_need_no_code() -> None:
    assert build_user_loss(load_config().algorithm) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "names no function"),
        ("narrow", r"cannot be called as function\(logprobs, old_logprobs, advantages, mask\)"),
        ("later", "is async"),
        ("scalar", r"returned a tensor of shape \[\] as the loss; return a tensor of shape \[B, R\] = \[2, 3\]"),
        ("constant", "returned a loss without a gradient; compute it from logprobs"),
        ("infinite", "returned a loss that is not finite"),
        ("words", "returned str as statistics; return a mapping"),
        ("broken", "raised .*ValueError: no"),
        ("Forgetful", "has one of state_dict and load_state_dict; write both, or neither"),
        ("Counting", r"changes its state in a call.*; change it in observe\(metrics\)"),
        ("Unwritable", "has a state that is not JSON"),
    ],
)
def test_wrong_losses_are_refused(name: str, message: str, code: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        try_loss(UserLoss(algorithm(f"{code}:{name}")))


@pytest.mark.parametrize(("name", "keys"), [("clip", "width"), ("Adaptive", "beta")])
def test_unknown_keys_are_refused(name: str, keys: str, code: Path) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm\.objective_args\.size=3 is not a key of .*; use one of {keys}"):
        UserLoss(algorithm(f"{code}:{name}", size=3))


def test_keys_of_the_configuration(code: Path) -> None:
    check_config(load_config(["algorithm=ppo", f"algorithm.objective={code}:clip"]), 1)
    with pytest.raises(ConfigError, match=r"objective_args=.* has no effect: only a loss of path.py:name has keys"):
        check_config(load_config(["algorithm=ppo", "+algorithm.objective_args={width:0.1}"]), 1)
    with pytest.raises(ConfigError, match=r"did you mean clip\? use one of on_policy clip mask cispo, or your own as"):
        check_config(load_config(["algorithm.objective=clop"]), 1)


def test_objective_of_an_installed_package(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code.parent / "some_package.py").write_text(CODE)
    monkeypatch.syspath_prepend(code.parent)
    point = EntryPoint("soft_clip", "some_package:clip", "ippo.objectives")

    def entry_points(**selection: Any) -> EntryPoints:
        return EntryPoints([point]).select(**selection)

    monkeypatch.setattr("ippo_cli.config.doors.entry_points", entry_points)
    config = load_config(["algorithm=ppo", "algorithm.objective=soft_clip", "+algorithm.objective_args={width:0.3}"])
    check_config(config, 1)
    try_loss(UserLoss(config.algorithm))
    with pytest.raises(ConfigError, match=r"objective=hard_clip is not known; .* use one of .* soft_clip, or your own"):
        check_config(load_config(["algorithm.objective=hard_clip"]), 1)

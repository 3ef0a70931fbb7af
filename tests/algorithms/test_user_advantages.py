"""Advantages from a function of a user: equal to the built-in ones, and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.algorithms.user_advantages import UserEstimator
from ippo_cli.compose.former_keys import convert_config
from ippo_cli.compose.load import load_config
from ippo_cli.compose.path_keys import is_path_value
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Advantage, AlgorithmConfig
from ippo_cli.training.methods.registry import build_estimator

MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
VALUES = torch.arange(16.0).reshape(4, 4) / 10 * MASK
CODE = """
import torch
from ippo_cli.formulas import gae

def leave_one_out(inputs, config):
    score = (inputs.rewards * inputs.mask).sum(dim=1)
    same = (inputs.group[:, None] == inputs.group) & inputs.valid
    others = (same.float() @ score - score) / (same.sum(dim=1) - 1).clamp(min=1)
    return (score - others)[:, None] * inputs.mask

def own_gae(inputs, config):
    return gae(inputs.rewards, inputs.values, inputs.mask, gamma=config.gamma, gae_lambda=config.gae_lambda)

def everywhere(inputs, config):
    return torch.ones_like(inputs.rewards)

def scores(inputs, config):
    return inputs.baseline

def infinite(inputs, config):
    return inputs.rewards / 0.0

def three(inputs, config):
    return 1, 2, 3

def broken(inputs, config):
    raise ValueError("no")

def one(inputs):
    return 0

async def later(inputs, config):
    return 0
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path / "mine.py"


def algorithm(**changes: Any) -> AlgorithmConfig:
    return replace(load_config().algorithm, **changes)


def inputs() -> AdvantageInputs:
    """Four rows, with two responses to each of two prompts."""
    return AdvantageInputs(
        rewards=torch.tensor([[0.0, 0, 0, 1], [4, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0]]),
        values=VALUES,
        mask=MASK,
        turn=torch.where(MASK, 0, -1),
        is_by_turn=False,
        group=torch.tensor([7, 3, 7, 3]),
        baseline=torch.zeros(4),
        valid=torch.ones(4, dtype=torch.bool),
    )


def estimate(code: Path, name: str, **changes: Any) -> AdvantageOutputs:
    config = algorithm(advantage=f"{code}:{name}", **changes)
    return build_estimator(config).estimate_rows(inputs())


def test_function_equals_leave_one_out(code: Path):
    found = estimate(code, "leave_one_out")
    expected = build_estimator(algorithm(advantage=Advantage.leave_one_out)).estimate_rows(inputs())
    assert torch.allclose(found.advantages, expected.advantages)
    assert torch.equal(found.usable, expected.usable)
    assert torch.allclose(found.returns, found.advantages + VALUES)


def test_function_equals_gae_with_its_returns(code: Path):
    found = estimate(code, "own_gae", gamma=0.9, gae_lambda=0.8)
    config = algorithm(advantage=Advantage.gae, gamma=0.9, gae_lambda=0.8)
    expected = build_estimator(config).estimate_rows(inputs())
    assert torch.equal(found.advantages, expected.advantages)
    assert torch.equal(found.returns, expected.returns)


def test_advantages_off_the_mask_are_zero(code: Path):
    assert torch.equal(estimate(code, "everywhere").advantages, MASK.float())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scores", r"returned a tensor of shape \[4\] as advantages; return a tensor of shape \[B, R\] = \[4, 4\]"),
        ("infinite", "returned advantages that are not finite"),
        ("three", "returned 3 values; return advantages, or"),
        ("broken", "raised .*ValueError: no"),
    ],
)
def test_wrong_results_are_errors(name: str, message: str, code: Path):
    with pytest.raises(ConfigError, match=message):
        estimate(code, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one", r"cannot be called as function\(inputs, config\)"),
        ("later", "is async"),
        ("nothing", "names no function"),
    ],
)
def test_wrong_functions_are_refused(name: str, message: str, code: Path):
    with pytest.raises(ConfigError, match=message):
        UserEstimator(algorithm(advantage=f"{code}:{name}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.advantage=function"], "=function is not known; use one of gae .* as path.py:name"),
        (["algorithm.advantage=reward_to_og"], r"did you mean reward_to_go\? use one of"),
        (["algorithm.advantage_args.decay=0.9"], "has no effect: advantage=gae calls no function"),
        (
            ["algorithm.advantage=a.py:b", "critic=none"],
            "algorithm.value_loss_coef=0.5 has no effect: advantage=a.py:b has no values",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(overrides: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        check_config(load_config(overrides), 1)


def test_keys_that_fit(code: Path):
    named = [f"algorithm.advantage={code}:own_gae"]
    check_config(load_config(named), 1)
    check_config(load_config([*named, "algorithm=grpo", "critic=none", "rollout.num_generations=4"]), 1)


def test_earlier_form_is_the_short_one():
    with pytest.raises(ConfigError, match=r"advantage_function is not a key here.*; use algorithm\.advantage"):
        load_config(["algorithm.advantage=function", "algorithm.advantage_function=a.py:b"])
    saved = {"algorithm": {"advantage": "function", "advantage_function": "a.py:b", "gamma": 1.0}}
    assert convert_config(saved) == {"algorithm": {"advantage": "a.py:b", "gamma": 1.0}}
    assert convert_config({"algorithm": {"advantage": "gae", "advantage_function": None}}) == {
        "algorithm": {"advantage": "gae"}
    }
    assert is_path_value("algorithm.advantage", "a.py:b")
    assert not is_path_value("algorithm.advantage", "gae")


STATEFUL = """
class Draining:
    def __init__(self):
        self.left = ["one", "two"]

    def __call__(self, inputs, config):
        self.left = self.left[1:]
        return inputs.rewards * inputs.mask

    def state_dict(self):
        return {word: True for word in self.left}

    def load_state_dict(self, state):
        self.left = list(state)
"""


def test_empty_state_is_no_first_state(tmp_path: Path) -> None:
    """A state that becomes empty is restored as empty, and not as that before the first iteration."""
    (tmp_path / "own.py").write_text(STATEFUL)
    estimator, state = build_estimator(algorithm(advantage=f"{tmp_path / 'own.py'}:Draining")), None
    assert isinstance(estimator, UserEstimator)
    component: Any = estimator.component
    for expected in (1, 0, 0):
        _, state = estimator.estimate({Source("low", "low"): inputs()}, None, state)  # type: ignore[arg-type]
        assert len(component.left) == expected
        component.left = ["a", "call", "of", "an", "evaluation"]

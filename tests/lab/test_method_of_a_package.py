"""`algorithm.advantage=path.py:name` of a class that takes part in play, in the checks, in the plan and in metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab_errors import find_errors
from small import rows, train

from ippo_cli.algorithms.user_advantages import build_user_estimator
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.planning.method_plan import method_plans

CODE = '''
from dataclasses import dataclass, replace

from ippo_cli.algorithms.advantage_method import AdvantageMethod
from ippo_cli.algorithms.advantages import broadcast_rows, row_scores
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.training.methods.method import Method


@dataclass
class Keys:
    scale: float = 2.0


class Lengths(AdvantageMethod):
    """The score of a response, less its length in thousands of tokens."""

    name = "lengths"
    Keys = Keys
    METRICS = {"lengths/longest": "longest response of this rank"}
    needs = ("no_critic",)
    reads = {"gamma": "1.0"}

    def build_method(self, config, algorithm):
        return Measure()

    def build_plan(self, config):
        return Plan(config)

    def estimate(self, inputs, experience, state):
        lengths = experience.additions[self.name]
        outputs = {}
        for source, own in inputs.items():
            score = row_scores(own) - self.keys.scale * lengths[source.agent] / 1000
            outputs[source] = broadcast_rows(own, score, score, own.valid)
        return outputs, {"count": (state or {"count": 0})["count"] + 1}


class Measure(Method):
    def extend(self, player, scored, clock):
        found = {name: one.response_mask.sum(dim=1) for name, one in scored.experience.rollouts.items()}
        return replace(scored.experience, additions={**scored.experience.additions, "lengths": found})

    def metrics(self, outcome):
        lengths = outcome.experience.additions["lengths"].values()
        return {"lengths/longest": float(max(int(one.max()) for one in lengths))}


class Plan(MethodPlan):
    def describe(self, shapes):
        yield "lengths", "of all responses"
'''


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    (tmp_path / "lengths.py").write_text(CODE)
    return ["algorithm=reinforce_plus_plus", f"algorithm.advantage={tmp_path / 'lengths.py'}:Lengths"]


def test_method_trains_and_plans(keys: list[str], tmp_path: Path) -> None:
    found = rows(train(tmp_path, *keys, "num_iterations=1", "evaluation.every=0"))
    assert found[-1]["lengths/longest"] > 0
    lines = [line for plan in method_plans(load_config(keys)) for line in plan.describe({})]
    assert lines == [("lengths", "of all responses")]


def test_method_is_checked(keys: list[str]) -> None:
    assert find_errors(keys) == []
    (needed,) = find_errors([*keys, "algorithm.gamma=null"])
    assert needed == "algorithm.gamma=null is needed by this algorithm; use 1.0"
    (unread,) = find_errors([*keys, "algorithm.gae_lambda=0.9"])
    assert unread.endswith("does not read it; use null")
    (critic,) = find_errors([*keys, "critic=separate", "algorithm.value_loss_coef=0.5"])
    assert "needs a run without a critic, and critic=separate" in critic
    (wrong,) = find_errors([*keys, "+algorithm.advantage_args.scale=much"])
    assert wrong.startswith("algorithm.advantage_args.scale=much must be a number")


def test_unknown_need_and_failing_class_are_named(tmp_path: Path) -> None:
    other = CODE.replace('needs = ("no_critic",)', 'needs = ("no_critics",)')
    failing = "\n\nclass Failing(Lengths):\n    def __init__(self, config, keys):\n        1 / 0\n"
    (tmp_path / "lengths.py").write_text(other + failing)
    base = ["algorithm=reinforce_plus_plus", f"algorithm.advantage={tmp_path / 'lengths.py'}:"]
    (unknown,) = find_errors([base[0], base[1] + "Lengths"])
    assert "has the unknown need 'no_critics'" in unknown
    with pytest.raises(ConfigError, match=r"Failing cannot be built \(.*ZeroDivisionError"):
        build_user_estimator(load_config([base[0], base[1] + "Failing"]).algorithm)


def test_all_states_have_values_unless_a_preset_limits_them() -> None:
    """As in runs of earlier versions, in which the key was null outside of the preset."""
    algorithm = replace(load_config(["algorithm=vine_ppo"]).algorithm, advantage_args={"continuations": 9})
    assert build_user_estimator(algorithm).keys.max_states is None

"""Rewards of programs by one agent, and of joint programs by two agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.rewards import check_rewards
from ippo_cli.config.schema import Config
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.code.reward import CodePairReward, CodeReward

ROW = {
    "prompt": "def double(x):\n    '''Twice x.'''\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n",
    "entry_point": "double",
}
MODEL = ("actor=full", "actor.model=folder")


def composed(*overrides: str) -> Config:
    return build_config(resolve_config(compose_node([*MODEL, *overrides])))


@pytest.fixture
def rewards(kind: str) -> Iterator[Any]:
    made: list[Any] = []

    def make(name: str, *overrides: str) -> Any:
        task = ["task=code_pair"] if name == "code_pair" else ["task=jsonl", "task.train=a.jsonl", "task.eval=b.jsonl"]
        config = composed(*task, f"reward={name}", f"reward.sandbox={kind}", "reward.workers=2", *overrides)
        check_rewards(config)
        made.append((CodePairReward if name == "code_pair" else CodeReward)(config.reward))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_code_reward(rewards: Any) -> None:
    texts = ["    return 2 * x", "```python\ndef double(x): return 4\n```", "I cannot."]
    found = rewards("code")([ROW] * 3, {"solo": texts})
    assert found.team == found.agent["solo"] == [1.0, 0.0, 0.0]
    assert found.parts == {
        "parses": [1.0, 1.0, 0.0], "defines": [1.0, 1.0, 0.0], "share": [1.0, 0.5, 0.0], "passed": [1.0, 0.0, 0.0]
    }  # fmt: skip
    assert rewards("code", "reward.match=share")([ROW] * 3, {"solo": texts}).team == [1.0, 0.5, 0.0]


def test_invalid_tests_fail_only_their_row(rewards: Any) -> None:
    found = rewards("code")([ROW, {**ROW, "test": "def check(:"}], {"solo": ["    return 2 * x"] * 2})
    assert list(found.failures) == [1]
    assert "SyntaxError" in str(found.failures[1])


@pytest.mark.parametrize("test", ["def check(:", "['assert double(2) == 4']", "import nosuch\nassert double(2) == 4"])
def test_invalid_tests_fail_row_without_program(rewards: Any, test: str) -> None:
    found = rewards("code")([ROW, {**ROW, "test": test}], {"solo": ["I cannot."] * 2})
    assert list(found.failures) == [1]
    assert found.team[0] == 0.0


MISTAKES = {
    "reward.test='{tests}'": (r"^reward\.test='\{tests\}'", {}),
    "reward.test='{test_list}'": (r"^reward\.test='\{test_list\}' .*it is a list.*join", {}),
    "reward.match=all": (
        r"^reward\.test='\{test\}' .*import nosuch, which",
        {"test": "import nosuch\nassert double(1)"},
    ),
    "reward.timeout_s=9": (r"^reward\.entry_point='\{entry_point\}' renders as 'S\(\)\.f' ", {"entry_point": "S().f"}),
    "reward.timeout_s=8": (r"^reward\.prompt='\{prompt\}' .*nosuch", {"prompt": "import nosuch\n" + ROW["prompt"]}),
}


@pytest.mark.parametrize("override", MISTAKES)
def test_unpassable_examples_raise_config_error(rewards: Any, override: str) -> None:
    result, change = MISTAKES[override]
    with pytest.raises(ConfigError, match=result):
        rewards("code", override).validate_examples([{**ROW, "test_list": ["assert double(2) == 4"], **change}])


def test_valid_examples_are_accepted(rewards: Any) -> None:
    lines = {"prompt": "Write double(x).", "entry_point": "double", "test": ["assert double(2) == 4"]}
    rewards("code").validate_examples([ROW])
    joined = rewards("code", "reward.test=\"jinja:{{ test | join('\\n') }}\"")
    joined.validate_examples([lines])
    assert joined([lines], {"solo": ["def double(x): return 2 * x"]}).team == [1.0]


def test_code_pair_stages(rewards: Any) -> None:
    helper, caller = "def aux(x): return x", "def double(x): return aux(x) + x"
    pairs = [(helper, caller), (helper, "def double(x): return 2 * x"), ("def axu(x): return x", caller), ("?", caller)]
    pairs.append((helper, "def double(x): return 4 + 0 * aux(x)"))
    responses = {name: [pair[number] for pair in pairs] for number, name in enumerate(("helper", "main"))}
    found = rewards("code_pair")([ROW] * 5, responses)
    assert found.team == pytest.approx([1.0, 0.8, 0.2, 0.05, 0.75])
    assert found.parts == {
        "parses": [1.0, 1.0, 1.0, 0.5, 1.0],
        "defines": [1.0, 1.0, 0.5, 0.0, 1.0],
        "calls": [1.0, 0.0, 0.0, 0.0, 1.0],
        "tests": [1.0, 1.0, 0.0, 0.0, 0.5],
        "passed": [1.0, 1.0, 0.0, 0.0, 0.0],
    }


def test_sandbox_is_required(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    config = composed("task=code_pair")
    with pytest.raises(ConfigError, match=r"^reward\.sandbox=none runs no generated code; set reward.sandbox"):
        check_rewards(config)
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = composed("task=code_pair", "reward.sandbox=bwrap")
    with pytest.raises(
        PreflightError, match=r"^reward\.sandbox=bwrap: bwrap is not installed; apt-get install"
    ) as result:
        build_reward(chosen.reward, chosen.task.agents)
    assert result.value.exit_code == 3

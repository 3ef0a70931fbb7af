"""Checks of environment settings that import no environment package."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from making import gymnasium, openenv, own, pettingzoo, reasoning_gym, textarena

import ippo_cli
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    EnvironmentTaskConfig,
    GymnasiumConfig,
    OpenEnvConfig,
    PettingzooConfig,
    ReasoningGymConfig,
    TextArenaConfig,
    UserEnvironmentConfig,
)
from ippo_cli.tasks.environments.build import check_environment

pytestmark = pytest.mark.needs_no_package
ROOT = Path(__file__).parents[3]
KINDS = {
    "gymnasium": GymnasiumConfig,
    "pettingzoo": PettingzooConfig,
    "reasoning_gym": ReasoningGymConfig,
    "textarena": TextArenaConfig,
    "openenv": OpenEnvConfig,
    "environment": UserEnvironmentConfig,
}


def sized(config: EnvironmentTaskConfig, **values: int) -> EnvironmentTaskConfig:
    return dataclasses.replace(config, **values)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (gymnasium(None), "task.env_id=null names no environment; set it, for example task.env_id=FrozenLake-v1"),
        (pettingzoo(None), "task.env_id=null names no environment; .*classic/tictactoe_v3"),
        (reasoning_gym(None), "task.dataset=null names no environment; .*chain_sum"),
        (textarena(None), "task.env_id=null names no environment; .*SimpleNegotiation-v0"),
        (own(None), "task.environment=null names no environment; .*my_env.py:make"),
        (sized(own("x.py:y"), train_size=2**31), "task.train_size=2147483648 task.eval_size=10 request more than"),
        (own("x.py:y", max_turns=0), "task.max_turns=0 allows no turn"),
        (openenv(None), "task.url=null names no environment; set it, for example task.url=http://127.0.0.1:8000"),
        (openenv("127.0.0.1:8000"), "task.url=127.0.0.1:8000 is not an HTTP address; use task.url=http://127"),
        (openenv("http://x:y"), "task.url=http://x:y is not an HTTP address"),
        (
            openenv("http://x", "a b"),
            r"task.agents=\{a,b\} names several agents, but an environment of OpenEnv has one",
        ),
        (
            openenv("http://x", action_field="a", action_function="x.py:y"),
            "task.action_field=a task.action_function=x.py:y define the conversion twice; set one of them to null",
        ),
    ],
)
def test_invalid_environment_settings_are_rejected(config: EnvironmentTaskConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_environment(config)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            gymnasium("FrozenLake-v1", agents="a b"),
            r"task.agents=\{a,b\} names several agents, but an environment of gymnasium",
        ),
        (
            reasoning_gym("chain_sum", agents="a b"),
            r"task.agents=\{a,b\} names several agents, but a question of reasoning_gym",
        ),
        (reasoning_gym("chain_sum", 0), "task.num_turns=0 allows no turn"),
    ],
)
def test_several_agents_are_rejected_for_single_agent_tasks(config: EnvironmentTaskConfig, message: str) -> None:
    pytest.importorskip(config.agents and "gymnasium", reason="needs ippo-cli[environments]")
    with pytest.raises(ConfigError, match=message):
        check_environment(config)


def test_missing_package_error_names_the_extra() -> None:
    code = """
import sys
from ippo_cli.tasks.environments import build
from ippo_cli.tasks.environments.build import make_environment_factory
from making import gymnasium, openenv, pettingzoo, reasoning_gym, textarena

found = build.find_spec
worlds = [
    gymnasium("FrozenLake-v1"), pettingzoo("classic/tictactoe_v3"), reasoning_gym("chain_sum"), openenv("http://x"),
    textarena("Nim-v0"),
]
for package, config in zip(("gymnasium", "pettingzoo", "reasoning_gym", "websockets", "textarena"), worlds):
    build.find_spec = lambda name: None if name == package else found(name)
    try:
        make_environment_factory(config)
    except Exception as error:
        print(type(error).__name__, error, package in sys.modules)
"""
    here = Path(__file__)
    paths = os.pathsep.join(map(str, [Path(ippo_cli.__file__).parents[1], here.parent, here.parents[1]]))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        f"ConfigError task.{setting} needs the package {package}, which is not installed; "
        f"run pip install 'ippo-cli[{extra}]' False"
        for package, extra, setting in (
            ("gymnasium", "environments", "env_id=FrozenLake-v1"),
            ("pettingzoo", "environments", "env_id=classic/tictactoe_v3"),
            ("reasoning_gym", "environments", "dataset=chain_sum"),
            ("websockets", "openenv", "url=http://x"),
            ("textarena", "textarena", "env_id=Nim-v0"),
        )
    ], done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_yaml_sets_exactly_the_keys_of_the_schema(name: str) -> None:
    folder = ROOT / "conf"
    written = yaml.safe_load((folder / "base" / "world.yaml").read_text())
    for group in ("base", "task"):
        written |= yaml.safe_load((folder / group / f"{name}.yaml").read_text())["task"]
    written["curriculum"] = written.pop("defaults")  # the base file of these keys
    assert set(written) == {field.name for field in dataclasses.fields(KINDS[name])}

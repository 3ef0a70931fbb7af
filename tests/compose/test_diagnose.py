"""Diagnosis of invalid overrides, and error blocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from hydra.errors import HydraException

from ippo_cli.compose.diagnose import diagnose_error
from ippo_cli.compose.exits import MAX_LINES, format_block, run_guarded
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, RewardError


def blamed(overrides: Sequence[str]) -> str:
    with pytest.raises((ConfigError, HydraException)) as raised:
        load_config(overrides)
    return str(diagnose_error(overrides, raised.value))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["gae_lambda=0.9"], "gae_lambda=0.9 is not a key; did you mean algorithm.gae_lambda?"),
        (
            ["seed=1", "critic=value_head", "critic.ppo_epochs=2"],
            "critic.ppo_epochs=2 is not a key of critic=value_head; use critic=separate",
        ),
        (["actor=full", "actor.hidden_size=2"], "actor.hidden_size=2 is not a key of actor=full; use actor=tiny"),
        (["config=mine"], "config=mine is not a key; ippo-train --help and docs/config.md list all keys"),
        (["reward.foo=2"], "reward.foo=2 is not a key; ippo-train --help reward lists its keys"),
        (["actor.nope=1"], "actor.nope=1 is not a key; ippo-train --help actor lists its keys; closest: actor."),
        (["++actor.nope=1"], "++actor.nope=1 is not a key; ippo-train --help actor lists its keys; closest: actor."),
        (["algorithm.kind=bogus"], "algorithm.kind=bogus is not a key; choose an option of algorithm: actor_critic"),
        (["algoritm.gamma=0.9"], "algoritm.gamma=0.9 is not a key; did you mean algorithm.gamma?"),
        (["rolout=hf"], "rolout=hf is not a key; did you mean rollout"),
        (["deepspeed=zero4"], "deepspeed=zero4 is an unknown option; closest: zero"),
        (
            ["actor_rollout_ref.rollout.n=4"],
            "actor_rollout_ref.rollout.n=4 is not a key here (verl has it); use rollout.num_generations",
        ),
        (["seed"], "'seed' is an unexpected argument; use key=value"),
        (["~nobody.seed"], "'~nobody.seed' is an unexpected argument; use key=value"),
        (["xyzzy.plugh=1"], "xyzzy.plugh=1 is not a key; ippo-train --help and docs/config.md list all keys"),
        (
            ["task.agents.bob.template=x"],
            "task.agents.bob.template=x names no agent; known agents: low high; +task.agents.bob.template= adds one",
        ),
        (
            ["+task.agents.my-agent.template=x"],
            "+task.agents.my-agent.template=x names an agent 'my-agent'; use letters",
        ),
        (["task.agents.hihg.template=x"], "task.agents.hihg.template=x names no agent (closest: high)"),
        (["task.agents.low=null"], "task.agents.low=null does not remove the agent; use ~task.agents.low"),
        (
            ["task.agents={one:{},two:{}}"],
            "task.agents={one:{},two:{}} sets several agents, but agents are added and removed one by one; use "
            "+task.agents.NAME.template=TEXT to add one, and ~task.agents.low ~task.agents.high to remove",
        ),
        (["seed=1,2"], "seed=1,2 has several values; add -m to train once with each of them"),
        (
            ["task.agent.low.template=x"],
            "task.agent.low.template=x is not a key; did you mean task.agents.low",
        ),
        (
            ["task.agents.low.actr.learning_rate=1"],
            "task.agents.low.actr.learning_rate=1 is not a key; did you",
        ),
        (["task.agents.low.lerning_rate=1"], "task.agents.low.lerning_rate=1 is not a key; did you mean task.agents."),
        (
            ["rollout.zero3_gather=laier"],
            "rollout.zero3_gather=laier is not known; use one of all layer",
        ),
        (["deepspeed.stage=two"], "deepspeed.stage=two must be a whole number; "),
        (["reward.processor={a: 1}"], "reward.processor={a: 1} must be a list; write 'reward.processor=[a,b]'"),
        (["actor.model_args=[1]"], "actor.model_args=[1] must be a mapping; write 'actor.model_args={name:value}'"),
        (["rollout.top_k=1.5"], "rollout.top_k=1.5 must be a whole number; "),
        (["seed=[1"], "seed=[1 "),
        (["loss_type=dr_grpo"], "loss_type=dr_grpo is not a key here (TRL has it); use algorithm=dr_grpo"),
        (["loss_type=actor_critic"], "loss_type=actor_critic is not a key here (RLinf has it); use algorithm=actor_cr"),
        (["Actor.learning_rate=1"], "Actor.learning_rate=1 is not a key; did you mean actor.learning_rate?"),
        (["algorithm.name=ppo"], "algorithm.name=ppo is not a key; an option is chosen by its group: use algorithm="),
        (["seed='range(1,4'"], "seed='range(1,4' has an unclosed bracket; use 'seed=range(1,4)'"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_diagnose_override(overrides: list[str], expected: str) -> None:
    message = blamed(overrides)
    assert message.startswith(expected)
    assert "; " in message
    assert not message.endswith(("; ", "None"))


def test_number_of_the_default_and_one_wrong_letter() -> None:
    default = load_config([]).actor.learning_rate
    assert f"use one such as actor.learning_rate={default:g}" in blamed(["actor.learning_rate=fast"])
    assert "sead=1 is not a key; did you mean seed?" in blamed(["sead=1"])


def test_options_are_checked_before_values() -> None:
    assert blamed(["critic.ppo_epochs=2", "critic=value_head"]).startswith("critic.ppo_epochs=2 is not a key")


def test_unknown_key_in_a_sweep() -> None:
    assert blamed(["lerning_rate=1,2"]).startswith("lerning_rate=1,2 is not a key; did you mean actor.learning_rate")


@pytest.mark.parametrize(
    "command",
    [
        "ippo-train resume=outputs/default/20261122-042023-6e290b",
        "ippo-train -m resume=multirun/2026-11-22",
        "python -c 'import gymnasium; gymnasium.pprint_registry()'",
    ],
)
def test_command_stays_on_one_line(command: str) -> None:
    for before in range(40, 120, 7):
        lines = format_block(f"{'x ' * (before // 2)}; resume with: {command}; or not").splitlines()
        assert any(command in line for line in lines)
        assert max(map(len, lines)) <= 110


def test_block_is_short_and_printable() -> None:
    text = format_block("bad \x1b[31mred\x1b[0m \x07 \x00 \ud800 \u202e" + "\n" + "x" * 10_000_000)
    assert len(text.splitlines()) <= MAX_LINES
    assert all(c.isprintable() for line in text.splitlines() for c in line)
    assert text.startswith(r"bad \x1b[31mred\x1b[0m \x07 \x00 \ud800 \u202e")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a=1", "is odd", "use 2"), 2),
        (RewardError("no reward"), 12),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
        (SystemExit(None), 0),
        (RuntimeError("ours"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    assert run_guarded(command, []) == code
    output = capsys.readouterr().err
    assert ("Traceback" in output) == (code == 1)
    assert code not in (2, 12) or output == f"ippo: {error}\n"


LEAVING = """
import atexit, sys
from ippo_cli.compose.exits import exit_process
from ippo_cli.engine import distributed
class Loud:
    def __del__(self):
        print("the interpreter shuts down", flush=True)
kept = Loud()
atexit.register(print, "handlers run")
if {ran}:
    distributed.init(device="cpu", timeout_s=60)
    distributed.shutdown()
exit_process(3)
"""


@pytest.mark.parametrize("ran", [False, True])
def test_exit_after_process_group_skips_shutdown(ran: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVING.format(ran=ran)], capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines() == ["handlers run"] + ([] if ran else ["the interpreter shuts down"])

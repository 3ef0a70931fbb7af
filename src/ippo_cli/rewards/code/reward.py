"""`reward=code` and `reward=code_pair`: test generated programs in a sandbox."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import CodePairRewardConfig, CodeRewardConfig, CodeRunConfig, Sandbox, TestMatch
from ippo_cli.engine import distributed
from ippo_cli.engine.launchers import cores_per_rank
from ippo_cli.processes.pool import ProcessPool
from ippo_cli.processes.sandbox import START_TIMEOUT_S, find_sandbox_problem
from ippo_cli.rewards.code.io_tests import LAYOUT, read_io_tests
from ippo_cli.rewards.code.judge import check_prompt_code, read_tests
from ippo_cli.rewards.contract import Reward, Row, stack_rows
from ippo_cli.rewards.episodes import Responses
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, adapt_response_reward
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example

STAGES = ("parses", "defines", "calls", "tests")


class CodeReward:
    """1 if the program in an agent's response passes all tests (`match=all`), or the fraction of passed assertions.

    A response is a program that defines the function, with or without fences, or a continuation of the prompt. Parts,
    averaged over agents: `parses`, `defines`, `share` (fraction of passed assertions), `passed` (all passed). Each
    agent writes its own program; the team's reward is the mean over agents.
    """

    def __init__(self, config: CodeRewardConfig) -> None:
        self.config = config
        self._judges = _create_judges(config)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        calls = [
            _judge_call(self.config, example, [texts[row]], [])
            for texts in responses.values()
            for row, example in enumerate(examples)
        ]
        results = self._judges.call(calls)
        judged = {
            name: results[number * len(examples) : (number + 1) * len(examples)]
            for number, name in enumerate(responses)
        }
        return stack_rows(
            [self._score_row({name: own[row] for name, own in judged.items()}) for row in range(len(examples))]
        )

    def validate_examples(self, examples: Sequence[Example]) -> None:
        _validate_examples(self.config, examples)

    def close(self) -> None:
        self._judges.close()

    def _score_row(self, results: dict[str, Any]) -> Row | Exception:
        for result in results.values():
            if isinstance(result, Exception):
                return result
        score = "passed" if self.config.match is TestMatch.all else "share"
        means = {
            part: sum(result[part] for result in results.values()) / len(results)
            for part in ("parses", "defines", "share", "passed")
        }
        return {"team": means[score], "agent": {name: own[score] for name, own in results.items()}, "parts": means}


class CodePairReward:
    """The weighted mean of stages of a joint program: the first agent writes a helper function, the second its caller.

    `parses` and `defines` are fractions of the two texts, `calls` is whether the caller uses the helper's result,
    `tests` is the fraction of passed assertions. `defines` counts only if both texts parse; `calls` and `tests` count
    only if both functions are defined.
    """

    def __init__(self, config: CodePairRewardConfig) -> None:
        self.config = config
        self._judges = _create_judges(config)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        helper, caller = responses.values()
        calls = [
            _judge_call(self.config, example, [first, second], [self.config.helper])
            for example, first, second in zip(examples, helper, caller, strict=True)
        ]
        return stack_rows([self._score_row(result) for result in self._judges.call(calls)])

    def validate_examples(self, examples: Sequence[Example]) -> None:
        _validate_examples(self.config, examples)

    def close(self) -> None:
        self._judges.close()

    def _score_row(self, result: Any) -> Row | Exception:
        if isinstance(result, Exception):
            return result
        stages = {"parses": result["parses"], "defines": 0.0, "calls": 0.0, "tests": 0.0}
        if stages["parses"] == 1:
            stages["defines"] = result["defines"]
        if stages["defines"] == 1:
            stages |= {"calls": result["calls"], "tests": result["share"]}
        weights = {stage: getattr(self.config, stage) for stage in STAGES}
        team = sum(weights[stage] * stages[stage] for stage in STAGES) / sum(weights.values())
        return {"team": team, "parts": {**stages, "passed": result["passed"]}}


def _judge_call(config: CodeRunConfig, example: Example, texts: list[str], helpers: list[str]) -> Any:
    prompt, test, entry_point = _render_example(config, example)
    return (texts, [*helpers, entry_point], prompt, test, config.sandbox.value, config.timeout_s), {}


def _render_example(config: CodeRunConfig, example: Example) -> tuple[str, str, str]:
    """The row's prompt, its tests and the name of the function under test."""
    return (
        render_template(config.prompt, example, "reward.prompt"),
        render_template(config.test, example, "reward.test"),
        render_template(config.entry_point, example, "reward.entry_point"),
    )


MAX_VALIDATED = 2  # examples that are checked; starting a sandbox takes 0.1 s for each


def _validate_examples(config: CodeRunConfig, examples: Sequence[Example]) -> None:
    """Raise `ConfigError` for examples with tests that no program can pass."""
    for example in examples[:MAX_VALIDATED]:
        prompt, test, name = _render_example(config, example)
        try:
            io_tests = read_io_tests(test)
        except ValueError as error:
            raise _invalid_tests(config, error) from None
        if io_tests is not None:
            name = io_tests.function or "main"
        if not name.isidentifier():
            raise ConfigError(
                f"reward.entry_point={config.entry_point!r}",
                f"renders as {name!r:.60} for an example; it must be the name of a function",
                "set a template such as '{entry_point}', or a fixed name",
            )
        try:
            if io_tests is None:
                read_tests(test)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise _invalid_tests(config, error) from None
        try:
            check_prompt_code(prompt, name, config.sandbox.value, config.timeout_s)
        except Exception as error:  # the prompt is code, and may raise anything
            raise ConfigError(
                f"reward.prompt={config.prompt!r}",
                f"cannot be run with reward.sandbox={config.sandbox.value} in an example "
                f"({type(error).__name__}: {error})",
                "import only the standard library, or exclude such rows with task.filter",
            ) from None


def _invalid_tests(config: CodeRunConfig, error: Exception) -> ConfigError:
    return ConfigError(
        f"reward.test={config.test!r}",
        f"gives invalid tests for an example ({type(error).__name__}: {error})",
        "write Python with assert statements, in a function check(candidate) or at module level; "
        "join a list of lines with reward.test=\"jinja:{{ FIELD | join('\\n') }}\"; "
        f"or use {LAYOUT}; 'jinja:{{{{ FIELD | tojson }}}}' writes a field as JSON",
    )


def _create_judges(config: CodeRunConfig) -> ProcessPool:
    """Processes that run tests; raises `PreflightError` if the sandbox does not work on this machine."""
    if config.sandbox is not Sandbox.none and (reason := find_sandbox_problem(config.sandbox.value)) is not None:
        raise PreflightError(f"reward.sandbox={config.sandbox.value}: {reason}")
    workers = config.workers or cores_per_rank(os.environ, distributed.world_size())
    return ProcessPool("ippo_cli.rewards.code.judge:judge", "reward.kind", workers, config.timeout_s + START_TIMEOUT_S)


def build_code_reward(config: CodeRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    return adapt_response_reward(CodeReward(config), agents)


def build_code_pair_reward(config: CodePairRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    return adapt_response_reward(CodePairReward(config), agents)

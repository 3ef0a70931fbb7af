"""`reward=function`: a user's Python function, given by `reward.function`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import FunctionRewardConfig
from ippo_cli.engine import progress
from ippo_cli.processes.pool import Call, CallFailed, ProcessPool
from ippo_cli.rewards.contract import Reward, stack_rows
from ippo_cli.rewards.episodes import Responses
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, adapt_response_reward
from ippo_cli.rewards.retry import as_failure
from ippo_cli.types import Episode, Example
from ippo_cli.user_code.load import load_function

KEY = "reward.function"
RESULT_KEYS = ("team", "agent", "team_by_step", "agent_by_turn", "parts", "valid")
DEFAULT_CONCURRENCY = 16
FOREIGN_PARAMETERS = {
    "prompts",
    "completions",
    "completion_ids",
    "data_source",
    "solution_str",
    "ground_truth",
    "extra_info",
}
"""Parameters of reward functions of TRL and verl; a function with two of them is rejected."""


class FunctionReward:
    """Calls `function(examples, responses)`, which returns a dict with fields of `Reward`, or a `Reward`.

    `examples` is a list of rows, `responses` maps each agent to the list of its texts:

        def reward(examples, responses):
            return {"team": [float(text == row["answer"]) for row, text in zip(examples, responses["solo"])]}

    With `reward.per_sample=true` it is called once per row and returns a number or a dict of numbers:

        def reward(example, responses):
            return float(responses["solo"] == example["answer"])

    A response is the text of the agent's last turn, and empty if it has no turns. A function with a parameter named
    `episodes` (per sample: `episode`) receives all turns and may return numbers by turn; this example penalizes length:

        def reward(examples, responses, episodes):
            turns = [[turn.completion.text for turn in episode.of("solo")] for episode in episodes]
            return {"agent_by_turn": {"solo": [[-0.1 * len(text) for text in texts] for texts in turns]}}

    An episode has `example`, `turns` (each with `agent`, `step`, `observation` and `completion.text`; those of one
    agent: `of(name)`), `rewards` by step, `parts`, `terminated` and `truncation`.

    An `async` function is awaited; with `per_sample`, `concurrency` calls run at once. With `process` it is called in
    child processes, which are killed if a call exceeds `timeout_s`.
    """

    def __init__(
        self,
        function: str,
        *,
        per_sample: bool = False,
        concurrency: int | None = None,
        process: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self.name = function
        self.function = load_function(function)
        self.per_sample, self.timeout_s = per_sample, timeout_s
        self.is_async = _is_async(self.function)
        _check_unused_keys(self.is_async, per_sample, concurrency, process, timeout_s)
        self.concurrency = concurrency or (DEFAULT_CONCURRENCY if self.is_async else 1)
        self.episode_parameter = "episode" if per_sample else "episodes"
        self.with_episodes = _accepts_parameter(self.function, self.episode_parameter, per_sample, f"{KEY}={function}")
        self._processes = ProcessPool(function, KEY, self.concurrency, timeout_s) if process else None

    def __call__(
        self, examples: Sequence[Example], responses: Responses, episodes: Sequence[Episode] | None = None
    ) -> Reward:
        if self.per_sample:
            calls = [self._make_row_call(row, examples, responses, episodes) for row in range(len(examples))]
            return stack_rows([self._row_numbers(result) for result in self._run_calls(calls)])
        texts = {name: list(own) for name, own in responses.items()}
        kwargs = {self.episode_parameter: episodes} if self.with_episodes else {}
        [result] = self._run_calls([((list(examples), texts), kwargs)])
        return result if isinstance(result, Reward) else Reward(**self._check_result_keys(_raise_if_error(result)))

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()

    def _make_row_call(
        self, row: int, examples: Sequence[Example], responses: Responses, episodes: Sequence[Episode] | None
    ) -> Call:
        kwargs = {} if episodes is None or not self.with_episodes else {self.episode_parameter: episodes[row]}
        return (examples[row], {name: texts[row] for name, texts in responses.items()}), kwargs

    def _run_calls(self, calls: Sequence[Call]) -> list[Any]:
        """The result of each call, or the exception that it raised."""
        if self._processes is not None:
            return self._processes.call(calls)
        if self.is_async:
            return asyncio.run(self._run_async_calls(calls))
        return [_call_function(self.function, call) for call in calls]

    async def _run_async_calls(self, calls: Sequence[Call]) -> list[Any]:
        free = asyncio.Semaphore(self.concurrency)

        async def run_call(call: Call) -> Any:
            async with free:
                try:
                    return await self._await_with_timeout(self.function(*call[0], **call[1]))
                except BaseException as error:
                    if (task := asyncio.current_task()) is not None and task.cancelling():
                        raise  # by this process, and not by the function
                    return as_failure(error)
                finally:
                    progress.heartbeat()

        return list(await asyncio.gather(*(run_call(call) for call in calls)))

    async def _await_with_timeout(self, awaitable: Awaitable[Any]) -> Any:
        if self.timeout_s is None:
            return await awaitable
        limit = asyncio.timeout(self.timeout_s)
        try:
            with progress.grant_time(self.timeout_s):
                async with limit:
                    return await awaitable
        except TimeoutError as error:
            raise CallFailed(f"the call took longer than {self.timeout_s:g} s") if limit.expired() else error from None

    def _row_numbers(self, result: Any) -> Mapping[str, Any] | Exception:
        """One row's numbers by name, or the exception of its call."""
        if isinstance(result, Exception):
            return result
        if isinstance(result, int | float) or (hasattr(result, "__float__") and not isinstance(result, str | bytes)):
            return {"team": float(result)}
        try:
            return self._check_result_keys(result)
        except TypeError as error:
            return error

    def _check_result_keys(self, result: Any) -> Mapping[str, Any]:
        if not isinstance(result, Mapping) or set(result) - set(RESULT_KEYS):
            returned = sorted(result) if isinstance(result, Mapping) else type(result).__name__
            kind = "a number or a dict" if self.per_sample else "a dict"
            rule = f"must return {kind} with keys among {', '.join(RESULT_KEYS)}, not {returned}"
            raise TypeError(f"{self.name} {rule}{self._return_hint(result)}")
        return result

    def _return_hint(self, result: Any) -> str:
        """A suggestion for a function that returned a number or a list of numbers; else empty."""
        if self.per_sample or isinstance(result, Mapping):
            return ""
        if isinstance(result, int | float):
            return "; set reward.per_sample=true for a function that returns the number of one row"
        return "; return {'team': [...]}" if isinstance(result, Sequence) and not isinstance(result, str) else ""


def _call_function(function: Callable[..., Any], call: Call) -> Any:
    try:
        return function(*call[0], **call[1])
    except BaseException as error:  # a user's function may raise anything; counted as a failed row
        return as_failure(error)
    finally:
        progress.heartbeat()


def _raise_if_error(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_unused_keys(
    is_async: bool, per_sample: bool, concurrency: int | None, process: bool, timeout_s: float | None
) -> None:
    """Raise `ConfigError` for keys that have no effect on this kind of function."""
    if is_async and process:
        raise ConfigError("reward.process=true", "does not support async functions", "set reward.process=false")
    if timeout_s is not None and not (is_async or process):
        raise ConfigError(
            f"reward.timeout_s={timeout_s:g}",
            "cannot stop a call that runs in the training process",
            "set reward.process=true, or make the function async",
        )
    if concurrency is not None and not (per_sample and (is_async or process)):
        raise ConfigError(
            f"reward.concurrency={concurrency}",
            "has no effect: only per-sample calls that are async or in child processes run concurrently",
            "set reward.per_sample=true and reward.process=true, or remove it",
        )


def _accepts_parameter(function: Callable[..., Any], parameter: str, per_sample: bool, setting: str) -> bool:
    """Whether the function has this parameter; `ConfigError` if it does not accept the reward's arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    present = parameter in signature.parameters
    if len(FOREIGN_PARAMETERS & signature.parameters.keys()) > 1:
        raise ConfigError(
            setting,
            f"takes ({', '.join(signature.parameters)}), the signature of another library; here it is called as "
            f"function({'example' if per_sample else 'examples'}, responses)",
            "wrap it: def score(examples, responses): ... return {'team': [...]} (docs/rewards.md)",
        )
    try:
        signature.bind([], {}, **({parameter: []} if present else {}))
    except TypeError as error:
        raise ConfigError(
            setting,
            f"cannot be called as function({'example' if per_sample else 'examples'}, responses) ({error})",
            f"accept these two parameters, and optionally {parameter!r}",
        ) from None
    return present


def build_function_reward(config: FunctionRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    if config.function is None:
        raise ConfigError("reward.function=null", "is not a function", "set reward.function=path/to/file.py:function")
    function = FunctionReward(
        config.function,
        per_sample=config.per_sample,
        concurrency=config.concurrency,
        process=config.process,
        timeout_s=config.timeout_s,
    )
    return adapt_response_reward(function, agents, with_episodes=function.with_episodes)

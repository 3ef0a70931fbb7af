"""Train on an environment of `verifiers`: one or several turns, tools, one or several agents.

    pip install 'ippo-cli[program]' 'verifiers>=0.4,<0.5'
    ippo-train task=program task.program=verifiers_program.py:play \
      task.train=verifiers_program.py:train task.eval=verifiers_program.py:held_out ...

Copy this file and set the environment below. Each role of the environment is an agent of the run:
`'task.agents={assistant: {}, user: {}}'`. With a single role, the run's only agent plays it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from contextlib import AsyncExitStack
from statistics import fmean
from typing import Any

import httpx
import verifiers.v1 as vf
from openai import AsyncOpenAI, BadRequestError, omit
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.env import default_agent_harness
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.compaction import is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.utils.loaders import harness_config_type, resolve_env_config

__all__ = ["ChatLoop"]  # the harness that verifiers finds in this file

ENVIRONMENT = json.loads(os.environ.get("VERIFIERS_ENVIRONMENT", '{"taskset": {"id": "my_taskset"}}'))
"""The block `[env]` of verifiers: `taskset`, `id` of an environment in another package, settings of roles."""

HARNESS = os.environ.get("VERIFIERS_HARNESS", __name__)
"""Plays roles that chat: `ChatLoop`, or `null`, the same loop as a process that `uv` prepares for each conversation."""

HELD_OUT = 100
"""Number of first tasks that are excluded from training."""

MOST = 10000
"""Maximum number of tasks: some tasksets are endless."""


class ChatLoop(NullHarness):
    """The loop of the harness `null`, with the task's tools, in the process of the episode."""

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: vf.Runtime) -> None:
        """Nothing to install."""

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Call the model until it answers without a tool call, or its context is full."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        prompt = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        messages += [message_to_wire(message) for message in prompt]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            http = httpx.AsyncClient(verify=False, timeout=None)  # a local address: loading certificates takes 20 ms
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http, max_retries=0)
            )
            tools, *connection = await connect_mcp({"mcpServers": servers}, stack)
            while messages[-1]["role"] != "assistant":
                try:
                    completion = await client.chat.completions.create(
                        model=ctx.model, messages=messages, tools=tools or omit
                    )
                except BadRequestError as error:
                    if is_context_overflow(error):
                        break
                    raise
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or []:
                    content = await _call_tool(connection, call.function)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _call_tool(connection: list[Any], function: Any) -> Any:
    """The tool's result, or the error of a call that no tool can answer."""
    dispatch, servers = connection
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are not valid JSON ({error})"
    if function.name not in dispatch or not isinstance(arguments, dict):
        return f"error: no tool {function.name!r} with such arguments"
    return await call_mcp(servers, dispatch, function.name, arguments)


CONFIG = resolve_env_config(ENVIRONMENT)
TASKS = list(vf.load_taskset(CONFIG.taskset).take(MOST))  # once: each episode is forked from the imported module


def train() -> list[dict[str, Any]]:
    """Return the rows of all tasks except the held-out ones."""
    return _rows()[HELD_OUT:]


def held_out() -> list[dict[str, Any]]:
    return _rows()[:HELD_OUT]


def _rows() -> list[dict[str, Any]]:
    return [{"number": number, "prompt": task.data.prompt_text} for number, task in enumerate(TASKS)]


async def play(example: dict[str, Any], endpoint: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Play an episode: the reward of each agent, and single rewards and metrics to log."""
    env = vf.load_environment(_assign_agents(endpoint.agents))
    client = vf.EvalClientConfig(base_url=endpoint.base_url, api_key_var="OPENAI_API_KEY")
    async with env.serving():
        model = vf.ModelContext(model=endpoint.agents[0], client=client)
        episode = await env.run_episode(TASKS[example["number"]], model)
    if not episode.ok:
        errors = [error for part in (episode, *episode.traces) if not part.ok for error in part.errors]
        raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors))
    rewards, parts = defaultdict(list), defaultdict(list)
    for trace in episode.traces:  # a role that plays several times has several, and their mean
        agent, prefix = trace.agent.config.model, f"{trace.agent.name}_" if len(episode.by_agent) > 1 else ""
        rewards[agent].append(trace.reward)
        scores = {name: reward and reward.score for name, reward in trace.rewards.items()} | trace.metrics
        for name, value in scores.items():
            parts[prefix + name] += [] if value is None else [value]
    means = {agent: fmean(values) for agent, values in rewards.items() if agent in endpoint.agents}
    return means, {name: fmean(values) for name, values in parts.items() if values}


def _assign_agents(agents: list[str]) -> vf.EnvConfig:
    """The environment's configuration, with agents of the run as models. Roles with a client of their own keep it."""
    roles = {name: role for name, role in agent_config_fields(CONFIG).items() if role.client is None}
    models = dict(zip(roles, agents if len(roles) == len(agents) == 1 else roles, strict=True))
    if set(models.values()) != set(agents):
        raise ValueError(f"task.agents has {' '.join(agents)}; the roles of {CONFIG.env_id} are {' '.join(roles)}")
    return CONFIG.model_copy(update={name: _assign_agent(role, models[name]) for name, role in roles.items()})


def _assign_agent(role: vf.AgentConfig, model: str) -> vf.AgentConfig:
    """A role played by an agent. Without a harness in its configuration it has no tools on this machine: it chats."""
    update: dict[str, Any] = {"model": model}
    harness = role.harness or default_agent_harness(CONFIG.taskset.id)
    if harness.id == "null" or (role.harness is None and harness.id == "bash"):
        update["harness"] = harness_config_type(HARNESS)(id=HARNESS)
        if role.runtime == vf.AgentConfig().runtime:  # the default is a sandbox at Prime Intellect
            update["runtime"] = vf.SubprocessConfig()
    return role.model_copy(update=update)

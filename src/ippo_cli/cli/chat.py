"""`ippo-chat`: chat with one agent, let all agents of a task answer a prompt, or serve them to programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS, value_errors
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import CHAT_HELP
from ippo_cli.compose.configured import (
    check_own_values,
    load_model_config,
    load_run_config,
    parse_bool_key,
    split_command_keys,
)
from ippo_cli.config.commands import parse_path
from ippo_cli.runs.output import print_status, print_text

COMMAND_KEYS = OWN_KEYS["ippo-chat"]
API_KEY_VARIABLE = "IPPO_API_KEY"
MAX_PORT = 65535
OVERRIDE_PREFIXES = (
    "rollout.",
    "launch.",
    "actor.dtype",
    "task.agents.",
)  # overrides that affect sampling or the prompts
# The task for model=, which has no run: it loads no data, and `{message}` is the typed line.
PLAIN_TASK = (
    "task=jsonl",
    *(f"task.agents.solo.{key}='{{message}}'" for key in ("template", "answer")),
    "task.eval=none",
)


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-chat", CHAT_HELP, _chat, needs_arguments=True, command_keys=COMMAND_KEYS)


def _chat(argv: list[str]) -> None:
    from ippo_cli.config.errors import ConfigError, combine_errors

    own, overrides = split_command_keys(argv, COMMAND_KEYS)
    remedy = "use run=outputs/NAME/ID, or model=PATH"
    check_own_values(own, overrides, COMMAND_KEYS, lambda: value_errors(own), remedy=remedy)
    if "checkpoint" in own and "model" in own:
        raise ConfigError(
            f"checkpoint={own['checkpoint']}",
            "selects a checkpoint of a run, and model= is not a run",
            "use run=, or remove checkpoint=",
        )
    remedy = f"keys with an effect: {' '.join((*COMMAND_KEYS, *OVERRIDE_PREFIXES))}"
    without_effect = [text for text in overrides if not text.lstrip("+~").startswith(OVERRIDE_PREFIXES)]
    if errors := [ConfigError(text, "has no effect on a chat", remedy) for text in without_effect]:
        raise combine_errors(errors)
    greedy, raw, seed = parse_bool_key(own, "greedy", False), parse_bool_key(own, "raw", False), own.get("seed", "0")
    if not seed.isdigit():
        raise ConfigError(f"seed={seed}", "must be a whole number of at least 0", "use seed=0")
    serves, port = parse_bool_key(own, "serve", False), own.get("port", "8000")
    _check_server_keys(own, serves=serves, raw=raw)
    if own.get("run"):
        folder = parse_path(own["run"]).absolute()
        config = load_run_config(folder, own["run"], overrides, data=False)
    else:
        config = load_model_config(own["model"], [*PLAIN_TASK, *overrides], data=False)
    print_status("ippo-chat: loading libraries and weights")
    from ippo_cli.config.teams import policy_by_agent
    from ippo_cli.evaluation.chat import ChatSettings, chat, terminal_reader
    from ippo_cli.evaluation.evaluate_run import adapters_by_agent, configured_weights, find_weights

    if own.get("run"):
        subject = find_weights(
            folder, own.get("checkpoint", "latest"), policy_by_agent(config), adapters_by_agent(config)
        )
    else:
        subject = configured_weights(config)
    if serves:
        from ippo_cli.evaluation.serve import ServerSettings, serve

        server = ServerSettings(
            host=own.get("host", "127.0.0.1"),
            port=int(port),
            api_key=os.environ.get(API_KEY_VARIABLE),
            seed=int(seed),
            greedy=greedy,
        )
        serve(config, subject, own.get("agent"), server, lambda line: print_text(line))
        return
    agent = own.get("agent") or (next(iter(config.task.agents)) if len(config.task.agents) == 1 else None)
    talk = ChatSettings(seed=int(seed), greedy=greedy, raw=raw)
    chat(config, subject, agent, talk, terminal_reader(), lambda line: print_text(line))


def _check_server_keys(own: Mapping[str, str], *, serves: bool, raw: bool) -> None:
    from ippo_cli.config.errors import ConfigError

    if serves and raw:
        raise ConfigError("raw=true", "has no effect on a server: programs send messages", "remove it")
    for key in ("host", "port"):
        if key in own and not serves:
            raise ConfigError(f"{key}={own[key]}", "has an effect with serve=true only", "add serve=true, or remove it")
    if not own.get("port", "8000").isdigit() or int(own.get("port", "8000")) > MAX_PORT:
        raise ConfigError(f"port={own['port']}", "is not a port", f"use a number up to {MAX_PORT}, or 0 for a free one")


if __name__ == "__main__":
    main()

"""`ippo-chat`: talk to an agent, or let a team answer a prompt."""

from __future__ import annotations

from typing import NoReturn

from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import CHAT_HELP
from ippo_cli.compose.configured import model_config, own_keys, refuse_mistyped, resolve_run, run_config, yes_or_no
from ippo_cli.config.commands import typed_path
from ippo_cli.runs.output import announce

OWN = ("run", "model", "checkpoint", "agent", "greedy", "seed", "raw")
GROUPS = ("rollout.", "launch.", "actor.dtype", "task.agents.")  # beside these, what says how answers are made
# Of a model that is no run's: nothing is read, scored or trained.
PLAIN = ("task=jsonl", *(f"task.agents.solo.{key}='{{message}}'" for key in ("template", "answer")), "task.eval=none")


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-chat", CHAT_HELP, _chat, needs_arguments=True, own=OWN)


def _chat(argv: list[str]) -> None:
    from ippo_cli.config.errors import ConfigError

    own, overrides = own_keys(argv, OWN)
    if bool(own.get("run")) == bool(own.get("model")):
        refuse_mistyped(overrides, OWN)
        raise ConfigError(f"run={own.get('run', '')}", "or model= is needed, and not both", "say run=outputs/NAME/ID")
    resolve_run(own)
    if "checkpoint" in own and "model" in own:
        raise ConfigError(f"checkpoint={own['checkpoint']}", "names the weights of a run", "give run=, or leave it out")
    for text in overrides:
        if not text.lstrip("+~").startswith(GROUPS):
            raise ConfigError(
                text, "can have no effect on a conversation", f"those that can: {' '.join((*OWN, *GROUPS))}"
            )
    greedy, raw, seed = yes_or_no(own, "greedy", False), yes_or_no(own, "raw", False), own.get("seed", "0")
    if not seed.isdigit():
        raise ConfigError(f"seed={seed}", "is no number from 0 on", "use seed=0")
    if own.get("run"):
        folder = typed_path(own["run"]).absolute()
        config = run_config(folder, own["run"], overrides, data=False)
    else:
        config = model_config(own["model"], [*PLAIN, *overrides], data=False)
    announce("ippo-chat: loading libraries and weights")
    from ippo_cli.config.teams import holders
    from ippo_cli.evaluation.chat import Talk, chat, typed_lines
    from ippo_cli.evaluation.evaluate_run import adapters_of, find_weights, models_of

    if own.get("run"):
        subject = find_weights(folder, own.get("checkpoint", "latest"), holders(config), adapters_of(config))
    else:
        subject = models_of(config)
    agent = own.get("agent") or (next(iter(config.task.agents)) if len(config.task.agents) == 1 else None)
    talk = Talk(seed=int(seed), greedy=greedy, raw=raw)
    chat(config, subject, agent, talk, typed_lines(), lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()

"""Every schema field is read by the source, distinguished by class and name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from loaded import loaded

import ippo_cli
from ippo_cli.compose.load import KINDS

SOURCE = Path(ippo_cli.__file__).parent
# Fields that only checks and batch sizes read.
CHECKS = ("checks.py", "algorithm_checks.py", "applicability.py", "arithmetic.py")
READ_BY_CHECKS = {
    "KlConfig.allow_both",
    "AlgorithmConfig.allow_off_policy_steps",
    "AlgorithmConfig.needs_centralized_critic",
    "RunConfig.resume",
    "RunConfig.num_epochs",
    "OptimizedCriticConfig.mini_batch_size",
    "StepsConfig.mini_batch_size",
}
key_readers = loaded(Path(__file__).parents[2] / "scripts" / "key_readers.py", "key_readers")
CLASSES, fields_read, owners = key_readers.CLASSES, key_readers.fields_read, key_readers.owners


def test_all_schema_fields_are_read() -> None:
    schemas = {SOURCE / "config" / "constraints.py", *(SOURCE / "config" / "schema").glob("*.py")}
    files = [file for file in SOURCE.rglob("*.py") if file not in schemas]
    read = fields_read(file for file in files if file.name not in CHECKS)
    read |= key_readers.fields_answered(schemas, files)
    # Composition reads `kind` to choose the class of a group with several kinds.
    read |= {f"{owners(next(iter(kinds.values())))['kind']}.kind" for kinds in KINDS.values() if len(kinds) > 1}
    there = {
        f"{name}.{leaf}"
        for name, cls in CLASSES.items()
        for leaf, kind in cls.__annotations__.items()
        if kind not in CLASSES
    }
    unread = there - read - READ_BY_CHECKS
    assert unread == set(), "these keys have no effect"
    assert read_by_checks(files) >= READ_BY_CHECKS


def read_by_checks(files: Iterable[Path]) -> set[str]:
    return fields_read(file for file in files if file.name in CHECKS)


def test_fields_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    file = tmp_path / "reading.py"
    file.write_text(
        "def of_a_critic(config: Config):\n"
        "    critic = config.critic\n"
        "    return critic.kind, critic.model if isinstance(critic, SeparateCriticConfig) else None\n"
        "def of_agents(task: TaskConfig):\n"
        "    return [agent.actor.seed for agent in task.agents.values()]\n"
    )
    found = fields_read([file])
    assert {"Config.critic", "CriticConfig.kind", "SeparateCriticConfig.model", "AgentConfig.actor"} <= found
    assert not found & {"ActorConfig.model", "TeamConfig.kind", "RunConfig.seed"}

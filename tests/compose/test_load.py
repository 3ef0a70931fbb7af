"""Composition, per-agent values, types, and the round trip through a run's config.yaml."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

import ippo_cli
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import (
    KINDS,
    PER_AGENT,
    SINGLE_SCHEMAS,
    build_config,
    compose_node,
    config_dir,
    format_composition,
    from_yaml,
    iter_leaves,
    load_config,
    resolve_config,
    to_yaml,
)
from ippo_cli.config import schema
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError

SOURCE = Path(ippo_cli.__file__).parent
GROUPS = [field.name for field in fields(schema.Config) if field.name in KINDS or field.name in SINGLE_SCHEMAS]
FILES = sorted(config_dir().glob("*/*.yaml"))
CHOICES = [f"{file.parent.name}={file.stem}" for file in FILES if file.parent.name in GROUPS]
OF_ONE_AGENT = "actor=server"  # not an option of the group
EXPERIMENTS = [f"+experiment={file.stem}" for file in FILES if file.parent.name == "experiment"]
CLASSES = [cls for cls in vars(schema).values() if is_dataclass(cls)]

Make = Callable[..., Any]


def leaf_types(cls: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and types of a class's leaves; agents are left out."""
    for name, kind in get_type_hints(cls).items():
        if is_dataclass(kind):
            yield from leaf_types(kind, f"{prefix}{name}.")
        elif name != "agents":
            yield prefix + name, kind


GROUPS_OF_FILES: dict[Path, str] = {}  # of files in base/


def schema_of(file: Path) -> type[Any]:
    """The schema of a YAML file's kind, or of the preset that it starts from."""
    group = GROUPS_OF_FILES.get(file, file.parent.name)
    if group in SINGLE_SCHEMAS:
        return SINGLE_SCHEMAS[group]
    loaded = OmegaConf.load(file)
    kind = OmegaConf.select(loaded, "kind") or OmegaConf.select(loaded, f"{group}.kind")
    if kind is not None:
        return KINDS[group][kind]
    first = str(loaded.defaults[0]).partition("@")[0]
    base = (config_dir() if first.startswith("/") else file.parent) / f"{first.removeprefix('/')}.yaml"
    GROUPS_OF_FILES[base] = group
    return schema_of(base)


def every_leaf() -> Iterator[tuple[str, str, Any]]:
    """Choice of group, dotted name and type of every leaf that a composition can have."""
    yield from (("", name, kind) for name, kind in leaf_types(schema.RunConfig))
    for choice in CHOICES:
        if choice == OF_ONE_AGENT:
            continue
        group, _, option = choice.partition("=")
        cls = schema_of(config_dir() / group / f"{option}.yaml")
        yield from ((choice, f"{group}.{name}", kind) for name, kind in leaf_types(cls))


LEAVES = {(choice.split("=")[0], name): (choice, name, kind) for choice, name, kind in every_leaf()}.values()


@pytest.mark.parametrize("choice", CHOICES)
def test_all_options_pass_the_checks(choice: str, config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ippo_cli.config.vllm.find_spec", lambda name: object())  # vLLM has an environment of its own
    if choice == OF_ONE_AGENT:
        with pytest.raises(ConfigError, match=r"use task\.agents\.NAME\.actor=server"):
            config([choice])
        return
    serves_evaluation_only = choice == "rollout=openai_server"
    more = ["rollout.server.url=[http://127.0.0.1:8000]"] if serves_evaluation_only else []
    more += ["task.program=play.py:play"] if choice == "task=program" else []
    more += ["rollout.engine=my.py:Engine"] if choice == "rollout=engine" else []
    if choice in ("task=refine", "task=think_solve"):
        more += ["actor.alphabet=printable"]  # no reference answers
    if choice == "task=calculator":
        more += ["actor=full", "actor.model=folder"]  # its prompts are messages
    more += ["actor.reference=owner/teacher"] if choice == "algorithm=distill" else []
    more += ["task=sorting_peers"] if choice == "algorithm=hacpo" else []
    made = config([choice, "mode=plan", *more])  # mode=plan needs no local models
    check_config(made, world_size=1, training=not serves_evaluation_only)
    group, _, option = choice.partition("=")
    assert getattr(getattr(made, group), "kind", option) is not None


@pytest.mark.parametrize("choice", EXPERIMENTS)
def test_all_experiments_pass_the_checks(choice: str) -> None:
    values = resolve_config(compose_node([choice]))
    if values["actor"]["kind"] == "full" and values["actor"]["model"] is None:  # the user sets the folder
        values = resolve_config(compose_node([choice, "actor.model=folder"]))
    check_config(build_config(values), world_size=1)


@pytest.mark.parametrize(
    "choices",
    [
        ("algorithm=ppo", "critic=separate", "critic.learning_rate=2e-5"),
        ("algorithm=ppo", "critic=value_head", "critic.learning_rate=1e-4"),
        ("algorithm=ppo", "task=arithmetic_pair"),
        ("algorithm=ippo", "task=arithmetic_pair", "algorithm.mini_batch_size=null"),
        ("algorithm=rloo", "algorithm.mini_batch_size=null"),
    ],
)
def test_arithmetic_experiment_variants(choices: tuple[str, ...]) -> None:
    made = load_config(["+experiment=smollm2_arithmetic", "actor.model=folder", *choices])
    check_config(made, world_size=1)
    assert made.actor.learning_rate == 2e-5
    assert made.rollout.buffer_size == 64
    assert len(made.task.agents) == (2 if "task=arithmetic_pair" in choices else 1)


def test_gsm8k_recipe_has_published_values() -> None:
    made = load_config(["+experiment=gsm8k_qwen2.5_0.5b"])
    assert made.rollout.buffer_size // (made.algorithm.mini_batch_size or 0) == 4
    assert (made.algorithm.gamma, made.algorithm.gae_lambda, made.algorithm.ppo_epochs) == (1.0, 1.0, 1)
    assert made.num_iterations == 15 * (7473 // made.rollout.buffer_size)


def test_gsm8k_lora_recipe_has_published_values() -> None:
    made = load_config(["+experiment=gsm8k_qwen2.5_0.5b_lora"])
    rollout, actor = made.rollout, made.actor
    assert rollout.buffer_size == made.algorithm.mini_batch_size == 64 * rollout.num_generations == 320
    assert made.num_iterations == 7473 // 64
    assert isinstance(actor, schema.LoraActorConfig)
    assert (actor.rank, actor.alpha, actor.learning_rate) == (32, 32.0, 3e-5)


def test_readme_describes_all_folders() -> None:
    described = re.findall(r"^\| `([\w/]+)/` \|", (config_dir() / "README.md").read_text(), re.MULTILINE)
    folders = {file.parent.relative_to(config_dir()).as_posix() for file in config_dir().rglob("*.yaml")} - {"."}
    looked_up = ("base/by_actor", "base/by_algorithm")
    assert {folder for folder in folders if not folder.startswith(looked_up)} | {*looked_up} == {*described}


def test_groups_match_the_schema() -> None:
    found = {choice.split("=")[0] for choice in CHOICES}
    there = {field.name for field in fields(schema.Config)} - {field.name for field in fields(schema.RunConfig)}
    assert found == there == {*KINDS, *SINGLE_SCHEMAS}


@pytest.mark.parametrize("choice", CHOICES)
def test_yaml_keys_are_schema_keys(choice: str) -> None:
    file = config_dir() / (choice.replace("=", "/") + ".yaml")
    loaded = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(loaded, dict)
    others = ("agents.", "task.agents.", "defaults", "algorithm.advantage_args.")
    given = {name for name, _ in iter_leaves(loaded) if not name.startswith(others)}
    known = {name for name, _ in leaf_types(schema_of(file))}
    if "@package _global_" in file.read_text():  # it also sets values of other groups
        known = {f"{file.parent.name}.{name}" for name in known} | {name for _, name, _ in LEAVES}
    assert given <= known


def test_base_values_are_schema_keys() -> None:
    known = {name.partition(".")[2] for _, name, _ in LEAVES}
    known |= {name.rpartition(".")[2] for _, name, _ in LEAVES if name.startswith("task.curriculum.")}
    for file in config_dir().glob("base/*.yaml"):
        given = {name for name, _ in iter_leaves(OmegaConf.to_container(OmegaConf.load(file)))}
        of_groups = {name for _, name, _ in LEAVES} if "@package _global_" in file.read_text() else set()
        assert given - {"defaults", "agents"} <= known | of_groups, file


def test_schema_fields_have_no_defaults() -> None:
    import dataclasses

    for cls in CLASSES:
        for field in fields(cls):
            of_an_agent = issubclass(cls, schema.PromptConfig | schema.ToolsConfig) and field.name in (
                "turn_template",
                "system",
                "answer",
                "warm_start_answer",
                "frozen",
                *vars(schema.ToolsConfig)["__annotations__"],
            )
            assert (field.default is dataclasses.MISSING) != (of_an_agent and field.name != "chat_template_args"), (
                field.name
            )
            free = field.default_factory is dataclasses.MISSING
            is_mapping = field.name == "chat_template_args"
            assert free or is_mapping or (cls is schema.AgentConfig and field.name in PER_AGENT)


@pytest.mark.parametrize(
    "overrides",
    [
        ["seeed=1"],
        ["algorithm.gama=1"],
        ["task.agents.low.tempalte=x"],
        ["task.agents.bob.actor.learning_rate=1"],
        ["task.agents.low.actor.lr=1"],
        ["critic=value_head", "critic.ppo_epochs=2"],
    ],
)
def test_unknown_keys(overrides: list[str]) -> None:
    with pytest.raises((ConfigError, HydraException)):
        load_config(overrides)


def wrong_for(kind: Any) -> Any:
    """A value that this type cannot hold."""
    if get_origin(kind) is list:
        return "no list"
    if get_origin(kind) is dict:
        return "no mapping"
    kinds = set(get_args(kind) or (kind,)) - {type(None)}
    if any(isinstance(part, type) and issubclass(part, enum.Enum) for part in kinds):
        return "no member of any enumeration"
    if str in kinds:
        return ["a", "list"]
    return {"a": "mapping"} if kind not in (int, float, bool) else "no number"


TYPED = [leaf for leaf in LEAVES if leaf[2] is not Any]  # the checks restrict Any


@pytest.mark.parametrize(("choice", "name", "kind"), TYPED, ids=lambda value: str(value) if "." in str(value) else "")
def test_wrong_types(choice: str, name: str, kind: Any, plain: Make) -> None:
    values = plain([choice] if choice else [], **{name: wrong_for(kind)})
    with pytest.raises(ConfigError) as raised:
        build_config(values)
    setting, rule, remedy = split(raised.value)
    assert setting.split("=")[0].split("[")[0] in (name, *agents_names(values, name))
    assert rule
    assert remedy


def agents_names(values: dict[str, Any], name: str) -> list[str]:
    return [f"task.agents.{agent}.{name}" for agent in values["task"]["agents"]]


def split(error: ConfigError) -> tuple[str, str, str]:
    """`key=value`, the rule, and what would work."""
    text, _, remedy = str(error).partition("; ")
    setting, _, rule = text.partition(" ")
    return setting, rule, remedy


def test_fraction_is_not_an_integer(plain: Make) -> None:
    with pytest.raises(ConfigError, match=r"^rollout\.top_k=1\.5 .*; "):
        build_config(plain(**{"rollout.top_k": 1.5}))


def test_saved_config_with_removed_keys(plain: Make, tmp_path: Path) -> None:
    values = plain(())
    saved = values | {"plan": values["plan"] | {"tflops": 989.0, "memory_gb_per_s": None}}
    (tmp_path / "config.yaml").write_text(to_yaml(saved))
    assert from_yaml(tmp_path / "config.yaml") == build_config(values)


def test_saved_config_with_missing_or_unknown_key(plain: Make) -> None:
    values = plain()
    del values["algorithm"]["gamma"]
    with pytest.raises(ConfigError, match=r"^algorithm\.gamma .*; "):
        build_config(values)
    values = plain()
    values["algorithm"]["gama"] = 1.0
    with pytest.raises(ConfigError, match=r"^algorithm\.gama.*; "):
        build_config(values)


@pytest.mark.parametrize("gone", ["team", "task", "seed"])
def test_saved_config_without_a_group(gone: str, plain: Make) -> None:
    values = plain()
    del values[gone]
    with pytest.raises(ConfigError, match=rf"^{gone}\b.*; "):
        build_config(values)


def test_value_of_one_agent() -> None:
    made = load_config(["task.agents.high.actor.learning_rate=1e-5", "task.agents.low.critic.ppo_epochs=3"])
    low, high = made.task.agents["low"], made.task.agents["high"]
    assert (low.actor.learning_rate, high.actor.learning_rate) == (3.5e-4, 1e-5)
    assert made.actor.learning_rate == 3.5e-4
    assert (low.critic.ppo_epochs, high.critic.ppo_epochs) == (3, None)


def test_group_value_applies_to_agents_without_override() -> None:
    made = load_config(["actor.learning_rate=1e-3", "task.agents.low.actor.learning_rate=1e-5"])
    assert [agent.actor.learning_rate for agent in made.task.agents.values()] == [1e-5, 1e-3]
    assert made.task.agents["high"].actor == made.actor
    assert made.task.agents["high"].critic == made.critic


def test_null_value_of_one_agent() -> None:
    made = load_config(["critic.mini_batch_size=64", "task.agents.low.critic.mini_batch_size=null"])
    assert [agent.critic.mini_batch_size for agent in made.task.agents.values()] == [None, 64]


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (["critic=value_head", "task.agents.low.critic.max_grad_norm=1"], "task.agents.low.critic.max_grad_norm=1"),
        (
            ["actor=full", "actor.model=x", "task.agents.high.actor.hidden_size=64"],
            "task.agents.high.actor.hidden_size=64",
        ),
        (
            ["task.agents.low.actor.kind=full", "task.agents.low.actor.hidden_size=8"],
            "task.agents.low.actor.hidden_size=8",
        ),
    ],
)
def test_agent_key_of_another_kind(overrides: list[str], setting: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(overrides)
    assert split(raised.value)[0] == setting
    assert split(raised.value)[2]


def test_agent_overrides_of_sampling_steps_and_weights() -> None:
    typed_now = [
        "rollout.temperature=0.7",
        "task.agents.low.rollout.temperature=0.5",
        "task.agents.low.rollout.top_k=4",
    ]
    made = load_config(
        [
            *typed_now,
            *("algorithm=ppo", "algorithm.ppo_epochs=2", "task.agents.high.algorithm.ppo_epochs=5"),
            *("reward.team_weight=0.25", "task.agents.high.reward.agent_weight=2"),
        ]
    )
    low, high = made.task.agents.values()
    assert (low.rollout.temperature, low.rollout.top_k, low.rollout.max_new_tokens) == (0.5, 4, 8)
    assert (high.rollout.temperature, high.rollout.top_k, high.rollout.max_new_tokens) == (0.7, 0, 8)
    assert (low.algorithm.ppo_epochs, high.algorithm.ppo_epochs) == (2, 5)
    assert (low.reward.team_weight, low.reward.agent_weight, low.reward.turn_weight) == (0.25, 0.0, 1.0)
    assert (high.reward.team_weight, high.reward.agent_weight, high.reward.turn_weight) == (0.25, 2.0, 1.0)


@pytest.mark.parametrize(
    "key",
    ["task.agents.low.rollout.buffer_size=8", "task.agents.low.algorithm.gamma=0.9", "task.agents.low.reward.scale=2"],
    ids=["rollout", "algorithm", "reward"],
)
def test_keys_without_agent_override(key: str) -> None:
    with pytest.raises(ConfigError, match=key.partition("=")[0]):
        load_config([key])


def test_agent_of_another_kind_starts_from_its_option() -> None:
    made = load_config(
        [
            "actor.hidden_size=32",
            "actor.learning_rate=0.5",
            "critic.learning_rate=0.25",
            "critic.weight_decay=0.125",
            "task.agents.low.actor.kind=full",
            "task.agents.low.actor.model=x",
            "task.agents.low.actor.adam_beta1=0.5",
            "task.agents.high.critic.kind=value_head",
        ]
    )
    full = load_config(["actor=full", "actor.model=x", "actor.adam_beta1=0.5"])
    low, high = made.task.agents.values()
    assert low.actor == full.actor
    assert low.critic == full.critic, "its number format and rate included"
    assert (high.actor.learning_rate, high.actor.hidden_size) == (0.5, 32)
    assert high.critic == load_config(["critic=value_head"]).critic


def test_local_model_beside_pretrained_in_environment() -> None:
    world = ["task=gymnasium", "task.env_id=FrozenLake-v1", "reward=environment"]
    alone = load_config([*world, "actor=tiny"])
    beside = load_config([*world, "actor=full", "actor.model=x", "task.agents.player.actor.kind=tiny"])
    assert beside.task.agents["player"].actor == alone.actor
    assert alone.actor.alphabet is schema.Alphabet.printable  # type: ignore[attr-defined]


def test_critic_dtype_follows_its_actor() -> None:
    agents = load_config(["actor.dtype=bf16", "task.agents.low.actor.dtype=fp32"]).task.agents
    assert [agent.critic.dtype.value for agent in agents.values()] == ["fp32", "bf16"]


def test_agent_needs_only_a_template() -> None:
    made = load_config(["++task.agents={bob:{template:x}}"]).task.agents["bob"]
    assert (made.template, made.system, made.answer) == ("x", None, None)
    with pytest.raises(ConfigError, match=r"^task\.agents\.bob\.template is missing; "):
        load_config(["++task.agents={bob:{answer:x}}"])


@pytest.mark.parametrize("choices", [(), ("task=jsonl", "actor=full", "critic=value_head", "reward=function")])
def test_yaml_round_trip(choices: tuple[str, ...], plain: Make, tmp_path: Path) -> None:
    changes = {"name": "été_1", "rollout.stop_strings": ["\n\n", "${x}", "\\${y}", "null", "1", "a: b", ""]}
    values = plain(choices, **changes)
    values["task"]["agents"] = {
        name: agent | {"template": "${oc.env:HOME} {prompt}\n"} for name, agent in values["task"]["agents"].items()
    }
    (tmp_path / "config.yaml").write_text(to_yaml(values))
    made = from_yaml(tmp_path / "config.yaml")
    assert made == build_config(values)
    assert made.name == "été_1"
    assert made.rollout.stop_strings == changes["rollout.stop_strings"]
    assert {agent.template for agent in made.task.agents.values()} == {"${oc.env:HOME} {prompt}\n"}


def test_saved_config_is_not_interpolated(plain: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "told")
    (tmp_path / "config.yaml").write_text(to_yaml(plain()).replace("name: default", "name: ${oc.env:SECRET}"))
    assert from_yaml(tmp_path / "config.yaml").name == "${oc.env:SECRET}"


@pytest.mark.parametrize("text", ["", "- a list", "just words", "a: [1", "seed: 1", "task: 3\nactor: 4"])
def test_invalid_saved_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError):
        from_yaml(tmp_path / "config.yaml")


def test_format_composition_has_own_values_of_agents() -> None:
    text = format_composition(compose_node(["task.agents.low.actor.learning_rate=1e-5"]), resolve=True)
    assert "???" not in text
    assert OmegaConf.create(text).task.agents.low.actor == {"learning_rate": 1e-5}
    assert "critic" not in OmegaConf.create(text).task.agents.low


def test_escaped_interpolation_stays_text() -> None:
    assert load_config([r"rollout.stop_strings=['\${x}']"]).rollout.stop_strings == ["${x}"]


def test_resolved_values_have_all_schema_leaves() -> None:
    values = resolve_config(compose_node([]))
    for group in GROUPS:
        cls = SINGLE_SCHEMAS.get(group) or KINDS[group][values[group]["kind"]]
        assert {name for name, _ in leaf_types(cls)} == {
            name for name, _ in iter_leaves(values[group]) if not name.startswith("agents")
        }


def test_all_schema_fields_have_a_comment() -> None:
    nested = {cls.__name__ for cls in CLASSES}
    seen: set[str] = set()
    for file in (SOURCE / "config" / "schema").glob("*.py"):
        lines = [*file.read_text().splitlines(), ""]
        for node in ast.parse("\n".join(lines)).body:
            for field in node.body if isinstance(node, ast.ClassDef) and node.name in nested else ():
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    line, following = lines[field.end_lineno - 1 : field.end_lineno + 1]  # type: ignore[operator]
                    has_comment = "  # " in line or following.lstrip().startswith("#")
                    types = {part.id for part in ast.walk(field.annotation) if isinstance(part, ast.Name)}
                    assert has_comment or types & nested, f"{node.name}.{field.target.id}"
                    seen.add(node.name)
    assert seen == {cls.__name__ for cls in CLASSES if vars(cls).get("__annotations__")}


def test_a_changed_composition_or_file_does_not_change_the_next(tmp_path: Path) -> None:
    compose_node(["seed=3"]).seed = 4
    assert compose_node(["seed=3"]).seed == 3
    for size in (3, 4):
        (tmp_path / "mine.yaml").write_text(f"defaults: [sorting, _self_]\neval_size: {size}\n")
        assert compose_node(normalize_arguments([f"task={tmp_path}/mine.yaml"])).task.eval_size == size

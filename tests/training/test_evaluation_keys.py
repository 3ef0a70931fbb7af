"""Every configuration key is either used or rejected by `ippo-eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from folders import model_folder
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

pytest.importorskip("httpx2", reason="needs the extra `http`")
sys.path.insert(0, str(Path(__file__).parents[1] / "rewards"))

from servers import ServerAnswer, serving

from ippo_cli.compose.load import KINDS, SINGLE_SCHEMAS, load_config
from ippo_cli.config import schema
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.evaluation import check_evaluation_overrides, evaluation_keys
from ippo_cli.evaluation.evaluate_run import evaluate_model

# Read, but without effect.
WITHOUT_EFFECT = {
    "task.kind": "chosen with its group",
    "reward.kind": "chosen with its group",
    "rollout.kind": "chosen with its group",
    "task.agents.*.warm_start_answer": "tried on an example, and taught to no model here",
    "task.symbols": "of messages in the warm start",
    "task.message_length": "of messages in the warm start",
    "task.weights": "of training prompts",
    "task.train_size": "held-out examples are drawn first",
    "rollout.zero3_gather": "weights that are loaded for this are whole",
    "actor.model": "typed as model=",
    "reward.cache_answers": "kept in the folder of a run that trains",
}
OF_SERVERS = ("url", "token_env", "start_timeout_s", "request_timeout_s", "context_limit", "served_model")
OF_OPENENV = ("url", "token_env", "max_sessions", "reset_args", "action_", "observation_f")
WITH_ENGINES = (  # read where an engine, a server or tools answer, which other tests have
    "rollout.vllm.",
    "rollout.engine",
    "rollout.on_policy",
    "rollout.verify_rounds",
    "rollout.server.",
    *(f"{where}actor.{key}" for where in ("", "task.agents.*.") for key in OF_SERVERS),
    *(f"task.{key}" for key in OF_OPENENV),
    *(f"task.agents.*.{key}" for key in ("tool_", "max_tool_calls")),
)
ENVIRONMENT = """
class Environment:
    def reset(self, seed):
        return "a", {}
    def step(self, action):
        return "b", 1.0, True, False, {}
    def close(self):
        pass
def make():
    return Environment()
"""
CALL = """
import json, os
import urllib.request


def play(example, endpoint=None):
    body = {"model": "solo", "messages": [{"role": "user", "content": "a"}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()
    return 1.0


if __name__ == "__main__":
    open(os.environ["IPPO_RESULT"], "w").write(str(play(None)))
"""
PROGRAM = {
    "task_id": "1",
    "prompt": "def add(a, b):\n    # the sum\n",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
REWARD = "def score(examples, responses):\n    return {'team': [1.0] * len(examples)}\n"


def nodes(config: schema.Config) -> Iterator[tuple[Any, str]]:
    """Every dataclass of a configuration with the prefix of its keys."""

    def walk(node: Any, prefix: str) -> Iterator[tuple[Any, str]]:
        yield node, prefix
        for leaf in fields(node):
            value = getattr(node, leaf.name)
            if is_dataclass(value):
                yield from walk(value, f"{prefix}{leaf.name}.")
            elif leaf.name == "agents":
                for agent in value.values():
                    yield from walk(agent, f"{prefix}agents.*.")

    yield from walk(config, "")


def keys_of(cls: type[Any], prefix: str) -> Iterator[str]:
    """Leaves of a schema, including those of nested groups."""
    hints = get_type_hints(cls)
    for name, kind in hints.items():
        if name == "agents":
            yield from keys_of(schema.AgentConfig, f"{prefix}agents.*.")
        elif is_dataclass(kind):
            yield from keys_of(kind, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            yield prefix + name


def every_key() -> set[str]:
    groups = {
        **{name: list(kinds.values()) for name, kinds in KINDS.items()},
        **{key: [cls] for key, cls in SINGLE_SCHEMAS.items()},
    }
    found = set(keys_of(schema.RunConfig, ""))
    for group, classes in groups.items():
        for cls in classes:
            found |= set(keys_of(cls, f"{group}."))
    return found


def commands(root: Path, server: str) -> list[list[str]]:
    (root / "held_out.jsonl").write_text(2 * (json.dumps({"prompt": "abc"}) + "\n"))
    (root / "reward.py").write_text(REWARD)
    (root / "my_env.py").write_text(ENVIRONMENT)
    (root / "play.py").write_text(CALL)
    (root / "programs.jsonl").write_text(json.dumps(PROGRAM) + "\n")
    chat = model_folder(root / "chat", "abcdefghi123", chat=True)
    rows = ["task=jsonl", f"task.eval={root / 'held_out.jsonl'}", "task.agents.solo.answer='{prompt}'"]
    short = [f"task.agents.{name}.template='a'" for name in ("helper", "main")]
    programs = ["reward.sandbox=unsafe_local", "reward.workers=1", "reward.timeout_s=10"]
    small = ["task.train_size=4", "task.eval_size=2"]
    return [
        ["task=sorting_solo", "task.alphabet=abcdefgh", "task.length=3", *small],
        ["task=probe_grid", "reward=grid", "task.train_size=4", "task.eval_size=2"],
        [
            "task=jsonl",
            f"task.eval={root / 'held_out.jsonl'}",
            "task.chat_template=true",
            f"actor.model={chat}",
            "reward=function",
            f"reward.function={root / 'reward.py'}:score",
            "task.protocol=dialogue",
            "task.num_turns=2",
            "task.agents.solo.turn_template='a'",
        ],
        [
            "task=jsonl",
            f"task.train={root / 'held_out.jsonl'}",
            "task.eval=null",
            "task.eval_share=0.5",
            "reward=function",
            f"reward.function={root / 'reward.py'}:score",
        ],
        [*rows, "reward=function", f"reward.function={root / 'reward.py'}:score", "reward.process=true"],
        [*rows, "reward=format", "reward.pattern='.*'"],
        [*rows, "reward=length", "reward.high=9"],
        [*rows, "reward=http", f"reward.url={server}"],
        [*rows, "reward=judge", f"reward.url={server}", "reward.model=large", "reward.pattern=null", "reward.field=at"],
        [*rows, "reward=model", f"reward.model={classifier(root / 'classifier', chat)}", "reward.max_tokens=2"],
        [*rows, "reward=mix", "++reward.parts={right: {kind: exact_match}}", "++reward.weights={right: 2.0}"],
        ["task=jsonl", f"task.eval={root / 'programs.jsonl'}", "reward=code", *programs],
        ["task=code_pair", f"task.eval={root / 'programs.jsonl'}", *programs, *short],
        ["task=signalling", "task.train_size=8", "task.eval_size=8"],
        ["task=arithmetic", *small],
        ["task=relay", *small],
        ["task=ladder", *small],
        ["task=gymnasium", "task.env_id=FrozenLake-v1", "task.max_turns=2", *small],
        ["task=pettingzoo", "task.env_id=classic/tictactoe_v3", "task.max_turns=2", *small],
        [
            "task=textarena",
            "task.env_id=SimpleNegotiation-v0",
            "task.payoff='inventory_value.{player}.change'",
            *(f"task.agents.{name}.template=a" for name in ("first", "second")),
            "task.max_turns=2",
            *small,
        ],
        ["task=reasoning_gym", "task.dataset=chain_sum", "task.agents.solver.template=a", *small],
        ["task=program", f"task.program={root / 'play.py'}:play", "task.max_turns=2", *small],
        ["task=program", f"task.command='{sys.executable} {root / 'play.py'}'", *small],
        ["task=environment", f"task.environment={root / 'my_env.py'}:make", "task.max_turns=2", *small],
    ]


def classifier(folder: Path, language_model: Path) -> Path:
    """A reward model with the tokenizer of another model."""
    config = AutoConfig.from_pretrained(language_model, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(language_model).save_pretrained(folder)
    return folder


def score_request(body: Any, _: int) -> ServerAnswer:
    """Responses of a fake scorer and a fake judge."""
    if "rows" in body:
        return ServerAnswer({"rows": [1.0] * len(body["rows"])})
    return ServerAnswer({"choices": [{"message": {"content": '{"at": 2}'}}]})


@pytest.fixture
def server() -> Iterator[str]:
    with serving(score_request) as served:
        yield served.url


def test_every_key_is_used_or_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    model, read = model_folder(tmp_path / "model", "abcdefghi123="), set[str]()
    prefixes: dict[int, str] = {}
    plain = object.__getattribute__

    def watched(node: Any, name: str) -> Any:
        if (prefix := prefixes.get(id(node))) is not None and name in plain(node, "__dataclass_fields__"):
            read.add(prefix + name)
        return plain(node, name)

    kept = []
    for overrides in commands(tmp_path, server):
        config = load_config(
            [
                "actor=full",
                f"actor.model={model}",
                "actor.dtype=fp32",
                f"output_dir={tmp_path}",
                "rollout.max_new_tokens=2",
                "tracker.console=plain",
                "launch.threads=1",
                *overrides,
            ]
        )
        check_config(config, 1, training=False)
        prefixes.clear()
        prefixes.update({id(node): prefix for node, prefix in nodes(config)})
        kept.append(config)
        with monkeypatch.context() as watching:
            for cls in {type(node) for node, _ in nodes(config)}:
                watching.setattr(cls, "__getattribute__", watched)
            evaluate_model(config, overrides)
    known = every_key()
    read &= known
    groups = (".actor.", ".rollout.", ".reward.")  # group values that apply to all agents
    read |= {key.removeprefix("task.agents.*.") for key in read if any(group in key for group in groups)}
    allowed = {key for key in evaluation_keys(of_model=True) if "." in key or key not in ("task", "reward")}
    assert allowed <= known
    elsewhere = {"hub"}  # read when names are resolved to folders, before a configuration is evaluated
    expected = {key for key in allowed - elsewhere if not key.endswith(".kind") and not key.startswith(WITH_ENGINES)}
    assert expected - read == set(), "nothing reads these"
    assert read - allowed == set(WITHOUT_EFFECT), "these have an effect, and are refused"


@pytest.mark.parametrize("of_model", [False, True])
def test_unused_key_is_rejected_with_supported_keys(of_model: bool) -> None:
    allowed = {*evaluation_keys(of_model=of_model)}
    for key in every_key() - allowed:
        typed = key.replace("*", "low")
        with pytest.raises(ConfigError, match="has no effect on") as raised:
            check_evaluation_overrides([f"{typed}=1"], of_model=of_model)
        remedies = ("keys of this group with an effect: ", "groups with an effect: ", "did you mean ")
        assert any(words in str(raised.value) for words in remedies)
    for key in allowed:
        check_evaluation_overrides([f"{key.replace('*', 'low')}=1"], of_model=of_model)

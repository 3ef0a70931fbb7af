"""Normalisation of typed arguments for Hydra."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.compose.arguments import merge_search_paths, normalize_arguments, quote_override
from ippo_cli.compose.diagnose import diagnose_error
from ippo_cli.compose.flags import check_flags
from ippo_cli.compose.load import build_config as typed_config
from ippo_cli.compose.load import compose_node, resolve_config
from ippo_cli.compose.searchpath import search_path_entries
from ippo_cli.config.errors import ConfigError

MINE = """\
defaults:
  - /base/sorting@_here_
  - _self_

agents:
  only:
    template: "{letters}"
    system: null
    answer: "{sorted}"
"""


@pytest.mark.parametrize(
    "value",
    [
        "{question}",
        "Q: {question}\nA:",
        "it's {question}",
        "{a}, {b}",
        "{q} \\",
        "\\'{q}",
        "\\\\'{q}\\\\",
        "a 'b {c}' d",
        "{q}\\n",
        "{{literal}} {q}",
        "漢字 {q}",
    ],
)
def test_typed_template_is_literal(value: str) -> None:
    node = compose_node(normalize_arguments([f"task.agents.low.template={value}"]))
    assert node.task.agents.low.template == value


def test_typed_agents_for_task_file_without_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("duel.yaml").write_text(
        "# @package _global_\ndefaults: [/base/environment, _self_]\ntask: {environment: duel.py:make}\n"
    )
    for typed in (["+task.agents.seer.template={observation}"], ["task.agents={seer:{template:'{observation}'}}"]):
        made = typed_config(resolve_config(compose_node(normalize_arguments(["task=duel.yaml", *typed])))).task.agents
        assert {name: agent.template for name, agent in made.items()} == {"seer": "{observation}"}


@pytest.mark.parametrize(
    "text",
    [
        "seed=1",
        "seed=1,2",
        "reward.processor=[scale,clip]",
        "name='a b'",
        "-m",
        "job",
        "~task.agents.low",
        "=3",
        "task.agents={a:{template:x}}",
    ],
)
def test_quote_override_keeps_valid_overrides(text: str) -> None:
    assert quote_override(text) == text


def test_flags_move_to_the_front() -> None:
    assert normalize_arguments(["seed=1", "--cfg", "job", "--local_rank=3", "num_iterations=2", "-m"]) == [
        "--cfg",
        "job",
        "-m",
        "seed=1",
        "num_iterations=2",
    ]


def test_config_dir(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own" / "task").mkdir(parents=True)
    (tmp_path / "own" / "task" / "mine.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    given = normalize_arguments(["--config-dir=own", "task=mine"])
    for flag in (["--config-dir", "own"], ["-cd", "own"]):
        assert normalize_arguments([*flag, "task=mine"]) == given
    assert list(compose_node(given).task.agents) == ["only"]
    monkeypatch.chdir("/")  # a run is resumed from wherever one stands
    assert list(compose_node(given).task.agents) == ["only"]
    for wrong, expected in (("task=mein", "closest: mine"), ("sede=1", "sede=1 is not a key; did you mean seed")):
        bad = [wrong, given[1]]
        with pytest.raises((HydraException, OmegaConfBaseException)) as raised:
            compose_node(bad)
        assert expected in str(diagnose_error(bad, raised.value))


@pytest.mark.parametrize("given", [["--config-dir=/nope"], ["--config-dir"], ["-cd", "/nope"]])
def test_missing_config_dir(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        normalize_arguments(given)


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("task.train=data.jsonl", "data.jsonl"),
        ("task.eval='my, data.jsonl'", "my, data.jsonl"),
        ("actor.model=model", "model"),
        ("task.agents.low.critic.warm_start=./model", "model"),
        ("reward.function=score.py:score", "score.py:score"),
        ("++reward.parts.mine.function=score.py:score", "score.py:score"),
        ("task.train=score.py:score", "score.py:score"),
        ("task.protocol=score.py:score", "score.py:score"),
        ("+task.environment=score.py:score", "score.py:score"),
    ],
)
def test_paths_become_absolute(typed: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalize_arguments([typed]) == [typed], "there is no such file: a name on the hub, or a module"
    (tmp_path / "model").mkdir()
    for name in ("data.jsonl", "my, data.jsonl", "score.py"):
        (tmp_path / name).touch()
    (made,) = normalize_arguments([typed])
    parsed = OverridesParser.create().parse_override(made)
    assert parsed.value() == str(tmp_path / place)
    assert normalize_arguments([made]) == [made]


def test_path_lists_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).touch()
    both = f"['{tmp_path}/a.jsonl','{tmp_path}/b.jsonl']"
    assert normalize_arguments(["task.train=[a.jsonl,b.jsonl]"]) == [f"task.train={both}"]
    assert normalize_arguments(["task.train=*.jsonl"]) == [f"task.train='{tmp_path}/*.jsonl'"]
    assert normalize_arguments(["task.train=~/a.jsonl"]) == [f"task.train={tmp_path}/a.jsonl"]
    assert normalize_arguments(["task.train=*.csv"]) == ["task.train=*.csv"], (
        "nothing has such a name, which is told later"
    )
    (tmp_path / "rows.py").touch()
    assert normalize_arguments(["task.train=[a.jsonl,rows.py:train]"]) == [
        f"task.train=['{tmp_path}/a.jsonl','{tmp_path}/rows.py:train']"
    ]


@pytest.mark.parametrize("key", ["reward.function", "task.train", "task.protocol"])
def test_module_is_not_a_folder(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert normalize_arguments([f"{key}=mine:rows"]) == [f"{key}=mine:rows"]


@pytest.mark.parametrize("place", ["mine.yaml", "task/mine.yaml", "my files/mine.yml"])
def test_option_by_file(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(MINE)
    monkeypatch.chdir(tmp_path)
    given = normalize_arguments([f"task={place}"])
    monkeypatch.chdir("/")  # a run is resumed from wherever one stands
    assert list(compose_node(given).task.agents) == ["only"]
    with pytest.raises(ConfigError, match=r"^task=nope\.yaml is not a file"):
        normalize_arguments(["task=nope.yaml"])


def test_merge_search_paths(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "task").mkdir(parents=True)
        (tmp_path / name / "task" / f"{name}.yaml").write_text(MINE)
    saved = normalize_arguments([f"--config-dir={tmp_path}/first", "task=first"])
    now = normalize_arguments([f"--config-dir={tmp_path}/second"])
    combined = merge_search_paths([*saved, *now])
    for name in ("first", "second"):
        assert list(compose_node([*combined, f"task={name}"]).task.agents) == ["only"]


def agents(*typed: str) -> dict[str, tuple[str, str | None]]:
    made = typed_config(resolve_config(compose_node(normalize_arguments(typed)))).task.agents
    return {name: (agent.template, agent.answer) for name, agent in made.items()}


def test_replace_add_and_remove_agents() -> None:
    both = (
        """task.agents={solver:{template:"{a}",answer:"it's {b}"},checker:{template:"{b}",actor:{max_grad_norm:2}}}"""
    )
    assert agents("task=jsonl", both) == {"solver": ("{a}", "it's {b}"), "checker": ("{b}", None)}
    made = compose_node(normalize_arguments(["task=jsonl", both])).task.agents
    assert made.checker.actor.max_grad_norm == 2
    assert agents("task=gsm8k", 'task.agents={solver:{template:"x"}}') == {"solver": ("x", None)}, "replaced as a whole"
    for typed in ("task.agents={a:{},b:{}}", "task.agents={a: {}, b: {}}"):  # programs write all messages
        assert agents("task=program", typed) == {"a": ("{observation}", None), "b": ("{observation}", None)}
    assert agents("+task.agents.third.template={letters}", "~task.agents.low") == {
        "high": ("{letters}>", "{high}"),
        "third": ("{letters}", None),
    }
    assert agents("task=jsonl", "+task.agents.b={template:x}", "+task.agents.c.template=y") == {
        "solo": ("{prompt}", None),
        "b": ("x", None),
        "c": ("y", None),
    }
    assert agents("task=sorting_solo", "+task.agents.solo.template=x") == {"solo": ("x", "{sorted}")}


@pytest.mark.parametrize(
    "text",
    ["task.agents={a:{template:{q}}}", "task.agents={}", "task.agents=null", "task.agents=[a]", "task.agents={a:x}"],
)
def test_invalid_typed_agents(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write|put quotes around templates") as raised:
        normalize_arguments([text])
    assert str(raised.value).startswith(text)
    assert 'task.agents={solver:{template:"{question}"}}' in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hydra.run.dir=x", "output_dir= and name="),
        ("hydra.job.chdir=true", "stays unchanged"),
        ("~seed", "seed=VALUE"),
        ("~critic", "critic=VALUE"),
    ],
)
def test_unsupported_overrides(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        normalize_arguments([text])
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hydra.verbose=true"], "has no effect in this program"),
        (["hydra/job_logging=default"], "has no effect in this program"),
        (["hydra/help=x"], "has no effect in this program"),
        (["-m", "hydra.verbose=true", "seed=1,2"], "has no effect in this program"),
        (["hydra/launcher=submitit_slurm", "mode=plan"], "has an effect on sweeps only; add -m"),
        (["hydra.sweep.dir=x"], "has an effect on sweeps only; add -m"),
        (["+hydra.job.name=x"], "has an effect on sweeps only; add -m"),
    ],
)
def test_hydra_keys_without_effect(typed: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        normalize_arguments(typed)


@pytest.mark.parametrize(
    "typed",
    [
        ["-m", "hydra/launcher=basic", "hydra.sweep.dir=x", "hydra.sweeper.max_batch_size=2", "hydra.job.num=1"],
        ["+hydra.job.env_set.A=1"],
        ["resume=outputs/sweep", "hydra/launcher=basic"],
        ["hydra.mode=MULTIRUN", "hydra/launcher=basic"],
    ],
)
def test_hydra_keys_with_effect(typed: list[str]) -> None:
    assert sorted(normalize_arguments(typed)) == sorted(typed)


@pytest.mark.parametrize("key", ["task.agents.low.template", "task.agents.low.system", "name"])
def test_ambiguous_commas_in_a_sweep(key: str) -> None:
    with pytest.raises(ConfigError, match=r"with -m it may be one value or several; quote each value") as raised:
        normalize_arguments(["-m", f"{key}=a{{x}},b{{y}}"])
    for suggestion in (f"""'{key}="a{{x}}","b{{y}}"'""", f"""'{key}='"'"'a{{x}},b{{y}}'"'"''"""):
        assert suggestion in str(raised.value)
    for text in (f'{key}="a{{x}}","b{{y}}"', f"{key}='a{{x}},b{{y}}'", f"{key}='a, b'"):
        assert normalize_arguments(["-m", text]) == ["-m", text]  # valid for Hydra
    assert normalize_arguments([f"{key}=a{{x}},b{{y}}"]) == [f"{key}='a{{x}},b{{y}}'"]  # without -m there is one value


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--seed", "3"], "--seed 3 is not a flag; settings are written without dashes, as key=value; use seed=3"),
        (["--num-iterations=5"], "use num_iterations=5"),
        (["--algorithm", "ppo"], "use algorithm=ppo"),
        (["--lr", "1e-4"], "use actor.learning_rate and critic.learning_rate"),
        (["--seeed=3"], "did you mean seed"),
        (["--deterministic"], "use deterministic=VALUE"),
        (["--config-name=x"], "--config-name is not supported"),
        (["--cfg"], "--cfg needs a value; use --cfg job"),
        (["--cfg", "jobs"], "use --cfg job"),
        (["--resolve"], "--resolve has an effect with --cfg only"),
        (["--package=x", "seed=1"], "--package has an effect with --cfg only"),
        (["--checkpoint", "best"], "use checkpoint=best"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_setting_with_dashes_suggests_override(typed: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_flags(typed, command_keys=["checkpoint"])
    assert message in str(raised.value)


def test_valid_flags() -> None:
    check_flags(["-m", "--cfg", "job", "--resolve", "--cfg=job", "--config-dir", "x", "--local_rank=0", "seed=--1"])


def test_kind_of_one_agent() -> None:
    chosen = normalize_arguments(
        ["task.agents.low.critic=value_head", "task.agents.high.actor=full", "critic=separate"]
    )
    assert chosen == ["task.agents.low.critic.kind=value_head", "task.agents.high.actor.kind=full", "critic=separate"]
    assert normalize_arguments(["task.agents.low.actor.model=x"]) == ["task.agents.low.actor.model=x"]
    low, high = typed_config(resolve_config(compose_node(chosen))).task.agents.values()
    assert (low.critic.kind.value, high.actor.kind.value) == ("value_head", "full")


def test_functions_in_text_keys_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.py").write_text("def solver(example): ...\n")
    Path("level").mkdir()
    full = f"{tmp_path}/prompts.py:solver"
    for key in ("task.filter", "task.map", "task.agents.low.template", "task.agents.low.answer"):
        assert normalize_arguments([f"{key}=prompts.py:solver"])[-1] == f"{key}={full}"
        assert normalize_arguments([f"{key}=level"])[-1] == f"{key}=level", "a text, and not the folder of that name"
    assert compose_node(normalize_arguments(["task=jsonl", "task.columns.question=problem"])).task.columns == {
        "question": "problem"
    }
    node = compose_node(normalize_arguments(["task=jsonl", "task.filter=level == 'easy' and n < 3"]))
    assert node.task.filter == "level == 'easy' and n < 3"


def test_an_option_file_in_a_folder_with_a_comma(tmp_path: Path) -> None:
    file = tmp_path / "a, b" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults: [sorting]\n")
    task, path = normalize_arguments([f"task={file}"])
    assert task == "task=mine"
    assert search_path_entries([path]) == [f"option://task={file}"]

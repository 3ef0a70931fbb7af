"""Warnings about suspicious settings: each rule warns in its case and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.compose.load import config_dir
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.config_warnings import RULES, WarningInputs, config_warnings
from ippo_cli.config.schema import Config
from ippo_cli.config.text import text_width

REAL = ("task=jsonl", "actor=full")
USUAL = {"actor.learning_rate": 1e-6, "critic.learning_rate": 1e-5, "rollout.buffer_size": 128}


def find_warnings(config: Config, rows: int = 7473, **observed: Any) -> dict[str, str]:
    return config_warnings(
        WarningInputs(config=config, batch_sizes=compute_batch_sizes(config, 1, rows), train_rows=rows, **observed)
    )


@pytest.mark.parametrize(
    ("rule", "changes", "more", "words"),
    [
        ("actor_learning_rate", {"actor.learning_rate": 1e-3}, {}, "actor.learning_rate is 0.001, 100 times"),
        ("critic_learning_rate", {"critic.learning_rate": 1e-3}, {}, "critic.learning_rate is 0.001, 100 times"),
        ("few_prompts", {"num_iterations": 20}, {"rows": 127}, "samples 128 prompts and the training data has 127"),
        ("passes", {}, {"rows": 200}, "num_iterations=400 is 256 epochs of the 200 training examples"),
        (
            "passes",
            {"num_iterations": 5, "actor.warmup_iterations": 0},
            {},
            "num_iterations=5 covers 8.6% of the 7473 training examples",
        ),
        ("warmups", {"algorithm.critic_warmup": 400}, {}, "algorithm.critic_warmup=400 covers all iterations (400)"),
        ("warmups", {"actor.warmup_iterations": 500}, {}, "no actor ever reaches the learning rate"),
        ("dry_run", {}, {"dry_run_failure": "my.py:3: KeyError: 'x'"}, "placeholder responses (my.py:3: KeyError"),
        (
            "constant_prompts",
            {"task.agents.solo.template": "my.prompts:solver"},
            {},
            "template='my.prompts:solver' names no field of rows",
        ),
        (
            "constant_prompts",
            {"task.agents.solo.template": "Fix main.py:run now {{}}"},
            {},
            "every row has the same prompt",
        ),
        ("constant_prompts", {"task.agents.solo.template": "jinja:Hi"}, {}, "every row has the same prompt"),
        ("constant_prompts", {"task.agents.solo.answer": "42"}, {}, "every row has the same reference"),
        ("emulated_bf16", {}, {"bf16_slowdown": 34.1}, "a matrix product takes 34 times as long as in float32"),
        ("older_environment", {}, {"newer_environment": "Lake-v1"}, "an older version; Lake-v1 is the newest"),
    ],
)
def test_single_warning(
    rule: str, changes: dict[str, Any], more: dict[str, Any], words: str, config: Callable[..., Config]
) -> None:
    found = find_warnings(
        config(REAL, **USUAL, **changes) if not changes.keys() & USUAL else config(REAL, **USUAL | changes), **more
    )
    assert list(found) == [rule]
    assert words in found[rule]
    assert text_width(f"warning: {found[rule]}") <= 160


def test_warning_merged_adapter_in_bf16(tmp_path: Path, config: Callable[..., Config]) -> None:
    beside = tmp_path / "adapter"
    beside.mkdir()
    given = {**USUAL, "actor.model": str(tmp_path), "critic.dtype": "fp32"}
    assert not find_warnings(config(REAL, **given, **{"actor.dtype": "bf16"}))
    (beside / "adapter_config.json").write_text("{}")
    found = find_warnings(config(REAL, **given, **{"actor.dtype": "bf16"}))
    assert list(found) == ["rounded_merge"]
    assert "use actor.dtype=fp32" in found["rounded_merge"]
    assert not find_warnings(config(REAL, **given, **{"actor.dtype": "fp32"}))
    warm = {**USUAL, "critic.warm_start": str(tmp_path), "critic.dtype": "bf16", "actor.dtype": "fp32"}
    assert "critic.warm_start has an adapter merged" in find_warnings(config(REAL, **warm))["rounded_merge"]


def test_warning_same_rows_in_train_and_eval(tmp_path: Path, config: Callable[..., Config]) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    for file in (one, other):
        file.write_text('{"prompt": "a"}\n')

    def about(train: Any, held_out: Any, **more: Any) -> dict[str, str]:
        return find_warnings(config(REAL, **USUAL, **{"task.train": train, "task.eval": held_out, **more}))

    assert about(str(one), str(other)) == {}
    assert about("owner/name", "owner/name") == {}  # different splits
    assert list(about(str(one), str(one))) == list(about([str(one), str(other)], [str(other)])) == ["same_rows"]
    assert list(about("rows.py:all_rows", "rows.py:all_rows")) == ["same_rows"]
    assert about(str(one), None, **{"task.eval_share": 0.1}) == {}


def test_warning_split_of_a_file(tmp_path: Path, config: Callable[..., Config]) -> None:
    file, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    for written in (file, other):
        written.write_text('{"prompt": "a"}\n')
    files = {"task.train": str(file), "task.eval": str(other)}
    found = find_warnings(config(REAL, **USUAL, **files, **{"task.eval_split": "test[:10]"}))
    assert list(found) == ["unread_split"]
    assert f"all rows of {other} are used" in found["unread_split"]
    named = {"task.train": "owner/name", "task.eval": "owner/name"}
    assert find_warnings(config(REAL, **USUAL, **named, **{"task.train_split": "test[:10]"})) == {}
    assert find_warnings(config(REAL, **USUAL, **files)) == {}


def test_warning_unsafe_sandbox(config: Callable[..., Config]) -> None:
    for kind, rules in (("unsafe_local", ["unsafe_sandbox"]), ("bwrap", [])):
        found = find_warnings(config((*REAL, "reward=code"), **USUAL, **{"reward.sandbox": kind}))
        assert list(found) == rules


def test_warning_identical_prompts(config: Callable[..., Config]) -> None:
    same = {"task.agents.low.template": "{letters}", "task.agents.high.template": "{letters}"}
    assert find_warnings(config(("team=shared_policy",), **same), rows=1024) == {
        "equal_prompts": "low and high share one policy and one prompt, but have different answers; "
        "name the agent in each template"
    }
    assert find_warnings(config(("team=shared_policy",)), rows=1024) == {}
    assert find_warnings(config((), **same), rows=1024) == {}


def test_warning_unknown_characters(
    config: Callable[..., Config],
) -> None:
    mixed = ("task=relay", "task.agents.first.actor.kind=full", "task.agents.first.actor.model=x")
    rate = ("task.agents.first.actor.learning_rate=1e-6", "task.agents.first.critic.learning_rate=1e-5")
    assert find_warnings(config((*mixed, *rate)), rows=1024) == {
        "unknown_characters": "second knows only characters of reference answers (actor.alphabet=auto) and reads "
        "others from first as <unk>; use task.agents.second.actor.alphabet=printable"
    }
    assert find_warnings(config((*mixed, *rate, "task.agents.second.actor.alphabet=printable")), rows=1024) == {}
    assert (
        find_warnings(config((*mixed, *rate, "task.protocol=parallel", "task.agents.second.template=x")), rows=1024)
        == {}
    )


def test_all_warnings_have_a_case() -> None:
    mark = next(mark for mark in test_single_warning.pytestmark)
    assert {case[0] for case in mark.args[1]} | {
        "equal_prompts",
        "rounded_merge",
        "unknown_characters",
        "unsafe_sandbox",
        "same_rows",
        "unread_split",
        "magnitudes",
        "sizes",
    } == set(RULES)


def test_no_warning_for_usual_settings(config: Callable[..., Config]) -> None:
    assert find_warnings(config(REAL, **USUAL)) == {}
    assert find_warnings(config(REAL, **USUAL | {"num_iterations": None, "num_epochs": 60.0})) == {}, (
        "passes that were asked for"
    )


@pytest.mark.parametrize(
    "experiment",
    [(), *[(f"+experiment={path.stem}",) for path in sorted((config_dir() / "experiment").glob("*.yaml"))]],
)
def test_no_warning_for_experiments(experiment: tuple[str, ...], config: Callable[..., Config]) -> None:
    made = config(experiment)
    sizes = {"probe_grid": 56, "openai/gsm8k": 7473}
    source = getattr(made.task, "train", made.task.kind)
    assert find_warnings(made, rows=sizes.get(source, 1024)) == {}


def test_warning_names_the_agent(config: Callable[..., Config]) -> None:
    made = config(("actor=full",), **USUAL)
    made.task.agents["high"].actor.learning_rate = 1e-3
    assert find_warnings(made)["actor_learning_rate"].startswith("actor.learning_rate of high is 0.001")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actor.learning_rate": 0.5}, "actor.learning_rate=0.5; usual values are at most 0.03"),
        ({"actor.learning_rate": 1e-12}, "actor.learning_rate=1e-12; usual values are at least 1e-09"),
        ({"rollout.temperature": 100.0}, "rollout.temperature=100; usual values are at most 5"),
        ({"rollout.temperature": 0.001}, "rollout.temperature=0.001; usual values are at least 0.05"),
        ({"algorithm.entropy_coef": -50.0}, "algorithm.entropy_coef=-50; usual values are at most 1"),
        ({"algorithm.kl.loss.coef": 1000.0}, "algorithm.kl.loss.coef=1000; usual values are at most 10"),
        ({"actor.weight_decay": 100.0}, "actor.weight_decay=100; usual values are at most 1"),
        ({"actor.max_grad_norm": 0.0}, None),
        ({"actor.learning_rate": 0.0}, None),
    ],
)
def test_warning_atypical_values(changes: dict[str, Any], words: str | None, config: Callable[..., Config]) -> None:
    assert find_warnings(config((), **changes)).get("magnitudes") == words


def test_warning_sizes_beyond_data(config: Callable[..., Config]) -> None:
    def about(**changes: Any) -> str | None:
        return find_warnings(config(REAL, **changes), rows=8, held_out_rows=4).get("sizes")

    assert about() is None
    assert about(**{"evaluation.size": 4}) is None
    assert about(**{"evaluation.size": 5}) == "evaluation.size=5 is more than the 4 held-out rows: all rows are used"
    assert about(**{"task.train_size": 9}) == "task.train_size=9 is more than the 8 available rows: all rows are used"
    assert about(**{"task.eval_size": 9}) == "task.eval_size=9 is more than the 4 available rows: all rows are used"

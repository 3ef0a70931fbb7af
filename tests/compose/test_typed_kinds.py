"""`GROUP.kind=` on a command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.diagnose import check_overrides
from ippo_cli.compose.load import load_config
from ippo_cli.compose.mistakes import find_saved_overrides
from ippo_cli.compose.typed_kinds import KIND_KEYS, check_typed_kinds, kinds_of_options
from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError

WRONG = [  # the last override is refused; the options that have this kind
    (["task=sorting", "task.kind=probe_letters"], "use task=probe_conditional or task=probe_constant"),
    (["tracker.kind=none"], "use tracker=none"),
    (["reward=gsm8k", "++reward.kind=exact_match"], "use reward=exact_match"),
    (["actor.kind=lora"], "use actor=lora"),
    (["critic.kind=value_head"], "use critic=value_head"),
    (["rollout.kind=vllm"], "use rollout=vllm"),
    (["team.kind=shared_base"], "use team=shared_base"),
    (["sweep.kind=optuna"], "use sweep=optuna or sweep=ppo_learning_rates or sweep=ppo_pretrained"),
    (["critic.kind=none,value_head"], "use critic=none or critic=value_head"),
    (["rollout.kind=sglang"], "use rollout=OPTION: engine hf openai_server vllm"),
]


@pytest.mark.parametrize(("overrides", "remedy"), WRONG, ids=lambda value: value[-1] if isinstance(value, list) else "")
def test_other_kind_is_refused_with_the_options_that_have_it(overrides: list[str], remedy: str) -> None:
    group = overrides[-1].lstrip("+").partition(".")[0]
    expected = f"{overrides[-1]} cannot be set alone: the option of {group} has it; {remedy}"
    with pytest.raises(ConfigError) as raised:
        check_typed_kinds([*overrides, "--cfg", "job"])
    assert str(raised.value) == expected
    errors, good = check_overrides([*overrides, "seeed=3"], sweeps=True)
    assert expected in map(str, errors)
    assert len(errors) == 2  # no error of a key that the other kind lacks
    assert overrides[-1] not in good


def test_kind_of_the_chosen_option_is_harmless() -> None:
    chosen = ["tracker=none", "reward=gsm8k"]
    same = ["tracker.kind=none", "reward.kind='gsm8k'", "task.kind=sorting"]
    check_typed_kinds([*chosen, *same])
    check_typed_kinds(["tracker.kind=none"], base=chosen)
    assert load_config([*chosen, *same]) == load_config(chosen)


def test_files_and_saved_overrides_may_hold_a_kind(tmp_path: Path) -> None:
    own = tmp_path / "plain.yaml"
    own.write_text("defaults: [exact_match, _self_]\nkind: exact_match\n")
    assert load_config(normalize_arguments([f"reward={own}"])).reward.kind == "exact_match"
    with pytest.raises(ConfigError, match=r"use reward=gsm8k$"):
        check_typed_kinds(normalize_arguments([f"reward={own}", "reward.kind=gsm8k"]))
    (tmp_path / "overrides.json").write_text(json.dumps(["tracker.kind=none"]))
    saved = find_saved_overrides([f"resume={tmp_path}"])
    check_typed_kinds(["seed=1"], saved)
    assert load_config(saved).tracker.kind == "none"


def test_every_group_with_kinds_has_an_option_for_each() -> None:
    for group in (key.removesuffix(".kind") for key in KIND_KEYS):
        assert {kind for _, kind in kinds_of_options(group, [])} == set(schema.OPTIONS[group])

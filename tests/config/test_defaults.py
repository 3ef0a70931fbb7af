"""Default values: those of the small model, and published values for pretrained models."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ippo_cli.compose.load import compose_node, config_dir, iter_leaves, load_config, resolve_config
from ippo_cli.compose.user_files import check_user_files
from ippo_cli.config.checks import check_config
from ippo_cli.config.marked_keys import is_mapping_key
from ippo_cli.config.schema import Config, SeparateCriticConfig

MODEL = ("actor=full", "actor.model=some/model")
DATA = ("task=jsonl", "task.train=train.jsonl", "task.eval=test.jsonl")
FUNCTION = ("reward=function", "reward.function=reward.py:score")
ALGORITHMS = ("ippo", "ppo", "grpo", "actor_critic", "turn_ppo")  # the others start from these pieces


@cache
def composed(*overrides: str) -> Config:
    config = load_config(overrides)
    check_config(config, 1)
    return config


def test_default_job_spelled_out() -> None:
    assert composed("algorithm=ippo", "critic=separate") == composed()
    assert composed("task=sorting", "actor=tiny", "reward=exact_match", "rollout=hf") == composed()


def assert_fit_for_a_pretrained_model(config: Config) -> None:
    """Check that rates and sizes have the published order of magnitude for pretrained models."""
    for agent in config.task.agents.values():
        assert 1e-7 <= agent.actor.learning_rate <= 1e-5
        critic_rate = getattr(agent.critic, "learning_rate", None)
        assert critic_rate is None or agent.actor.learning_rate <= critic_rate <= 5e-5
        assert agent.actor.warmup_iterations > 0
    assert config.rollout.max_new_tokens >= 256
    assert config.rollout.buffer_size == 256
    assert config.num_epochs is not None or (config.num_iterations or 0) >= 200
    assert config.evaluation.every >= 50
    assert config.checkpoint.every >= 50
    assert config.algorithm.gae_lambda in (None, 1.0) or config.algorithm.credit.value == "turn" or embodied(config)


def embodied(config: Config) -> bool:
    """Whether the values are those published for agents with many turns."""
    algorithm = config.algorithm
    found = (algorithm.gamma, algorithm.gae_lambda, algorithm.huber_delta, algorithm.value_clip_range)
    return found == (0.99, 0.95, 10.0, 0.2)


def test_embodied_preset_has_published_values() -> None:
    for actor in ((), MODEL):
        config = composed("+experiment=embodied", *actor)
        assert embodied(config)
        assert config.critic.kind.value == "value_head"
        assert config.reward.kind == "environment"
        assert (config.reward.team_weight, config.reward.agent_weight) == (0.0, 1.0)


def test_environments_use_printable_alphabet() -> None:
    for task, name in {
        "gymnasium": "task.env_id=FrozenLake-v1",
        "pettingzoo": "task.env_id=classic/tictactoe_v3",
        "reasoning_gym": "task.dataset=chain_sum",
        "textarena": "task.env_id=SimpleNegotiation-v0",
        "openenv": "task.url=http://127.0.0.1:8000",
        "environment": "task.environment=my_env.py:make",
    }.items():
        assert composed(f"task={task}", name).actor.alphabet.value == "printable"  # type: ignore[attr-defined]
        assert composed(f"task={task}", name, *MODEL).actor.kind.value == "full"
    assert composed().actor.alphabet.value == "auto"  # type: ignore[attr-defined]


@pytest.mark.parametrize("header", ["", "# @package _global_\n"])
def test_task_file_based_on_environment(header: str, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    own = "environment: duel.py:make\nagents:\n  seer: {template: '{observation}>'}\n"
    body = own if not header else "task:\n  " + own.replace("\n", "\n  ").rstrip() + "\n"
    (tmp_path / "task" / "duel.yaml").write_text(f"{header}defaults: [/base/environment, _self_]\n{body}")
    overrides = [f"hydra.searchpath=[{tmp_path}]", "task=duel"]
    check_user_files(overrides)
    made, own_of = composed(*overrides), composed("task=environment", "task.environment=x.py:y")
    assert list(made.task.agents) == ["seer"]
    assert (made.actor, made.reward, made.rollout) == (own_of.actor, own_of.reward, own_of.rollout)
    assert made.task.environment == "duel.py:make"  # type: ignore[attr-defined]
    assert composed(*overrides, *MODEL).actor.kind.value == "full"


def test_task_file_based_on_environment_option(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "lake.yaml").write_text("defaults: [gymnasium, _self_]\nenv_id: FrozenLake-v1\n")
    made = composed(f"hydra.searchpath=[{tmp_path}]", "task=lake")
    assert made.actor == composed("task=gymnasium", "task.env_id=FrozenLake-v1").actor
    assert made.task.env_id == "FrozenLake-v1"  # type: ignore[attr-defined]


def test_warm_start_steps_of_environments() -> None:
    lake = composed("task=gymnasium", "task.env_id=FrozenLake-v1").actor
    game = composed("task=pettingzoo", "task.env_id=classic/tictactoe_v3").actor
    assert lake == game
    assert lake.warm_start_steps >= 200  # type: ignore[attr-defined]
    assert composed().actor.warm_start_steps == 16  # type: ignore[attr-defined]
    with_own = composed("task=gymnasium", "task.env_id=FrozenLake-v1", "actor.warm_start_steps=7").actor
    assert with_own.warm_start_steps == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_of_pretrained_models(algorithm: str) -> None:
    config = composed(*MODEL, *DATA, *FUNCTION, f"algorithm={algorithm}")
    assert_fit_for_a_pretrained_model(config)


@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_critic_defaults_follow_the_actor(critic: str) -> None:
    assert composed("algorithm=ppo", f"critic={critic}").critic.learning_rate == 1e-3  # type: ignore[attr-defined]
    full = composed("algorithm=ppo", f"critic={critic}", *MODEL, *DATA, *FUNCTION)
    assert full.critic.learning_rate == 1e-5  # type: ignore[attr-defined]


def test_typed_values_override_actor_and_task() -> None:
    typed = (
        "critic.learning_rate=3e-4",
        "num_iterations=7",
        "rollout.buffer_size=64",
        "rollout.max_new_tokens=9",
        "evaluation.every=3",
        "checkpoint.every=4",
        "algorithm.gae_lambda=0.5",
    )
    for choice in ((), ("task=gsm8k", *MODEL)):
        for overrides in ((*choice, *typed), (*typed, *choice)):
            config = composed(*overrides)
            assert config.critic.learning_rate == 3e-4  # type: ignore[attr-defined]
            assert (config.num_iterations, config.algorithm.gae_lambda) == (7, 0.5)
            assert (config.rollout.buffer_size, config.rollout.max_new_tokens) == (64, 9)
            assert (config.evaluation.every, config.checkpoint.every) == (3, 4)


def test_gsm8k_defaults() -> None:
    config = composed("task=gsm8k", *MODEL)
    assert_fit_for_a_pretrained_model(config)
    assert (config.reward.kind, config.reward.match.value) == ("gsm8k", "strict")  # type: ignore[attr-defined]
    assert config.task.primary_metric == "greedy/score"
    assert config.rollout.max_new_tokens == 512
    task = config.task
    assert (task.train, task.eval, task.data_config) == ("openai/gsm8k", "openai/gsm8k", "main")  # type: ignore[attr-defined]
    assert (task.train_split, task.eval_split, task.chat_template) == ("train", "test", "auto")  # type: ignore[attr-defined]


@pytest.mark.parametrize("reward", [FUNCTION, ("reward=exact_match",)])
def test_typed_reward_overrides_task(reward: tuple[str, ...]) -> None:
    for overrides in (("task=gsm8k", *MODEL, *reward), (*reward, "task=gsm8k", *MODEL)):
        assert composed(*overrides).reward.kind == reward[0].partition("=")[2]


def test_other_tasks_do_not_keep_gsm8k_defaults() -> None:
    assert composed(*DATA, *MODEL, *FUNCTION).task.primary_metric == "sampled/score"
    assert composed("task=sorting", *MODEL).reward.kind == "exact_match"


def test_experiment_overrides_actor_defaults() -> None:
    config = composed("+experiment=probe_grid")
    assert (config.num_iterations, config.rollout.buffer_size, config.evaluation.every) == (300, 256, 0)


def test_actor_defaults_are_known_keys() -> None:
    known = {name for name, _ in iter_leaves(resolve_config(compose_node([])))}
    by_actor = config_dir() / "base" / "by_actor"
    files = {"run": ""} | {
        group: f"{group}." for group in ("critic", "algorithm", "rollout", "evaluation", "checkpoint")
    }
    files["monte_carlo"] = "algorithm."  # for presets with Monte-Carlo values
    files["length_adaptive"] = "algorithm."  # for presets with a lambda by response length
    assert {path.parent.name for path in by_actor.glob("*/*.yaml")} == {*files}
    assert {path.parent.name for path in (config_dir() / "base").glob("*/*.yaml")} == {"actor"}
    kinds = {file.stem for file in (config_dir() / "base/actor").iterdir()}
    chosen = {
        str(entry["override /base/kind"])
        for file in (config_dir() / "base").glob("*.yaml")
        for entry in OmegaConf.load(file).get("defaults", [])
        if "override /base/kind" in entry
    }
    assert (
        kinds
        == chosen
        == {"gymnasium", "pettingzoo", "reasoning_gym", "textarena", "openenv", "environment", "program"}
    )
    for folder, prefix in files.items():
        for file in (by_actor / folder).glob("*.yaml"):
            assert (config_dir() / "actor" / file.name).is_file(), "it is looked up by the actor's name"
            values = OmegaConf.to_container(OmegaConf.load(file))
            names = {f"{prefix}{name}" for name, _ in iter_leaves(values) if name != "defaults"}
            given = {"algorithm.advantage_args" if is_mapping_key(name) else name for name in names}
            assert given <= known, file


def test_sao_settings_of_critics() -> None:
    """They depend on the critic, so they are looked up by the algorithm's name in the files of critics."""
    for file in (config_dir() / "base" / "by_algorithm").glob("*/*.yaml"):
        assert (config_dir() / "algorithm" / file.name).is_file()
    for critic in ("separate", "centralized"):
        made = composed("algorithm=sao", f"critic={critic}").critic
        assert isinstance(made, SeparateCriticConfig)
        assert (made.ppo_epochs, made.freeze) == (2, ["*attn*"])
        for overrides in (("algorithm=sao", "critic.freeze=[]"), ("algorithm=vapo",)):
            assert getattr(composed(*overrides, f"critic={critic}").critic, "freeze", None) == []
    adapter = composed("algorithm=sao", "actor=tiny_lora", "critic=adapter").critic
    assert getattr(adapter, "ppo_epochs", None) == 2
    assert not hasattr(adapter, "freeze")


def test_lambda_by_response_length_of_small_actors() -> None:
    for name in ("sao", "vapo"):
        small, large = composed(f"algorithm={name}"), composed(f"algorithm={name}", *DATA, *MODEL, *FUNCTION)
        assert (small.algorithm.length_adaptive_alpha, large.algorithm.length_adaptive_alpha) == (2.5, 0.05)
        assert small.algorithm.gae_lambda is None
        assert large.algorithm.gae_lambda is None


def test_user_actor_has_pretrained_defaults(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "mine.yaml").write_text("defaults: [full, _self_]\nmodel: some/model\n")
    config = composed(f"hydra.searchpath=[file://{tmp_path}]", "actor=mine", *DATA, *FUNCTION)
    assert_fit_for_a_pretrained_model(config)


def test_user_option_overrides_actor_defaults(tmp_path: Path) -> None:
    for group, text in {
        "evaluation": "defaults: [default, _self_]\nevery: 3\n",
        "checkpoint": "defaults: [default, _self_]\nevery: 4\n",
        "rollout": "defaults: [hf, _self_]\nbuffer_size: 64\n",
    }.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [ippo@algorithm, _self_]\nnum_iterations: 30\nrollout: {max_new_tokens: 5}\n"
    )
    found = composed(
        f"hydra.searchpath=[{tmp_path}]", "evaluation=mine", "checkpoint=mine", "rollout=mine", "algorithm=mine"
    )
    assert (found.evaluation.every, found.checkpoint.every, found.rollout.buffer_size) == (3, 4, 64)
    assert (found.num_iterations, found.rollout.max_new_tokens) == (30, 5)

"""Keys of other projects have suggestions, which name existing keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from ippo_cli.compose.aliases import (
    PEERS_FILE,
    SuggestionKind,
    find_suggestion,
    read_earlier_names,
    read_option_names,
    read_projects,
)
from ippo_cli.compose.diagnose import check_overrides, config_groups
from ippo_cli.compose.explain import explain_key
from ippo_cli.compose.load import compose_node, config_dir, iter_leaves, load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError

Make = Callable[..., Any]
CASES = [
    *(("an earlier version", theirs, answer) for theirs, answer in read_earlier_names().items()),
    *((name, theirs, answer) for name, project in read_projects().items() for theirs, answer in project.keys.items()),
]


@pytest.fixture(scope="module")
def keys(plain: Make) -> set[str]:
    """Every dotted key that some choice of groups has."""
    choices = [
        (),
        ("task=jsonl", "actor=full", "reward=function"),
        ("critic=value_head",),
        ("actor=tiny_lora", "critic=adapter", "team=shared_base"),
        ("task=gymnasium",),
        ("task=environment",),
        ("tracker=wandb",),
        ("tracker=mlflow",),
        ("reward=model",),
        ("reward=http",),
        ("reward=mix",),
        ("reward=code",),
        ("reward=number", "task=arithmetic"),
        ("reward=judge",),
        ("rollout=vllm",),
    ]
    return {name for choice in choices for name, _ in iter_leaves(plain(choice))}


def test_suggestions_name_existing_keys(keys: set[str]) -> None:
    wrong: list[tuple[str, str]] = []
    for _, theirs, answer in CASES:
        words = re.sub(r"\([^)]*\)", "", answer.text)
        for word in re.findall(r"(?<![\w./<>=])[a-z_]+(?:\.(?:[a-z_0-9]+|<name>))+", words):
            solo = word.replace("<name>", "solo")
            if word.endswith((".py", ".md")) or word.startswith("sweep."):
                continue
            # Arguments of the loader, of vLLM and of estimators, which no schema lists.
            if solo.startswith(("actor.model_args.", "rollout.vllm.engine_args.", "algorithm.advantage_args.")):
                continue
            if solo not in keys and word != "task.agents" and not any(key.startswith(f"{solo}.") for key in keys):
                wrong.append((theirs, word))
        for group, option in re.findall(r"(?<![\w.])([a-z_]+)=([a-z_0-9]+)", words):
            if group in config_groups() and not (config_dir() / group / f"{option}.yaml").is_file():
                wrong.append((theirs, f"{group}={option}"))
        if answer.kind is SuggestionKind.use and re.fullmatch(r"[a-z_]+", answer.text) and answer.text not in keys:
            wrong.append((theirs, answer.text))
    assert wrong == []


@pytest.fixture(scope="module")
def answer_of() -> Callable[[str], str]:
    """The error for a typed key; empty for an existing key or group."""
    node, options = compose_node([]), config_groups()
    known = [key for key, _ in iter_leaves(OmegaConf.to_container(node, resolve=False)) if not key.startswith("hydra.")]

    def answer(key: str) -> str:
        ours = key in known or key in options or OmegaConf.select(node, key, throw_on_missing=False) is not None
        return "" if ours else str(explain_key(f"{key}=1", key, node, known, options))

    return answer


def test_table_keys_get_their_suggestion(answer_of: Callable[[str], str]) -> None:
    answers = {theirs: [entry.text for _, other, entry in CASES if other == theirs] for _, theirs, _ in CASES}
    guessed: list[tuple[str, str]] = []
    for name, theirs, _ in CASES:
        roots = read_projects()[name].roots if name in read_projects() else ()
        for key in [theirs, *(f"{root}.{theirs}" for root in roots[:1])]:
            message = answer_of(key)
            of_another_kind = " is not a key of " in message  # the key exists with another option of its group
            named = any(text in message or text.rpartition(".")[2] == key for text in answers[theirs])
            if message and not named and not of_another_kind:
                guessed.append((key, message))
    assert guessed == []


SEEDS = {
    "CoMLRL": """output_dir actor_learning_rate critic_learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon
        max_grad_norm rollout_buffer_size mini_batch_size ppo_epochs value_clip_range value_loss_coef entropy_coef
        advantage_normalization max_new_tokens temperature top_p top_k do_sample num_train_epochs
        per_device_train_batch_size use_separate_critic critic_model_name_or_path critic_value_head_hidden_dim
        value_head_hidden_dim num_agents num_turns reward_norm_eps model tokenizer reward_func reward_processor
        formatters args train_dataset eval_dataset model_config wandb_config metrics_callback""",
    "verl": """data.train_batch_size actor_rollout_ref.rollout.n actor_rollout_ref.actor.ppo_mini_batch_size
        critic.ppo_mini_batch_size actor_rollout_ref.actor.clip_ratio actor_rollout_ref.actor.ppo_epochs
        algorithm.gemma algorithm.lam algorithm.adv_estimator actor_rollout_ref.actor.use_kl_loss
        actor_rollout_ref.actor.kl_loss_coef actor_rollout_ref.actor.kl_loss_type algorithm.use_kl_in_reward
        algorithm.kl_penalty algorithm.kl_ctrl.kl_coef algorithm.kl_ctrl.type algorithm.kl_ctrl.horizon
        algorithm.kl_ctrl.target_kl actor_rollout_ref.actor.clip_ratio_c trainer.n_gpus_per_node
        actor_rollout_ref.rollout.tensor_model_parallel_size trainer.logger critic.model.path
        actor_rollout_ref.model.path actor_rollout_ref.actor.ppo_micro_batch_size critic.ppo_micro_batch_size
        custom_reward_function.path actor_rollout_ref.rollout.name trainer.project_name trainer.save_freq""",
    "RLinf": """algorithm.normalize_advantages algorithm.group_size algorithm.adv_type algorithm.loss_type
        algorithm.loss_agg_func algorithm.rollout_micro_batch_size algorithm.logprob_forward_micro_batch_size
        algorithm.entropy_bonus algorithm.clip_ratio_high algorithm.clip_ratio_low algorithm.value_clip
        algorithm.huber_delta algorithm.gamma algorithm.gae_lambda algorithm.clip_ratio_c cluster.num_nodes
        cluster.component_placement actor.group_name actor.training_backend critic.use_critic_model
        critic.group_name critic.training_backend""",
    "AgileRL": """pad_token_id pad_token model_name actor_network model_config hp_config index batch_size beta vf_coef
        clip_coef gamma gae_lambda lr_actor lr_critic max_grad_norm update_epochs temperature repetition_penalty top_p
        top_k min_p use_separate_reference_adapter calc_position_embeddings micro_batch_size_per_gpu max_output_tokens
        min_output_tokens max_model_len hf_generate_chunk_size lora_config cosine_lr_schedule_config accelerator device
        wrap clone use_vllm use_memory_efficient_params vllm_config seed turn_level_clip action_granularity
        turn_value_reduction adv_whitening gradient_checkpointing torch_compiler pop max_turns env_factory env max_steps
        evaluation_interval reward_fn conversation_template data_batch_size_per_gpu train_dataset test_dataset loop
        load_optimizer overwrite_reference_adapter overwrite_critic_adapter merge_lora_configs lora_only save_optimizer
        reference_update_tracker observation_space action_space""",
}


# Typed keys and the key here; without an entry they had no answer, that of another part, or an outdated one.
ANSWERS = """
actor_rollout_ref.ref.model actor.reference
actor_rollout_ref.model.override_config actor.model_args
actor_rollout_ref.actor.fsdp_config.mixed_precision actor.dtype
actor_rollout_ref.rollout.enable_prefix_caching rollout.vllm.engine_args.enable_prefix_caching
actor_rollout_ref.rollout.multi_turn.tool_config_path task.agents.<name>.tools
actor_rollout_ref.actor.use_rollout_log_probs algorithm.ratio_base
critic.optim.lr_warmup_steps_ratio critic.warmup_iterations
critic.optim.weight_decay critic.weight_decay
critic.model.enable_gradient_checkpointing critic.gradient_checkpointing
critic.model.lora_rank critic.rank
reward_model.use_dynamic_bsz reward.batch_tokens
reward_model.n_gpus_per_node launch.placement
reward_model.reward_kwargs.overlong_buffer_cfg.len algorithm.truncation_ramp
algorithm.rollout_is_level algorithm.behavior_correction.level
data.apply_chat_template_kwargs task.agents.<name>.chat_template_args
colocate_all_models launch.placement
ref_num_nodes launch.placement
vllm_tensor_parallel_size rollout.vllm.engine_args.tensor_parallel_size
async_train rollout.ahead
max_ckpt_num checkpoint.keep
max_epochs algorithm.ppo_epochs
runner.max_epochs num_epochs
ring_attn_size deepspeed.sequence_parallel
entropy_loss_coef algorithm.entropy_coef
reward_clip_range reward.clip_low
eval_n_samples_per_prompt evaluation.num_generations
chat_template_kwargs task.agents.<name>.chat_template_args
vllm_server_base_url rollout.vllm.url
vllm_importance_sampling_cap algorithm.behavior_correction.cap
model_init_kwargs actor.model_args
resume_from_checkpoint resume
peft_config actor.rank
use_dora actor.use_dora
enforce_eager rollout.vllm.enforce_eager
load_in_4bit actor.model_args.load_in_4bit
do_sample rollout.top_k=1
save_optimizer checkpoint.optimizer
grpo.num_prompts_per_step rollout.buffer_size
loss_fn.reference_policy_kl_penalty algorithm.kl.loss.coef
loss_fn.ratio_clip_c algorithm.dual_clip
policy.generation_batch_size rollout.decode_batch_size
policy.generation.vllm_cfg.tensor_parallel_size rollout.vllm.engine_args.tensor_parallel_size
policy.dtensor_cfg.tensor_parallel_size deepspeed.tensor_parallel
policy.optimizer.kwargs.lr actor.learning_rate
checkpointing.checkpoint_must_save_by checkpoint.save_deadline
cluster.gpus_per_node launch.processes
data.max_input_seq_length rollout.max_prompt_tokens
"""


@pytest.mark.parametrize("pair", ANSWERS.strip().splitlines())
def test_typed_key_has_the_key_here(pair: str, answer_of: Callable[[str], str]) -> None:
    key, ours = pair.split()
    answer = answer_of(key)
    assert ours in answer
    assert "did you mean" not in answer


def test_fp16_has_no_counterpart() -> None:
    found = find_suggestion("fp16")
    assert found is not None
    assert found.kind is SuggestionKind.absent


@pytest.mark.parametrize("project", SEEDS)
def test_documented_keys_have_a_suggestion(project: str, keys: set[str]) -> None:
    typed = SEEDS[project].split()
    assert [key for key in typed if key not in keys and find_suggestion(key) is None] == []


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("custom_reward_function.path", "use reward=function reward.function=path.py:function"),
        ("actor_rollout_ref.rollout.name", "use rollout=hf, rollout=vllm"),
        ("rollout.enforce_eager", "use rollout=vllm rollout.vllm.enforce_eager"),
        ("log_prob_micro_batch_size_per_gpu", "use deepspeed.forward_batch_tokens"),
        ("logprob_forward_micro_batch_size", "use deepspeed.forward_batch_tokens"),
        ("save_optimizer", "use checkpoint.optimizer"),
        ("VERL_USE_MODELSCOPE", "use hub=modelscope"),
        ("trainer.no_such_key", "docs/migrating.md lists those with a counterpart here"),
        ("cluster.no_such_key", "docs/migrating.md lists those with a counterpart here"),
        ("batch_size", "use algorithm.mini_batch_size"),
        ("trust_remote_code", "code that comes with a model is not executed"),
    ],
)
def test_no_similar_key_for_other_projects(key: str, answer: str, answer_of: Callable[[str], str]) -> None:
    result = answer_of(key)
    assert answer in result
    assert "did you mean" not in result


@pytest.mark.parametrize("name", read_projects())
def test_commands_for_users_of_a_project_pass_the_checks(name: str) -> None:
    for _, command in read_projects()[name].runs:
        program, *overrides = command.split()
        assert program == "ippo-train"
        check_config(load_config(overrides), 1)


def test_longer_names_win() -> None:
    for key, target in {
        "algorithm.kl_ctrl.target_kl": "algorithm.kl.reward.target",
        "actor_rollout_ref.rollout.n": "rollout.num_generations",
        "data.train_batch_size": "rollout.buffer_size",
        "train_batch_size": "algorithm.mini_batch_size",
        "actor_rollout_ref.model.path": "actor=full actor.model",
        "actor_rollout_ref.actor.optim.lr": "actor.learning_rate",
        "critic.optim.lr": "critic.learning_rate",
        "critic.model.path": "critic.model",
        "data.train_files": "task.train",
        "model_name_or_path": "actor=full actor.model",
        "ACTOR_ROLLOUT_REF.ACTOR.PPO_MINI_BATCH_SIZE": "algorithm.mini_batch_size",
    }.items():
        found = find_suggestion(key)
        assert found is not None
        assert found.text.startswith(target)


def test_unknown_name_has_no_suggestion() -> None:
    assert find_suggestion("no.such.key") is None
    assert find_suggestion("n") is None


def test_table_keys_are_unique_and_lower_case() -> None:
    by_project: dict[str, list[str]] = {}
    project = ""
    for line in PEERS_FILE.read_text().splitlines():
        if heading := re.fullmatch(r"  ([\w-]+):", line):
            project = heading[1]
        elif entry := re.match(r"      ([\w.]+): ", line):
            by_project.setdefault(project, []).append(entry[1])
    for names in by_project.values():
        assert len(names) == len(set(names))
        assert all(name == name.lower() and name.count(".") <= 2 for name in names)
    assert yaml.safe_load(PEERS_FILE.read_text())["projects"].keys() == read_projects().keys()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+actor.lora_dropout=0.1", "actor.lora_dropout has no counterpart here (TRL has it); responses are sampled"),
        ("++actor.bias=all", "actor.bias has no counterpart here (PEFT has it); biases belong to the base"),
        ("+actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.name is not a key here (verl has it)"),
        ("+actor.unknown=1", "actor.unknown is an unknown key; use one of kind model revision "),
        ("+plan.tflops=989", "plan.tflops was removed; a plan computes no seconds; a run with num_iterations=3"),
        ("+plan.mfu=0.4", "plan.mfu was removed; a plan computes no seconds; a run with num_iterations=3"),
    ],
)
def test_appended_key_of_another_project_has_its_answer(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(["actor=tiny_lora", override])
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("group", sorted(read_option_names()))
def test_options_of_other_projects_name_existing_options(group: str) -> None:
    for suggestion in read_option_names()[group].values():
        if suggestion.kind is SuggestionKind.use:
            assert suggestion.text in config_groups()[group]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("algorithm=PPO", "closest: ppo;"),
        ("algorithm=sac", "off-policy algorithms"),
        ("tracker=tb", "use tracker=tensorboard"),
        ("deepspeed=fsdp", "use deepspeed=zero3"),
    ],
)
def test_answers_to_options_of_other_projects(text: str, remedy: str) -> None:
    [error], _ = check_overrides([text])
    assert remedy in str(error)
    assert "sao" not in str(error)[:60]

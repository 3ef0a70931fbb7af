"""`mode=plan`: its estimates match a run, and it raises the same errors as training."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from folders import SEVEN_B, weightless_folder
from small import small_config

from ippo_cli.compose.load import build_config, compose_node, resolve_config, to_yaml
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError, IppoError, PreflightError
from ippo_cli.config.hardware import world_size
from ippo_cli.config.schema import Config
from ippo_cli.planning.fit import sharding_options
from ippo_cli.planning.memory import GIB
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.planning.model_specs import ModelSpecs, read_model_specs
from ippo_cli.planning.plan import show_memory, show_plan
from ippo_cli.planning.prepare import Prepared, Purpose, load_task_and_reward, prepare, prompt_warnings
from ippo_cli.planning.resources import (
    estimate_run_memory,
    memory_error,
    memory_warning,
    planned_machine,
    required_disk_bytes,
    this_machine,
)
from ippo_cli.planning.run_memory import Machine, RunMemory
from ippo_cli.runs.folder import reserve_folder, write_start_files
from ippo_cli.tasks.task import load_task
from ippo_cli.training.process import run_training

HUGE = SEVEN_B | {
    "hidden_size": 32768,
    "intermediate_size": 131072,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
}


def jsonl_overrides(root: Path, model: Path, *more: str) -> list[str]:
    data = root / "data.jsonl"
    data.write_text("".join(f'{{"question": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(32)))
    return [
        "task=jsonl",
        f"task.train={data}",
        f"task.eval={data}",
        "task.agents.solo.template='{question} = '",
        "task.agents.solo.answer='{answer}'",
        "actor=full",
        f"actor.model={model}",
        "rollout.buffer_size=32",
        "tracker.console=plain",
        f"output_dir={root}",
        *more,
    ]


def jsonl_config(root: Path, model: Path, *more: str) -> Config:
    config = build_config(resolve_config(compose_node(jsonl_overrides(root, model, *more))))
    check_config(config, config.launch.processes)
    return config


def needs(config: Config, ranks: int = 1) -> tuple[ModelSpecs, MemoryEstimate]:
    task = load_task(config.task, config.seed)
    material = read_model_specs(config, task)
    return material, estimate_run_memory(
        config, compute_batch_sizes(config, ranks, len(task.train)), task, material, ranks, "cpu"
    )


def on_all_ranks(memory: MemoryEstimate, ranks: int) -> RunMemory:
    return RunMemory({tuple(range(ranks)): memory})


def prepare_quietly(config: Config, ranks: int, device: str) -> Prepared:
    lines: list[str] = []
    task, reward = load_task_and_reward(config, ranks, Purpose.plan, lines.append)
    return prepare(config, ranks, device, task, reward, report=lines.append)


def both_refuse(root: Path, config: Config, overrides: Sequence[str], yaml: str) -> IppoError:
    """The error of training, after asserting that the plan's is the same."""
    with pytest.raises(IppoError) as planned:
        show_plan(config)
    folder = reserve_folder(root / "run")
    write_start_files(folder, yaml, list(overrides), ["ippo-train"], resumed=False)
    with pytest.raises(IppoError) as trained:
        run_training(config, folder, resumed=False)
    assert str(planned.value) == str(trained.value)
    assert planned.value.exit_code == trained.value.exit_code
    return planned.value


def test_plan_shows_models_phases_and_prompts(tmp_path, capsys) -> None:
    config, _ = small_config(tmp_path, "algorithm.kl.reward.coef=0.1", "actor.warmup_iterations=0")
    show_plan(config)
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert max(map(len, lines)) <= 100
    for label in ("low actor", "low critic", "low reference", "high actor"):
        assert sum(line.startswith(label) for line in lines) == 1, label
    assert "load " in output
    assert "rollout " in output
    assert "targets " in output
    assert "update " in output
    assert sum(line.startswith("low prompt") for line in lines) == 2
    assert "warning" not in output


def test_long_prompts_are_rejected_as_in_training(tmp_path) -> None:
    config, yaml = small_config(tmp_path, "rollout.max_prompt_tokens=3")
    error = both_refuse(tmp_path, config, [], yaml)
    assert isinstance(error, ConfigError)
    assert str(error).startswith("rollout.max_prompt_tokens=3 does not allow agent")


LONG = """
class World:
    def reset(self, seed):
        return WORDS, {}

    def step(self, action):
        return "", 0.0, True, False, {}

    def close(self): ...
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("'many words'", r"max_prompt_tokens=6 does not allow agent player's prompt of 11 tokens"),
        ("exit(0)", r"world.py:World fails \(.*world.py:4: SystemExit: 0\); fix the error there"),
    ],
)
def test_invalid_first_observations_are_rejected(tmp_path, words: str, message: str) -> None:
    (tmp_path / "world.py").write_text(LONG.replace("WORDS", words))
    world = ["task=environment", f"task.environment={tmp_path / 'world.py'}:World", "actor.alphabet=printable"]
    config, _ = small_config(tmp_path, *world, "reward=environment", "rollout.max_prompt_tokens=6")
    with pytest.raises(ConfigError, match=message):
        show_plan(config)


def test_empty_templates_are_rejected_as_in_training(tmp_path) -> None:
    config, yaml = small_config(tmp_path, "task.agents.low.template=''")
    assert "prompts must have at least one token" in str(both_refuse(tmp_path, config, [], yaml))


def test_unknown_fields_are_rejected_as_in_training(tmp_path) -> None:
    config, yaml = small_config(tmp_path, "task.agents.low.template='{leters}'")
    assert "names the field 'leters'" in str(both_refuse(tmp_path, config, [], yaml))


def test_cuda_without_gpu_is_rejected_as_in_training(tmp_path) -> None:
    config, yaml = small_config(tmp_path, "launch.device=cuda")
    error = both_refuse(tmp_path, config, [], yaml)
    assert error.exit_code == 3
    assert str(error).startswith("launch.device=cuda")


def test_too_large_model_is_rejected_before_loading(tmp_path, capsys) -> None:
    overrides = jsonl_overrides(tmp_path, weightless_folder(tmp_path, HUGE))
    plain = resolve_config(compose_node(overrides))
    error = both_refuse(tmp_path, build_config(plain), overrides, to_yaml(plain))
    assert error.exit_code == 3
    assert "GiB for weights, optimizer states and gradients" in str(error)
    assert "has no .safetensors file" in capsys.readouterr().out


def test_plan_7b_model_on_8_ranks(tmp_path, capsys) -> None:
    config = jsonl_config(
        tmp_path,
        weightless_folder(tmp_path, SEVEN_B),
        "launch.processes=8",
        "critic=none",
        "actor.dtype=bf16",
        "algorithm=grpo",
        "algorithm.mini_batch_size=32",
        "rollout.num_generations=4",
    )
    material, memory = needs(config, ranks=8)
    assert material.shapes["solo"].actor.parameters == 7_615_616_512
    assert memory.certain_bytes == pytest.approx(7_615_616_512 * (7.5 + 2), rel=1e-6), (
        "the engine, and a whole reference"
    )
    machine = Machine(device="cuda", host_bytes=1000 * GIB, gpu_bytes=44 * GIB, ranks=8, ranks_per_device=1)
    assert memory_error(config, on_all_ranks(memory, 8), machine) is not None
    roomy = Machine(device="cuda", host_bytes=1000 * GIB, gpu_bytes=200 * GIB, ranks=8, ranks_per_device=1)
    assert memory_error(config, on_all_ranks(memory, 8), roomy) is None
    assert memory_warning(on_all_ranks(memory, 8), roomy) is None


def test_estimated_overflow_is_a_warning(tmp_path) -> None:
    config, _ = small_config(tmp_path)
    _, memory = needs(config)
    phase, greatest = memory.peak_phase
    machine = Machine(
        device="cpu", host_bytes=int((memory.certain_bytes + greatest) / 2), gpu_bytes=0, ranks=1, ranks_per_device=1
    )
    assert memory_error(config, on_all_ranks(memory, 1), machine) is None
    warning = memory_warning(on_all_ranks(memory, 1), machine)
    assert warning is not None
    assert warning.startswith(f"{phase} may need")


def test_ranks_on_one_machine_share_memory(tmp_path) -> None:
    config, _ = small_config(tmp_path)
    _, memory = needs(config, ranks=4)
    room = int(memory.certain_bytes * 2.5)
    two, three = (Machine(device="cpu", host_bytes=room, gpu_bytes=0, ranks=n, ranks_per_device=n) for n in (2, 3))
    assert memory_error(config, on_all_ranks(memory, 4), two) is None
    assert memory_error(config, on_all_ranks(memory, 4), three) is not None


def test_cache_limit_does_not_hide_small_models(tmp_path, capsys) -> None:
    config, _ = small_config(tmp_path, "task=ladder", "task.train_size=20", "task.eval_size=4")
    task = load_task(config.task, config.seed)
    material = read_model_specs(config, task)
    memory = estimate_run_memory(config, compute_batch_sizes(config, 1, len(task.train)), task, material, 1, "cpu")
    show_memory(on_all_ranks(replace(memory, prefix_cache_bytes=2.0 * GIB), 1), this_machine("cpu", 1))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("MiB per rank")
    assert all("0.00" not in line.split()[4:7] for line in lines[1:3])
    text = " ".join(" ".join(lines).split())
    assert re.search(r"load \d\.\d\d MiB, rollout 2\.\d\d GiB, targets \d+\.\d+ MiB", text)
    assert "caches at most 2.00 GiB of earlier turns" in text


def test_plan_counts_prompts(tmp_path) -> None:
    config, _ = small_config(tmp_path, "rollout.max_new_tokens=5")
    material, _ = needs(config)
    assert {name: shapes.length.sequence_tokens for name, shapes in material.shapes.items()} == {
        "low": 7 + 5,
        "high": 7 + 5,
    }


def test_longrope_warns_about_long_rows(tmp_path) -> None:
    rotation = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    shape = {
        "model_type": "phi3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 64,
        "rope_parameters": rotation | {"original_max_position_embeddings": 64},
        "pad_token_id": 0,
    }
    folder = weightless_folder(tmp_path, shape)
    long, cut, short = (
        jsonl_config(tmp_path, folder, *keys)
        for keys in (
            ["rollout.max_new_tokens=60"],
            ["rollout.max_new_tokens=60", "rollout.context_limit=64"],
            ["rollout.max_new_tokens=40"],
        )
    )
    (result,) = prompt_warnings(long, needs(long)[0]).values()
    assert "one row of more than 64 tokens" in result
    assert "rollout.context_limit=64 avoids this" in result
    assert "longrope" not in prompt_warnings(cut, needs(cut)[0])
    assert prompt_warnings(short, needs(short)[0]) == {}


def test_shared_references_count_once(tmp_path) -> None:
    keys = ["algorithm.kl.reward.coef=0.1", "actor.dtype=bf16"]
    alone = jsonl_config(tmp_path, weightless_folder(tmp_path, SEVEN_B), *keys)
    _, memory = needs(alone)
    assert [frozen.weight_bytes for frozen in memory.frozen] == [2 * 7_615_616_512]


def test_stage_3_shards_references(tmp_path) -> None:
    keys = ["algorithm.kl.reward.coef=0.1", "launch.processes=8", "deepspeed.persistence_threshold=0"]
    keys.append("actor.dtype=bf16")
    folder = weightless_folder(tmp_path, SEVEN_B)
    stages = [jsonl_config(tmp_path, folder, *keys, f"deepspeed=zero{stage}") for stage in (2, 3)]
    (_, two), (_, three) = (needs(config, ranks=8) for config in stages)
    assert [frozen.weight_bytes for frozen in two.frozen] == [2 * 7_615_616_512]
    assert [frozen.weight_bytes for frozen in three.frozen] == [2 * 7_615_616_512 / 8]
    (actor, *_) = three.trained
    loaded = sum(model.memory.resident - model.memory.moments for model in three.trained)
    assert three.bytes_by_phase["load"] == loaded + three.frozen[0].weight_bytes + 2 * max(actor.shape.sizes)
    exact = jsonl_config(tmp_path, folder, *keys, "deepspeed=zero3", "algorithm.kl.reward.estimator=full")
    _, compared = needs(exact, ranks=8)
    assert compared.bytes_by_phase["update"] - three.bytes_by_phase["update"] == three.frozen[0].gathered_bytes > 0


def test_replays_count_initial_policies_and_cost(tmp_path, capsys) -> None:
    for keys in (["reward.credit_assignment=difference"], ["reward.measure_credit_every=5"]):
        config, _ = small_config(tmp_path, *keys)
        _, memory = needs(config)
        assert [frozen.name for frozen in memory.frozen] == ["low reference", "high reference"]
        show_plan(config)
        output = " ".join(capsys.readouterr().out.split())
        assert ("credit difference: 2 x 16 more episodes are scored" in output) == ("difference" in keys[0])
        assert "2 x 16 episodes are replayed" in output
        assert ("every 5 iterations" in output) == ("5" in keys[0])
    config, _ = small_config(tmp_path, "reward.credit_assignment=counterfactual", "rollout.num_generations=4")
    _, memory = needs(config)
    assert memory.frozen == ()
    show_plan(config)
    output = " ".join(capsys.readouterr().out.split())
    assert "2 x 16 more episodes are scored, each for 3 other answers" in output
    assert "replayed" not in output
    config, _ = small_config(tmp_path)
    show_plan(config)
    assert "credit " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "cost"),
    [
        # Two turns each; low's are followed by 4, 2 turns of both, high's by 3, 1: (4 + 3 + 2 + 1) x 4 tokens.
        ([], "128 more episodes are replayed and scored (16 x 4 turns x 2 alternatives), and at most 1280 tokens"),
        (["reward.credit_turns=1"], "64 more episodes are replayed and scored (16 x 2 turns x 2 alternatives), and"),
        (["task.agents.high.frozen=true"], "64 more episodes are replayed and scored (16 x 2 turns x 2 alternatives)"),
        (["task.protocol=parallel"], "64 more episodes are replayed and scored (16 x 2 turns x 2"),
    ],
    ids=["all", "one turn", "frozen", "parallel"],
)
def test_cost_of_sampled_alternatives(tmp_path, capsys, keys: list[str], cost: str) -> None:
    dialogue = ["task.protocol=dialogue", "task.num_turns=2", "rollout.max_new_tokens=4"]
    dialogue += [f"task.agents.{name}.template='{{letters}}{{heard}}'" for name in ("low", "high")]
    dialogue = dialogue[2:3] if "task.protocol=parallel" in keys else dialogue
    own = ["reward.credit_assignment=counterfactual", "reward.credit_alternatives=2"]
    config, _ = small_config(tmp_path, *dialogue, *own, *keys)
    _, memory = needs(config)
    assert all("reference" not in frozen.name for frozen in memory.frozen)
    show_plan(config)
    assert f"credit counterfactual: {cost}" in " ".join(capsys.readouterr().out.split())


def test_shared_weights_count_once(tmp_path, capsys) -> None:
    bytes_alike = "actor.alphabet=printable"  # one agent's lessons have fewer characters than all agents' lessons
    independent, _ = small_config(tmp_path, bytes_alike)
    each, own = needs(independent)
    config, _ = small_config(tmp_path, bytes_alike, "team=shared_policy", "algorithm.kl.loss.coef=0.1")
    material, shared = needs(config)
    assert [model.name for model in shared.trained] == ["shared actor", "shared critic"]
    assert [model.name for model in shared.frozen] == ["shared reference"]
    assert [model.memory for model in shared.trained] == [model.memory for model in own.trained[:2]]
    assert required_disk_bytes(config, material, 1)[0] == required_disk_bytes(independent, each, 1)[0] / 2
    show_plan(config)
    shown = capsys.readouterr().out
    assert "shared steps    actor 1, critic 8 optimizer steps per iteration, on the rows of low and high" in shown
    assert "high prompt" in shown


def test_step_needs_memory_for_rows_of_all_agents(tmp_path) -> None:
    few = ["deepspeed.micro_batch_tokens=100000", "actor.alphabet=printable", "deepspeed.logit_chunk_tokens=1"]
    alone, both = (
        needs(small_config(tmp_path, f"team={team}", *few)[0])[1] for team in ("independent", "shared_policy")
    )
    longest = [model.training_bytes for model in alone.trained if model.is_actor]
    assert both.trained[0].training_bytes == pytest.approx(2 * max(longest), rel=0.01)  # except for one token's logits


def test_prompts_are_shown_with_chat_template(tmp_path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text("what is one plus one, and what is two plus two?\n" * 20)
    example = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "small_model.py"
    runpy.run_path(str(example))["make"](text, tmp_path / "model", vocabulary=300, hidden=32, layers=1, seed=0)
    show_plan(jsonl_config(tmp_path, tmp_path / "model", "task.chat_template=true"))
    assert "solo prompt     '<|user|>0 + 1 = <eos><|assistant|>'" in capsys.readouterr().out


def test_folder_without_tokenizer_is_rejected(tmp_path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SEVEN_B))
    with pytest.raises(PreflightError, match="no tokenizer could be loaded"):
        show_plan(jsonl_config(tmp_path, tmp_path / "model"))


def cluster_config(root: Path, *more: str) -> Config:
    """A 7B actor and a critic of the same size, planned for eight devices of 79 GiB on another machine."""
    keys = ["mode=plan", "plan=h100", "algorithm=ppo", "critic=separate", "rollout.max_new_tokens=1024"]
    keys += ["algorithm.mini_batch_size=32", "rollout.decode_batch_size=16", *more]
    config = build_config(resolve_config(compose_node(jsonl_overrides(root, weightless_folder(root, SEVEN_B), *keys))))
    check_config(config, world_size(config, None))
    return config


def test_remote_devices_are_planned(tmp_path, capsys) -> None:
    show_plan(cluster_config(tmp_path, "deepspeed=zero3"))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 100 and str(tmp_path) not in line] == []
    text = " ".join(" ".join(lines).split())
    assert "ranks 8, each 4 samples per iteration" in text
    assert "79.0 GiB on a GPU for 1 of 8 ranks, 2000.0 GiB of host memory for 8 of them" in text
    ways = [line.split() for line in lines if "deepspeed=zero" in line]
    assert [line for line in ways if line[0] == "*"] == [ways[3]]
    assert ways[3][1] == "deepspeed=zero3"
    assert " ".join(ways[0]).endswith("none none")
    assert ways[3][-1].isdigit()
    assert "are free" not in text, "nothing is known of a disk there"


def test_too_small_cluster_is_rejected_after_the_table(tmp_path, capsys) -> None:
    with pytest.raises(PreflightError, match="in each of 8 processes"):
        show_plan(cluster_config(tmp_path, "deepspeed=zero1", "plan.memory_gib=24"))
    assert "deepspeed=zero3_offload" in capsys.readouterr().out


def test_reported_micro_batch_fits_and_double_does_not(tmp_path) -> None:
    config = cluster_config(tmp_path, "rollout.buffer_size=512", "algorithm.mini_batch_size=256", "deepspeed=zero3")
    prepared, machine = prepare_quietly(config, 8, "cuda"), planned_machine(config)
    assert machine is not None
    (option,) = (way for way in sharding_options(prepared, machine) if way.is_configured)
    greatest = []
    for tokens in (option.max_tokens, 2 * option.max_tokens):
        way = replace(config, deepspeed=replace(config.deepspeed, micro_batch_tokens=tokens))
        greatest.append(prepare_quietly(way, 8, "cuda").memory.highest.peak_phase[1])
    assert greatest[0] <= 79 * GIB < greatest[1]
    assert option.max_tokens_checkpointed >= 4 * option.max_tokens, "most of what a pass keeps is given up"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["mode=plan", "plan.devices=8"], "plan.devices=8 must be set together with the other keys of plan"),
        (["plan=h100"], "plan.devices=8 has an effect with mode=plan only; add mode=plan"),
        (["mode=plan", "plan=h100", "plan.memory_gib=0"], "plan.memory_gib=0.0 is out of range"),
    ],
)
def test_incomplete_or_unused_plan_keys_are_rejected(tmp_path, keys: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        small_config(tmp_path, *keys)
    assert str(refused.value).startswith(message)

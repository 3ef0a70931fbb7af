"""Exported agents load with transformers and peft and equal the weights of the run; failures leave no files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import model_folder
from safetensors.torch import load_file, save_file
from small import train
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ippo_cli.agents.frozen import load_frozen_agent
from ippo_cli.compose.load import from_yaml
from ippo_cli.config.adapters import ADAPTER_FILES as FILES
from ippo_cli.config.adapters import PEFT_PREFIX as PREFIX
from ippo_cli.config.errors import ConfigError, StorageError
from ippo_cli.config.escape import escape_lines
from ippo_cli.config.schema import Dtype
from ippo_cli.evaluation import export as module
from ippo_cli.evaluation.chat import ChatSettings, chat
from ippo_cli.evaluation.evaluate_run import adapters_by_agent, find_weights
from ippo_cli.evaluation.export import ExportRequest, export_agents
from ippo_cli.models.critic import ValueModel, load_value_head


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a full model and a separate critic, and with an adapter and a value head."""
    root = tmp_path_factory.mktemp("runs")
    model = model_folder(root / "model", "abcdefghijklmnopqrstuvwxyz= ", chat=False)
    return train(
        root,
        "num_iterations=1",
        "evaluation.every=0",
        "actor.learning_rate=0.01",
        "rollout.min_new_tokens=2",
        "rollout.stop_strings=['==']",
        "task.agents.low.actor.kind=lora",
        f"task.agents.low.actor.model={model}",
        "task.agents.low.actor.dtype=fp32",
        "task.agents.low.actor.rank=4",
        "task.agents.low.critic.kind=value_head",
        "task.agents.low.critic.learning_rate=0.01",
    )


def export_request(run: Path, to: Path, **changes: object) -> ExportRequest:
    values = {
        "checkpoint": "latest",
        "agents": (),
        "is_merged": True,
        "needs_critic": False,
        "command": "ippo-export run=x",
    }
    return ExportRequest(run_folder=run, target=to, **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.slow
def test_exported_agents_load_with_transformers(run: Path, tmp_path: Path) -> None:
    config, output = from_yaml(run / "config.yaml"), list[str]()
    to = export_agents(config, export_request(run, tmp_path / "all", needs_critic=True), output.append)
    assert sorted(path.name for path in to.iterdir()) == ["export.json", "high", "low"]
    assert not list(tmp_path.glob(".*")), "the temporary folder is removed"
    checkpoint = run / "checkpoints" / "step_00000001"
    high = AutoModelForCausalLM.from_pretrained(to / "high")
    trained = AutoModelForCausalLM.from_pretrained(checkpoint / "high" / "actor")
    for name, tensor in trained.state_dict().items():
        assert torch.equal(high.state_dict()[name], tensor), name
    assert AutoTokenizer.from_pretrained(to / "low")("abc").input_ids
    generation = high.generation_config
    assert (generation.temperature, generation.max_new_tokens) == (1.0, 8)
    assert (generation.min_new_tokens, generation.stop_strings) == (2, ["=="])
    assert "stop_strings: [==]" in (to / "high" / "README.md").read_text()
    values = ValueModel.from_pretrained(to / "high" / "critic").state_dict()
    assert values["value_head.out.weight"].shape == (1, 32)
    critic = ValueModel.from_pretrained(to / "low" / "critic")
    low = AutoModelForCausalLM.from_pretrained(to / "low")
    head = load_value_head(checkpoint / "low" / "critic")
    ids = torch.arange(3, 20)[None]
    hidden = low.base_model(input_ids=ids).last_hidden_state
    read = critic.value_head(critic.backbone(input_ids=ids).last_hidden_state)
    assert read.abs().max() > 1e-3, "the head was trained"
    torch.testing.assert_close(read, head(hidden), rtol=1e-4, atol=1e-6)
    card = (to / "low" / "README.md").read_text()
    score = json.loads((run / "run.json").read_text())["evaluation"]["last"]["sampled/score"]
    for words in (
        "library_name: transformers",
        "kind: exact_match",
        "objective: ",
        f"{score:.4f}",
        "ippo-export run=x",
    ):
        assert words in card, words
    assert f"template: {config.task.agents['low'].template}" in card
    record = json.loads((to / "export.json").read_text())
    assert record["checkpoint"] == "step_00000001"
    assert record["agents"]["high"]["deviation"] == 0.0
    assert record["agents"]["high"]["critic_deviation"] == 0.0
    assert 0 < record["agents"]["low"]["critic_deviation"] < 1e-4
    assert 0 < record["agents"]["low"]["deviation"] < 1e-4, "an adapter that was merged differs by rounding"
    assert "low/model.safetensors" in record["files"]
    with pytest.raises(ConfigError, match="already exists"):
        export_agents(config, export_request(run, to), output.append)


@pytest.mark.slow
def test_export_of_adapter_only(run: Path, tmp_path: Path) -> None:
    config = from_yaml(run / "config.yaml")
    with pytest.raises(ConfigError, match="merged=false exports adapters, and agent high has no adapter"):
        export_agents(config, export_request(run, tmp_path / "adapter", is_merged=False), print)
    to = export_agents(config, export_request(run, tmp_path / "adapter", is_merged=False, agents=["low"]), print)
    assert (to / "low" / "adapter_model.safetensors").is_file()
    assert not (to / "low" / "model.safetensors").exists()
    beside = export_agents(
        config, export_request(run, tmp_path / "with_head", is_merged=False, agents=["low"], needs_critic=True), print
    )
    head, own = beside / "low" / "critic", run / "checkpoints" / "step_00000001" / "low" / "critic"
    assert load_value_head(head).state_dict().keys() == load_value_head(own).state_dict().keys()
    assert "library_name: peft" in (to / "low" / "README.md").read_text()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents with adapters of small effect on bf16 models; the checkpoint also has merged models."""
    root = tmp_path_factory.mktemp("half")
    model = model_folder(root / "model", "abcdefghijklmnopqrstuvwxyz= ", chat=False)
    return train(
        root,
        "actor=lora",
        f"actor.model={model}",
        "actor.rank=4",
        "actor.warmup_iterations=0",
        "actor.learning_rate=5e-6",
        "critic=value_head",
        "num_iterations=1",
        "evaluation.every=0",
        "checkpoint.weights=full",
    )


@pytest.mark.slow
def test_rounding_loss_of_bf16_merge_reported(half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = from_yaml(half / "config.yaml"), list[str]()
    to = export_agents(config, export_request(half, tmp_path / "whole", needs_critic=True), output.append)
    assert AutoModelForCausalLM.from_pretrained(to / "low").dtype == torch.float32
    record = json.loads((to / "export.json").read_text())["agents"]["low"]
    assert (record["dtype"], record["kept_share"]) == ("float32", pytest.approx(1.0, abs=0.01))
    assert "of the adapter's effect is kept (float32 weights)" in output[0]
    assert "warning" not in capsys.readouterr().out
    to = export_agents(config, export_request(half, tmp_path / "rounded", dtype=Dtype.bf16), output.append)
    assert AutoModelForCausalLM.from_pretrained(to / "low").dtype == torch.bfloat16
    record = json.loads((to / "export.json").read_text())["agents"]["low"]
    assert record["kept_share"] < 0.9
    assert "of the adapter's effect is lost to rounding" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="dtype=bf16 is the type of merged weights, and merged=false does not merge"):
        export_agents(config, export_request(half, tmp_path / "alone", dtype=Dtype.bf16, is_merged=False), print)


@pytest.mark.slow
def test_export_of_base_instead_of_agent_detected(half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_yaml(half / "config.yaml")

    def take_base(target: Path, *_: object) -> None:
        base = load_file(Path(config.task.agents["low"].actor.model or "") / "model.safetensors")
        save_file(base, target / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(module, "write_generation_config", take_base)
    for dtype in (None, Dtype.bf16):
        with pytest.raises(StorageError, match="the exported agent low computes different outputs"):
            export_agents(config, export_request(half, tmp_path / "base", dtype=dtype, agents=["low"]), print)


@pytest.mark.slow
def test_merged_checkpoint_loads_adapter_on_base(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = from_yaml(half / "config.yaml")
    known = {name: name for name in config.task.agents}, adapters_by_agent(config)
    record = find_weights(half, "latest", *known).models["low"]
    beside = half / "checkpoints" / "step_00000001" / "low" / "actor" / "adapter"
    assert record["adapter"]["model"] == str(beside)
    assert record["model"] == config.task.agents["low"].actor.model
    policy = load_frozen_agent("low", record, config.task.agents["low"].actor, torch.device("cpu"), {}).policy
    assert policy.lm.dtype == torch.bfloat16
    assert adapter_weights(policy) == {name: tensor.tolist() for name, tensor in load_file(beside / FILES[1]).items()}
    model = Path(record["model"])
    model.rename(tmp_path / "elsewhere")
    try:
        record = find_weights(half, "latest", *known).models["low"]
        assert record["model"] == str(beside.parent)
        assert "evaluating the merged model" in capsys.readouterr().out
        policy = load_frozen_agent("low", record, config.task.agents["low"].actor, torch.device("cpu"), {}).policy
        assert policy.lm.dtype == torch.float32
    finally:
        (tmp_path / "elsewhere").rename(model)


def adapter_weights(policy: Any) -> dict[str, Any]:
    names = {
        f"{PREFIX}{name.rsplit('.', 2)[0].replace('/', '.')}.lora_{name.rsplit('.', 2)[1]}.weight": tensor
        for name, tensor in policy.adapter.state_dict().items()
    }
    return {name: tensor.tolist() for name, tensor in names.items()}


@pytest.mark.slow
def test_failed_or_interrupted_export_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, to = from_yaml(run / "config.yaml"), tmp_path / "bad"

    def spoil(target: Path, *_: object) -> None:
        weights = load_file(target / "model.safetensors")
        weights["model.embed_tokens.weight"][3] += 1.0
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})

    with monkeypatch.context() as spoiling:
        spoiling.setattr(module, "write_generation_config", spoil)
        with pytest.raises(StorageError, match="the exported agent high computes different outputs"):
            export_agents(config, export_request(run, to, agents=["high"]), print)
    assert not to.exists()

    def shifted(self: Any, folder: Path, **options: Any) -> None:
        self.value_head.out.bias.data += 1.0
        PreTrainedModel.save_pretrained(self, folder, **options)

    with monkeypatch.context() as spoiling:
        spoiling.setattr(ValueModel, "save_pretrained", shifted, raising=False)
        with pytest.raises(StorageError, match="the exported critic of agent low computes different outputs"):
            export_agents(config, export_request(run, to, agents=["low"], needs_critic=True), print)
    assert not to.exists()

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(module, "finalize_export", stopped)
        with pytest.raises(KeyboardInterrupt):
            export_agents(config, export_request(run, to, agents=["high"]), print)
    assert not to.exists()
    assert export_agents(config, export_request(run, to, agents=["high"]), print) == to, (
        "a remaining temporary folder does not block the next export"
    )
    with pytest.raises(ConfigError, match="agent=solo is not an agent of this run; use "):
        export_agents(config, export_request(run, tmp_path / "solo", agents=["solo"]), print)
    with pytest.raises(ConfigError, match="initial weights have none"):
        export_agents(config, export_request(run, tmp_path / "critic", checkpoint="initial", needs_critic=True), print)


@pytest.mark.slow
def test_chat_with_team_and_agent(run: Path) -> None:
    config = from_yaml(run / "config.yaml")
    subject = find_weights(run, "latest", {"low": "low", "high": "high"}, {"low": ("low", None)})

    def talk(typed: list[str], agent: str | None, **how: bool) -> list[str]:
        lines: Iterator[str] = iter(typed)
        output: list[str] = []
        settings = ChatSettings(**{"seed": 0, "greedy": True, "raw": False, **how})  # type: ignore[arg-type]
        chat(config, subject, agent, settings, lambda _: next(lines, None), output.append)
        return output[1:]

    team = talk(["badcfe", "", "fedcba", "/exit"], None)
    assert [line.split(">")[0] for line in team] == [*config.task.agents] * 2
    alone = talk(["badcfe", "abc", "/reset", "badcfe"], "high")
    assert len(alone) == 3
    assert alone[0] == alone[2] == next(line for line in team if line.startswith("high>")), (
        "greedy replies to the same prompt are equal"
    )
    assert alone[0] != talk(["badcfe"], "high", raw=True)[0], "raw=true changes the prompt"
    with pytest.raises(ConfigError, match="agent=solo is an unknown agent"):
        talk([], "solo")


def test_control_characters_escaped() -> None:
    assert escape_lines("\x1b[2Jone\ntwo \x07\u202e\ud800") == "\\x1b[2Jone\ntwo \\x07\\u202e\\ud800"

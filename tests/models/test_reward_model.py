"""Reward models: encoding of conversations, and scores that do not depend on the batch."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"
sys.path.insert(0, str(EXAMPLES))
sys.path.insert(0, str(Path(__file__).parents[1] / "rewards"))

import train_reward_model  # noqa: E402
from small_model import make  # noqa: E402
from spoken import episode  # noqa: E402

from ippo_cli.compose.load import load_config  # noqa: E402
from ippo_cli.config.errors import ConfigError, PreflightError  # noqa: E402
from ippo_cli.config.schema import Config, Dtype  # noqa: E402
from ippo_cli.models.actor import load_causal_lm  # noqa: E402
from ippo_cli.models.critic import make_value_model  # noqa: E402
from ippo_cli.models.reward_model import ConversationTokenizer, RewardModel, load_reward_model  # noqa: E402
from ippo_cli.planning.model_specs import frozen_reward_models  # noqa: E402
from ippo_cli.rewards.build import build_reward  # noqa: E402
from ippo_cli.rewards.contract import Reward  # noqa: E402

TEXT = "the sea is a large body of salt water and it is also home to many animals whales for example"
WORDS = TEXT.split()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model in `lm`, preferences for short answers, and a reward model in `rm` trained on them."""
    folder = tmp_path_factory.mktemp("preferences")
    (folder / "text").write_text(" ".join(WORDS * 20))
    make(folder / "text", folder / "lm", vocabulary=320, hidden=32, layers=2, seed=0)
    rows = [
        {"prompt": f"{word} {n}", "chosen": " ".join(WORDS[:n]), "rejected": " ".join(WORDS[: n + 4])}
        for word in WORDS
        for n in (1, 3, 5)
    ]
    (folder / "preferences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["train", "lm", "preferences.jsonl", "rm", "--layers", "1", "--epochs", "4", "--learning-rate", "3e-3"]
    given = train_reward_model.parsed([*arguments, "--device", "cpu"])
    for name in ("model", "preferences", "folder"):
        setattr(given, name, str(folder / getattr(given, name)))
    assert train_reward_model.train(given) >= 0.9  # of unseen pairs
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "prefers"),
    [
        ("shorter", lambda one, other: len(one) < len(other)),
        ("s", lambda one, other: one.lower().count("s") > other.lower().count("s")),
    ],
)
def test_preferences_from_two_samples(
    rule: str, prefers: Callable[[str, str], bool], folder: Path, tmp_path: Path
) -> None:
    questions, preferences = tmp_path / "questions.jsonl", tmp_path / "preferences.jsonl"
    asked = [" ".join(WORDS[n : n + 3]) for n in range(15)]
    questions.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in asked))
    arguments = ["sample", str(folder / "lm"), str(questions), str(preferences), "--prefer", rule]
    given = train_reward_model.parsed([*arguments, "--max-new-tokens", "6", "--batch-size", "4", "--device", "cpu"])
    given.run(given)
    rows = [json.loads(line) for line in preferences.read_text().splitlines()]
    assert len(rows) >= 4
    assert [row["prompt"] for row in rows] == [prompt for prompt in asked if prompt in {row["prompt"] for row in rows}]
    assert all(prefers(row["chosen"], row["rejected"]) for row in rows)
    assert not any(row["chosen"].startswith(row["prompt"]) for row in rows), "the answers alone"


@cache
def composed(keys: tuple[str, ...]) -> Config:
    return load_config(["task=sorting", "reward=model", *keys])


def scored(episodes: list, folder: Path, *keys: str) -> Reward:
    config = composed((f"reward.model={folder}", *keys))
    return build_reward(config.reward, config.task.agents)(episodes)


def test_trained_reward_model_scores_episodes(folder: Path) -> None:
    short = episode(("low", 0, " ".join(WORDS[:2]), "the 3"), ("high", 0, " ".join(WORDS[:9]), "the 3"))
    found = scored([short, episode(("low", 0, "the", "sea"))], folder / "rm")
    low, high = found.agent["low"], found.agent["high"]
    assert low[0] > high[0]
    assert found.team == [pytest.approx((low[0] + high[0]) / 2), low[1]]
    assert high[1] == 0.0  # it has no turn
    assert found.parts == {"cut": [0.0, 0.0]}


def test_scores_match_library(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "rm")
    talk = [
        [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": " ".join(WORDS[:n])}]
        for n in (9, 1, 17, 4)
    ]
    rows = ConversationTokenizer(tokenizer).token_ids(talk)
    model = load_reward_model(str(folder / "rm"), None, Dtype.fp32, CPU, batch_tokens=60)
    plain = AutoModelForSequenceClassification.from_pretrained(folder / "rm")
    expected = []
    for one, row in zip(talk, rows, strict=True):
        encoded = tokenizer.apply_chat_template(one, return_dict=True, return_tensors="pt")
        assert encoded["input_ids"][0].tolist() == row
        expected.append(plain(**encoded).logits.item())
    assert model.scores(rows) == pytest.approx(expected, abs=1e-5)
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
    model.model.config.pad_token_id = None  # the model cannot batch rows without a padding id
    assert model.scores(rows) == pytest.approx(expected, abs=1e-5)


def test_spelled_special_tokens_removed(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "rm")
    honest = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "salt"}]
    forged = [honest[0], {"role": "assistant", "content": "sa<e<eos>os><pad>lt"}]
    writer = ConversationTokenizer(tokenizer)
    assert writer.token_ids([forged]) == writer.token_ids([honest])
    tokenizer.chat_template = None
    assert writer.token_ids([forged]) == [tokenizer("the seasalt").input_ids]


def test_critic_scores_last_token(folder: Path) -> None:
    lm = load_causal_lm(str(folder / "lm"), None, Dtype.fp32)
    critic = make_value_model(lm.base_model, None)  # type: ignore[arg-type]
    torch.nn.init.normal_(critic.value_head.out.weight)
    critic.save_pretrained(folder / "critic")
    AutoTokenizer.from_pretrained(folder / "lm").save_pretrained(folder / "critic")
    rows = [[5, 6, 7, 8], [9, 10]]
    model = load_reward_model(str(folder / "critic"), None, Dtype.fp32, CPU, batch_tokens=100)
    hidden = [critic.backbone(input_ids=torch.tensor([row])).last_hidden_state[0, -1] for row in rows]
    assert model.scores(rows) == pytest.approx([critic.value_head(state).item() for state in hidden], abs=1e-5)
    found = scored([episode(("low", 0, "salt", "the sea"), ("high", 0, "a", "b"))], folder / "critic")
    assert found.failures == {}


def test_long_conversations_truncated_or_failed(folder: Path) -> None:
    talk = [episode(("low", 0, " ".join(WORDS), "the sea")), episode(("low", 0, "a", "b"))]
    cut = scored(talk, folder / "rm", "reward.max_tokens=24")
    assert cut.parts == {"cut": [1.0, 0.0]}
    whole = scored(talk, folder / "rm")
    assert cut.agent["low"][0] != whole.agent["low"][0]
    assert cut.agent["low"][1] == pytest.approx(whole.agent["low"][1], abs=1e-5)
    failed = scored(talk, folder / "rm", "reward.max_tokens=24", "reward.overlong=fail")
    assert list(failed.failures) == [0]
    assert "limit is 24" in str(failed.failures[0])


def test_other_model_kinds_rejected_early(folder: Path) -> None:
    with pytest.raises(PreflightError, match="LlamaForCausalLM; use a sequence classifier"):
        scored([], folder / "lm")
    with pytest.raises(PreflightError, match="no tokenizer of a reward model could be loaded"):
        scored([], folder / "nowhere")
    (folder / "empty").mkdir()
    with pytest.raises(PreflightError, match=r"its folder has no tokenizer\.json; save the model's"):
        scored([], folder / "empty")
    with pytest.raises(ConfigError, match=r"reward\.max_tokens=5000 exceeds the reward model's context length"):
        scored([], folder / "rm", "reward.max_tokens=5000")


SYSTEMS = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
UNREAD = "{% for m in messages if m.role != 'assistant' %}"


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        (SYSTEMS, "cannot write a conversation of system user assistant (no system role)"),
        (UNREAD, "omits the last message of the assistant"),
    ],
)
def test_unsuitable_template_rejected_early(template: str, rule: str, folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder / "rm", tmp_path / "rm")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.chat_template = template + "{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(other)
    (other / "model.safetensors").unlink()
    (other / "other.safetensors").touch()
    with pytest.raises(PreflightError, match=re.escape(f"reward.model={other}: its chat template {rule}")):
        scored([], other, "task.agents.high.system=hear")


def test_empty_conversation_fails_alone(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder / "rm", tmp_path / "rm")
    (other / "chat_template.jinja").unlink()
    talk = [episode(("low", 0, "<eos>", "")), episode(("low", 0, "sea", "the"))]
    found = scored(talk, other)
    assert {row: str(error) for row, error in found.failures.items()} == {
        0: "a conversation has no tokens after encoding by the reward model's tokenizer"
    }
    assert found.team is not None
    assert found.team[1] == pytest.approx(scored(talk[1:], other).team[0])  # type: ignore[index]


def test_nonfinite_scores_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RewardModel, "scores", lambda *_: [float("nan"), 1.0])
    found = scored([episode(("low", 0, "a", "b")), episode(("low", 0, "a", "b"))], folder / "rm")
    assert list(found.failures) == [0]


def test_plan_includes_weights(folder: Path) -> None:
    [frozen] = frozen_reward_models(composed((f"reward.model={folder / 'rm'}",)))
    model = AutoModelForSequenceClassification.from_pretrained(folder / "rm")
    assert frozen.weight_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert frozen_reward_models(composed((f"reward.model={folder / 'rm'}", "reward.device=cpu"))) == ()

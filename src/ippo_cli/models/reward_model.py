"""A frozen reward model: scores conversations with its own tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Dtype
from ippo_cli.models.actor import DTYPES
from ippo_cli.models.critic import Float32Linear, ValueModel, ValueModelConfig
from ippo_cli.models.load import (
    UnusableModel,
    load_error,
    load_pretrained,
    missing_files_reason,
    missing_tokenizer_reason,
)
from ippo_cli.models.shape import ModelShape, model_shape

Messages = Sequence[dict[str, str]]  # each with role and content


class ConversationTokenizer:
    """Encodes a conversation for a reward model: by its chat template, or else as concatenated texts.

    Contents are plain text: special tokens spelled out in them are removed, so that a response cannot begin or end a
    turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special = sorted({str(token) for token in tokenizer.added_tokens_decoder.values() if token.special})

    def token_ids(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Token ids; special tokens come from the template, or else from the tokenizer."""
        plain = [
            [{**message, "content": self._strip_special_tokens(message["content"])} for message in conversation]
            for conversation in conversations
        ]
        if self.tokenizer.chat_template is None:
            texts = ["".join(message["content"] for message in conversation) for conversation in plain]
        else:
            texts = [str(self.tokenizer.apply_chat_template(conversation, tokenize=False)) for conversation in plain]
        adds = self.tokenizer.chat_template is None
        return self.tokenizer(texts, add_special_tokens=adds).input_ids if texts else []

    def check_writable(self, conversation: Messages, setting: str) -> None:
        """Raise `PreflightError` if the chat template rejects such a conversation or omits its last answer."""
        try:
            with_answer = self.token_ids([conversation])
        except Exception as error:  # templates may raise anything, for instance for unknown roles
            roles = " ".join(message["role"] for message in conversation)
            raise PreflightError(
                f"{setting}: its chat template cannot write a conversation of {roles} ({error}); use a reward model "
                "that reads such conversations" + ("" if roles == "user assistant" else ", or other prompts")
            ) from error
        if with_answer == self.token_ids([[*conversation[:-1], {**conversation[-1], "content": ""}]]):
            raise PreflightError(
                f"{setting}: its chat template omits the last message of the assistant, which must be scored; fix "
                "chat_template.jinja in its folder"
            )

    def _strip_special_tokens(self, text: str) -> str:
        before = None
        while text != before:  # removing one may form another
            before = text
            for token in self.special:
                text = text.replace(token, "")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """A reward model on its device."""

    model: PreTrainedModel
    device: torch.device
    batch_tokens: int

    @torch.inference_mode()
    def scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """One score for each row of token ids; rows of similar length are batched."""
        scores = [0.0] * len(rows)
        for batch in self._batches(rows):
            width = max(len(rows[row]) for row in batch)
            ids = torch.full((len(batch), width), self._pad or 0, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for place, row in enumerate(batch):
                ids[place, : len(rows[row])] = torch.tensor(rows[row])
                mask[place, : len(rows[row])] = 1
            numbers = self._compute_scores(ids.to(self.device), mask.to(self.device))
            for row, number in zip(batch, numbers.float().cpu().tolist(), strict=True):
                scores[row] = number
        return scores

    @property
    def _pad(self) -> int | None:
        """The padding id by which a classifier finds the last token; None if it has none."""
        return 0 if isinstance(self.model, ValueModel) else self.model.config.get_text_config().pad_token_id

    def _batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        batch: list[int] = []
        for row in sorted(range(len(rows)), key=lambda row: (len(rows[row]), row)):
            if batch and (self._pad is None or len(rows[row]) * (len(batch) + 1) > self.batch_tokens):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _compute_scores(self, ids: Tensor, mask: Tensor) -> Tensor:
        if not isinstance(self.model, ValueModel):
            return self.model(input_ids=ids, attention_mask=mask).logits[:, 0]
        hidden = self.model.backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        last = (mask.sum(dim=1) - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
        return self.model.value_head(hidden.gather(1, last).squeeze(1))


def load_reward_model(
    source: str, revision: str | None, dtype: Dtype, device: torch.device, batch_tokens: int
) -> RewardModel:
    """Load a frozen reward model. Raises `PreflightError` for incomplete weights or another kind of model."""
    kind: Any = ValueModel if is_value_model(source) else AutoModelForSequenceClassification
    try:
        model = load_pretrained(kind, source, revision=revision, dtype=DTYPES[dtype], trains=False)
    except Exception as error:
        raise load_error(f"reward.model={source}", "reward model", error, missing_files_reason(Path(source))) from error
    compute_scores_in_float32(model)
    return RewardModel(model=model.requires_grad_(False).to(device), device=device, batch_tokens=batch_tokens)


def compute_scores_in_float32(model: PreTrainedModel) -> None:
    """Compute a classifier's last linear map in float32: bfloat16 would round scores around 5 to 1/32."""
    inside = {id(module) for module in model.base_model.modules()} if model.base_model is not model else set()
    for module in model.modules():
        if type(module) is nn.Linear and id(module) not in inside and module.out_features == 1:
            module.__class__ = Float32Linear


def read_config(source: str, revision: str | None) -> Any:
    """The configuration of a reward model. Raises `PreflightError` for another kind of model."""
    setting = f"reward.model={source}"
    try:
        if is_value_model(source):
            return _backbone_config(source)
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception as error:
        raise load_error(setting, "reward model", error, missing_files_reason(Path(source))) from error
    if (missing := missing_files_reason(Path(source))) is not None:
        raise load_error(setting, "reward model", UnusableModel(missing))
    if not any("SequenceClassification" in name for name in config.architectures or ()):
        kinds = " ".join(config.architectures or ["nothing"])
        raise PreflightError(
            f"{setting}: its config.json names {kinds}; use a sequence classifier or a folder with a value head "
            "(scripts/examples/train_reward_model.py makes one)"
        )
    if config.num_labels != 1:
        raise PreflightError(f"{setting}: it has {config.num_labels} labels; a reward model has one")
    return config


def read_tokenizer(source: str, revision: str | None) -> PreTrainedTokenizerBase:
    """The reward model's own tokenizer."""
    try:
        # The library warns of model types that are not in its own tables.
        known = {"config": _backbone_config(source)} if is_value_model(source) else {}
        return AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False, **known)
    except Exception as error:
        raise load_error(
            f"reward.model={source}", "tokenizer of a reward model", error, missing_tokenizer_reason(source)
        ) from error


def _backbone_config(source: str) -> Any:
    own = ValueModelConfig.from_pretrained(source).backbone
    return AutoConfig.for_model(own["model_type"], **{k: v for k, v in own.items() if k != "model_type"})


def context_length(config: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Context length in tokens; None if neither model nor tokenizer has a limit."""
    limits = [getattr(config.get_text_config(), "max_position_embeddings", None), tokenizer.model_max_length]
    return min((limit for limit in limits if limit is not None and limit < 2**31), default=None)


def reward_model_shape(config: Any) -> ModelShape:
    """Its sizes, for the memory plan."""
    with torch.device("meta"):
        return model_shape(AutoModelForSequenceClassification.from_config(config))


def is_value_model(source: str) -> bool:
    """Whether a folder holds a critic of this project: a backbone with a value head."""
    try:
        return json.loads((Path(source) / "config.json").read_text())["model_type"] == ValueModelConfig.model_type
    except (OSError, ValueError, KeyError, TypeError):
        return False

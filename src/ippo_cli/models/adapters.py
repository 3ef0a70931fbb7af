"""Policies and critics with an adapter on a frozen base. Imports peft, which takes seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ippo_cli.config.adapters import ADAPTER_SUBFOLDER, find_adapter_folder
from ippo_cli.config.errors import PreflightError
from ippo_cli.models.actor import Policy, PolicyOutput
from ippo_cli.models.critic import (
    SHAPE_KEYS,
    ValueHead,
    ValueModel,
    gather_states,
    head_keys,
    load_value_head,
    make_value_model,
)
from ippo_cli.models.layout import Sequences
from ippo_cli.models.load import backbone_of, save_model, submodule_weights
from ippo_cli.models.lora import ADAPTER_PARAMETERS, Adapter, FrozenBase
from ippo_cli.models.packing import last_hidden_states


class AdapterPolicy(Policy):
    """A policy with an adapter on a base; without an adapter it is the reference of all policies on the base."""

    is_on_base = True

    def __init__(self, base: FrozenBase, adapter: Adapter | None, value_head: ValueHead | None = None) -> None:
        super().__init__(base.lm, value_head)
        del self.lm
        self.__dict__["lm"] = base.lm  # not registered: an engine must see only the adapter
        self.__dict__["base"] = base
        self.base: FrozenBase
        self.adapter = adapter
        self.packs = base.packs
        if adapter is not None and base.has_row_inputs:
            self.shared_base = base

    def forward(self, *args: Any, **options: Any) -> PolicyOutput:
        with self.use_adapter():
            return super().forward(*args, **options)

    @torch.no_grad()
    def action_states(self, sequences: Sequences) -> Tensor:
        with self.use_adapter():
            return super().action_states(sequences)

    @property
    def trained_module(self) -> nn.Module:
        assert self.adapter is not None
        return self.adapter

    def named_model_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.lm.named_parameters():
            if not any(f".{kind}." in name for kind in ADAPTER_PARAMETERS):
                yield name.replace(".base_layer.", "."), parameter

    @property
    def adapter_name(self) -> str | None:
        return None if self.adapter is None else self.adapter.name

    @property
    def adapter_rank(self) -> int:
        return 0 if self.adapter is None else self.adapter.largest_rank

    def use_adapter(self) -> AbstractContextManager[None]:
        return self.base.use_adapter(None if self.adapter is None else self.adapter.name)

    def train(self, mode: bool = True) -> AdapterPolicy:
        super().train(mode)
        self.base.lm.train(mode)  # gradients are checkpointed only in training mode
        return self

    def save(
        self,
        folder: Path,
        weights: dict[str, Tensor],
        tokenizer: PreTrainedTokenizerBase,
        *,
        merged: bool,
        merged_dtype: torch.dtype = torch.float32,
    ) -> list[Path]:
        """As for a policy; a merged model has float32 weights unless `merged_dtype` is given."""
        assert self.adapter is not None
        own, actor = submodule_weights("adapter.", weights), folder / "actor"
        if merged:
            _save_merged(self.lm, actor, self.base.merge_adapter(self.adapter, own, merged_dtype), merged_dtype)
        self.adapter.save(actor / ADAPTER_SUBFOLDER if merged else actor, own)
        tokenizer.save_pretrained(actor)
        return [actor, *self._save_head(folder, weights)]

    @torch.no_grad()
    def load_saved(self, folder: Path) -> None:
        assert self.adapter is not None
        self.adapter.load(folder / "actor", "checkpoint")
        self.copies += 1
        if self.value_head is not None:
            self.value_head.copy_from(load_value_head(folder / "critic"))


class AdapterCritic(nn.Module):
    """A critic with its own adapter on the actor's base, and a value head."""

    def __init__(self, adapter: Adapter, value_head: ValueHead) -> None:
        super().__init__()
        self.adapter, self.value_head = adapter, value_head
        self.packs = adapter.base.packs

    def forward(self, sequences: Sequences) -> Tensor:
        """The outputs of the head in every state, see `ValueModel`."""
        with self.adapter.activate():
            hidden = last_hidden_states(backbone_of(self.adapter.base.lm), sequences.input_ids, sequences.packing)
        return gather_states(self.value_head.outputs(hidden), sequences)

    def train(self, mode: bool = True) -> AdapterCritic:
        super().train(mode)
        self.adapter.base.lm.train(mode)
        return self

    def save(
        self, folder: Path, weights: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase, *, merged: bool
    ) -> list[Path]:
        own, head, critic = (
            submodule_weights("adapter.", weights),
            submodule_weights("value_head.", weights),
            folder / "critic",
        )
        if merged:
            _save_merged(self._merged_model(), critic, self._merged_state(own, head), torch.float32)
        saved = critic / ADAPTER_SUBFOLDER if merged else critic
        self.adapter.save(saved, own)
        save_model(self.value_head, saved / "value_head", head)
        tokenizer.save_pretrained(critic)
        return [critic]

    def load_saved(self, folder: Path) -> None:
        self.load(folder / "critic", "checkpoint")

    @torch.no_grad()
    def load(self, folder: Path, setting: str) -> None:
        """Load the adapter and head of a saved critic."""
        self.adapter.load(folder, setting)
        where = f"{setting}={folder}"
        try:
            head = load_value_head(find_adapter_folder(folder, setting) / "value_head")
        except Exception as error:
            raise PreflightError(f"{where}: no value head could be loaded ({error})") from error
        for key in SHAPE_KEYS:
            stored, required = (getattr(module.config, key) for module in (head, self.value_head))
            if stored != required:
                raise PreflightError(f"{where}: its {key} is {stored}, and critic.{key}={required}")
        self.value_head.copy_from(head)

    def _merged_model(self) -> ValueModel:
        """A model of the same kind without memory for its weights, for its configuration."""
        backbone = backbone_of(self.adapter.base.lm)
        with torch.device("meta"):
            return make_value_model(type(backbone)(backbone.config), **head_keys(self.value_head.config))

    def _merged_state(self, own: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> dict[str, Tensor]:
        base = self.adapter.base
        prefix = f"{base.lm.base_model_prefix}."
        backbone = submodule_weights(prefix, base.merge_adapter(self.adapter, own))
        state = {f"backbone.{name}": tensor for name, tensor in backbone.items()}
        return state | {f"value_head.{name}": tensor.float() for name, tensor in head.items()}


def _save_merged(model: PreTrainedModel, folder: Path, state: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Write a model's folder with the weights of `state`. The library writes the model's own type to `config.json`."""
    save_model(model, folder, state)
    file = folder / CONFIG_NAME
    file.write_text(
        json.dumps(_replace_dtype(json.loads(file.read_text()), str(dtype).removeprefix("torch.")), indent=2)
    )


def _replace_dtype(settings: dict[str, Any], dtype: str) -> dict[str, Any]:
    """A configuration, and those of its submodels, with this dtype."""
    changed = {
        key: _replace_dtype(value, dtype) if isinstance(value, dict) else value for key, value in settings.items()
    }
    return changed | ({"dtype": dtype} if "dtype" in settings else {})

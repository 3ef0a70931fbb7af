"""The policy: a causal language model that returns log-probabilities of response tokens, never logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.model_args import quantization_args, unquantized_args
from ippo_cli.config.schema import ActorConfig, Dtype, PolicyConfig
from ippo_cli.engine import distributed
from ippo_cli.formulas import full_kl, router_loss, selected_logprobs
from ippo_cli.models.critic import ValueHead, gather_states, split_values
from ippo_cli.models.layout import Sequences
from ippo_cli.models.load import (
    backbone_of,
    load_error,
    load_pretrained,
    missing_files_reason,
    missing_tokenizer_reason,
    save_model,
    submodule_weights,
)
from ippo_cli.models.packing import last_hidden_states, run_backbone
from ippo_cli.user_code.templates import read_chat_template

DTYPES = {Dtype.fp32: torch.float32, Dtype.bf16: torch.bfloat16}


class MultiAdapterBatch(Protocol):
    """A model that can run rows of several policies in one forward."""

    def policies_by_row(self, policies: Sequence[Policy]) -> AbstractContextManager[Callable[[Tensor], None]]:
        """Run each row of the forwards inside with one of the policies. The yielded function sets the policy index of
        each row, `[n]`, before a forward; until then all rows use the outer policy.
        """
        ...


class PolicyOutput(NamedTuple):
    """Outputs of a forward pass for the response tokens; 0 off the mask. A tuple, since engines inspect outputs."""

    logprobs: Tensor  # [b, R] float32, tempered
    entropy: Tensor | None  # [b, R] float32, of the tempered distribution; None if not requested
    values: Tensor | None  # [b, R] or [b, R, K] float32: outputs of the value head, where the policy has one
    final_values: Tensor | None  # [b] or [b, K]: those after the last token
    full_kl: Tensor | None  # [b, R] float32, KL(policy || reference) over the vocabulary; None without a reference
    router_loss: Tensor | None = None  # scalar, over the states before action tokens; None if not requested


class LogitHead(nn.Module):
    """The language-model head with the model's own logit transformations."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.linear: nn.Linear = lm.get_output_embeddings()  # pyright: ignore[reportAttributeAccessIssue]
        config = lm.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        scale = getattr(config, "logit_scale", None) or 1.0
        self.scale: float = scale / (getattr(config, "logits_scaling", None) or 1.0)

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self.linear(hidden.to(self.linear.weight.dtype))  # Mamba's residual stream is float32
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


class Policy(nn.Module):
    """A causal language model, and for `critic=value_head` a value head on its last hidden state."""

    is_on_base = False  # whether its language model is a frozen base, which adapters share
    shared_base: MultiAdapterBatch | None = None  # for models that can run rows of several policies in one forward

    def __init__(self, lm: PreTrainedModel, value_head: ValueHead | None = None, *, in_step: bool = False) -> None:
        super().__init__()
        self.lm = lm
        self.value_head = value_head
        self.packs = False  # whether it receives packed rows, see `enable_packing`
        self.in_step = in_step  # ZeRO stage 3: ranks must call the head equally often, so they pad to one count
        self.copies = 0  # changes when weights are copied or loaded into it, other than by its engine
        self._logits = [LogitHead(lm)]  # in a list: the weights belong to `lm` and must not be registered twice

    def forward(
        self,
        sequences: Sequences,
        *,
        temperature: float,
        chunk_tokens: int,
        with_entropy: bool = False,
        reference: Policy | None = None,
        head_alone: bool = False,
        with_router_loss: bool = False,
    ) -> PolicyOutput:
        """Log-probabilities (and entropies, values) of the action tokens of every row; logits are computed in chunks.

        With a `reference`, also the exact KL from it in each state. `head_alone`: values have no gradient with respect
        to the language model, only to the value head.
        """
        options = {"output_router_logits": True} if with_router_loss else {}
        output = run_backbone(backbone_of(self.lm), sequences.input_ids, sequences.packing, **options)
        hidden = output.last_hidden_state.flatten(0, 1)
        chosen, ids = hidden.index_select(0, sequences.action_states), sequences.action_ids
        count = len(ids)
        if self.in_step:
            missing = int(distributed.all_max(torch.tensor(count, device=ids.device))) - count
            chosen = torch.cat([chosen, chosen.new_zeros(missing, chosen.shape[1])])
            ids = torch.cat([ids, ids.new_zeros(missing)])
        logprobs, entropy = selected_logprobs(
            chosen,
            self._logits[0],
            ids,
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            with_entropy=with_entropy,
            keep_last=reference is None,
        )

        def join(values: Tensor) -> Tensor:
            return sequences.scatter_actions(values[:count].float())

        divergence = None
        if reference is not None:
            divergence = self._reference_kl(
                chosen, reference, sequences, temperature=temperature, chunk_tokens=chunk_tokens
            )
            divergence = join(divergence)
        routers = self._router_loss(output.router_logits, sequences) if with_router_loss else None
        values = final_values = None
        if self.value_head is not None:
            read_by_head = hidden.detach() if head_alone else hidden
            values, final_values = split_values(
                gather_states(self.value_head.outputs(read_by_head), sequences), sequences
            )
        return PolicyOutput(
            logprobs=join(logprobs),
            entropy=None if entropy is None else join(entropy),
            values=values,
            final_values=final_values,
            full_kl=divergence,
            router_loss=routers,
        )

    def logits(self, states: Tensor) -> Tensor:
        """Logits `[n, V]` in the states `[n, H]`; use few at once, since a vocabulary is large."""
        return self._logits[0](states)

    def _router_loss(self, router_logits: Sequence[Tensor], sequences: Sequences) -> Tensor:
        """The router loss over the states before action tokens, a scalar; `router_logits`: by layer."""
        logits = [layer.flatten(0, -2).index_select(0, sequences.action_states) for layer in router_logits]
        return router_loss(logits, top_k=self.lm.config.get_text_config().num_experts_per_tok)

    def _reference_kl(
        self, chosen: Tensor, reference: Policy, sequences: Sequences, *, temperature: float, chunk_tokens: int
    ) -> Tensor:
        """KL(self || reference) in every state of `chosen` `[n, H]`; the reference reads 0 as padding."""
        states = reference.action_states(sequences)
        states = torch.cat([states, states.new_zeros(len(chosen) - len(states), states.shape[1])])
        return full_kl(
            chosen,
            self._logits[0],
            states,
            reference._logits[0],
            temperature=temperature,
            chunk_tokens=chunk_tokens,
        )

    @property
    def trained_module(self) -> nn.Module:
        """The trained module, without a value head."""
        return self.lm

    @torch.no_grad()
    def copy_from(self, other: Policy) -> None:
        """Copy the weights of another policy of the same shape, except a value head."""
        for own, its in zip(self.trained_module.parameters(), other.trained_module.parameters(), strict=True):
            own.copy_(its)
        self.copies += 1

    @torch.no_grad()
    def load_saved(self, folder: Path) -> None:
        """Load weights written by `save`, except a value head."""
        dtype = next(key for key, value in DTYPES.items() if value == self.lm.dtype)
        self.lm.load_state_dict(load_causal_lm(str(folder / "actor"), None, dtype).state_dict())
        self.copies += 1

    def named_model_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The language model's parameters without adapters, by their names in a checkpoint; tied ones once."""
        yield from self.lm.named_parameters()

    @property
    def adapter_name(self) -> str | None:
        return None

    @property
    def adapter_rank(self) -> int:
        return 0

    def use_adapter(self) -> AbstractContextManager[None]:
        """The context that forwards of its language model require."""
        return nullcontext()

    def save(
        self, folder: Path, weights: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase, *, merged: bool
    ) -> list[Path]:
        """Write `actor/` in Hugging Face format, and `critic/` if it has a value head; return the folders.

        `weights` are those of the whole module. `merged`: whether an adapter is merged into its base.
        """
        actor = folder / "actor"
        save_model(self.lm, actor, submodule_weights("lm.", weights))
        tokenizer.save_pretrained(actor)
        return [actor, *self._save_head(folder, weights)]

    def _save_head(self, folder: Path, weights: dict[str, Tensor]) -> list[Path]:
        if self.value_head is None:
            return []
        save_model(self.value_head, folder / "critic", submodule_weights("value_head.", weights))
        return [folder / "critic"]

    @torch.no_grad()
    def action_states(self, sequences: Sequences) -> Tensor:
        """Hidden states `[n, H]` before each of the n action tokens of which this rank computes them."""
        hidden = last_hidden_states(backbone_of(self.lm), sequences.input_ids, sequences.packing)
        return hidden.index_select(0, sequences.action_states)


def tokenizer_source(actor: PolicyConfig, model: str, revision: str | None) -> tuple[str, str | None]:
    """Folder or hub id, and revision, of the tokenizer of an actor that starts from `model`."""
    return (model, revision) if actor.tokenizer is None else (actor.tokenizer, actor.tokenizer_revision)


def load_actor_tokenizer(actor: PolicyConfig, model: str, revision: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of an actor that starts from `model`: `actor.tokenizer`, or the model's.

    It has the chat template of `actor.chat_template`, if that is set, also where it is saved.
    """
    template = None if actor.chat_template is None else read_chat_template(actor.chat_template, "actor.chat_template")
    tokenizer = load_tokenizer(
        *tokenizer_source(actor, model, revision), "model" if actor.tokenizer is None else "tokenizer"
    )
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def tokenizer_setting(actor: PolicyConfig, model: str) -> str:
    """The setting of an actor's tokenizer, for errors."""
    return f"actor.model={model}" if actor.tokenizer is None else f"actor.tokenizer={actor.tokenizer}"


def load_tokenizer(model: str, revision: str | None, key: str = "model") -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id, with a padding token and left padding. `key` is used in errors."""
    try:
        # Custom code of a repository is never run: a job cannot ask for confirmation.
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
    except Exception as error:
        raise load_error(
            format_model_setting(model, key), "tokenizer", error, missing_tokenizer_reason(model)
        ) from error
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):  # created empty where files are missing
        raise load_error(
            format_model_setting(model, key), "tokenizer", FileNotFoundError("its files have no vocabulary"), None
        )
    if tokenizer.eos_token_id is None:
        raise PreflightError(
            f"actor.{key}={model}: its tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # masks come from lengths: sharing the id is harmless
    tokenizer.padding_side = "left"
    remove_loading_settings(tokenizer)
    return tokenizer


def remove_loading_settings(tokenizer: PreTrainedTokenizerBase) -> None:
    """Remove what the library saves about how it was loaded: files of a run do not depend on a network."""
    for key in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)


def load_actor_lm(
    actor: ActorConfig,
    model: str,
    revision: str | None,
    *,
    dtype: Dtype | None = None,
    as_stored: bool = False,
    is_base: bool = False,
) -> PreTrainedModel:
    """A language model with `actor.dtype` and `actor.model_args`; the base of an adapter may be quantised."""
    options = unquantized_args(actor)
    if is_base and (settings := quantization_args(actor)):
        settings = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": DTYPES[actor.dtype]} | settings
        options["quantization_config"] = BitsAndBytesConfig(**settings)
    return load_causal_lm(model, revision, dtype or actor.dtype, as_stored=as_stored, **options)


def load_causal_lm(
    model: str, revision: str | None, dtype: Dtype, *, as_stored: bool = False, **options: Any
) -> PreTrainedModel:
    """A causal language model from safetensors, without dropout; its backbone and head are checked.

    `as_stored`: keep the stored type, for an engine at ZeRO stage 3, see `load_pretrained`, which receives the
    `options`.
    """
    kind = AutoModelForCausalLM
    try:
        lm = load_pretrained(kind, model, revision=revision, dtype=DTYPES[dtype], as_stored=as_stored, **options)
        check_head(lm)
    except Exception as error:
        raise load_error(
            format_model_setting(model), "causal language model", error, missing_files_reason(Path(model))
        ) from error
    return lm


def check_readable_tokens(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, setting: str) -> None:
    """Raise `PreflightError` if the tokenizer has tokens without an embedding in the model.

    The padding token may be one of them, since padding is never read.
    """
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    rows: int = getattr(weight, "ds_shape", weight.shape)[0]  # the shape before an engine sharded it
    beyond = {token: number for token, number in tokenizer.get_vocab().items() if number >= rows}
    beyond.pop(str(tokenizer.pad_token), None)
    if beyond:
        token, number = max(beyond.items(), key=lambda item: item[1])
        raise PreflightError(
            f"{setting}: its tokenizer has {len(beyond)} tokens that the model cannot read, such as {token!r} = "
            f"{number}, with {rows} rows in its embedding; load the model, call "
            f"resize_token_embeddings({number + 1}) and save"
        )


@torch.no_grad()
def check_head(lm: PreTrainedModel) -> None:
    """Raise `ValueError` unless backbone and head, called in sequence, give the model's own logits.

    Some architectures scale or cap logits in custom ways; training them through backbone and head would silently train
    a different model.
    """
    ids = torch.arange(5, 13, device=lm.device)[None] % lm.config.get_text_config().vocab_size
    whole = lm(input_ids=ids, use_cache=False).logits.float()
    parts = LogitHead(lm)(lm.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    # Compared as distributions, since only these are used.
    gap = (whole.log_softmax(-1) - parts.log_softmax(-1)).abs().max().item()
    if not gap < 1e-2:
        raise ValueError(
            f"{type(lm).__name__} transforms its logits in a way that this version does not support: "
            f"log-probabilities differ by {gap:.2g}; use another architecture"
        )


def format_model_setting(model: str, key: str = "model") -> str:
    """The setting of an actor's model for errors, with a note if it is no local folder."""
    return f"actor.{key}={model}" + ("" if Path(model).exists() else ", no folder here, so it was looked up on the hub")

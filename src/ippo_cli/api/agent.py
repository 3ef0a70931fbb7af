"""The models of one agent of a run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ippo_cli.config.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ippo_cli.config.schema import Config
    from ippo_cli.evaluation.evaluate_run import EvaluatedWeights


@dataclass(frozen=True)
class RunAgent:
    """An agent of a run. `checkpoint` is `latest`, `best`, `initial` or an iteration; hashes are verified."""

    folder: Path
    name: str

    def load_actor(self, checkpoint: str | int = "latest", *, device: str = "cpu") -> PreTrainedModel:
        """The policy as a model of transformers, in eval mode. An adapter is merged into its base in float32."""
        import torch
        from transformers import AutoModelForCausalLM

        from ippo_cli.agents.frozen import load_frozen_agent

        config, weights = self._find_weights(checkpoint)
        record, actor = weights.models[self.name], config.task.agents[self.name].actor
        if actor.is_served:
            raise ConfigError(
                f"agents[{self.name!r}].load_actor()",
                f"finds no weights: they are at {actor.url}",
                "load another agent",
            )
        agent = load_frozen_agent(self.name, record, actor, torch.device(device), {})
        if "adapter" not in record:
            return agent.policy.lm
        with tempfile.TemporaryDirectory(prefix="ippo-merged-") as folder:
            saved, *_ = agent.policy.save(Path(folder), agent.policy.state_dict(), agent.tokenizer, merged=True)
            model: Any = AutoModelForCausalLM.from_pretrained(saved, dtype="auto")
            return model.to(torch.device(device)).eval()

    def load_critic(self, checkpoint: str | int = "latest", *, device: str = "cpu") -> PreTrainedModel:
        """The critic as a `ValueModel`, in eval mode; a value head gets the agent's actor as its backbone.

        Raises `ConfigError` for an agent without a critic, for initial weights, and for a critic that is an adapter.
        """
        import torch

        from ippo_cli.config.schema import CriticKind
        from ippo_cli.models.critic import ValueModel, attach_value_head, load_value_head
        from ippo_cli.models.load import backbone_of

        config, weights = self._find_weights(checkpoint)
        kind = config.task.agents[self.name].critic.kind
        if kind in (CriticKind.none, CriticKind.adapter):
            state = "has no critic" if kind is CriticKind.none else "has an adapter as its critic"
            raise ConfigError(f"agents[{self.name!r}].load_critic()", state, "use an agent with a model as its critic")
        folder = self._critic_folder(config, weights)
        model: Any
        if kind is CriticKind.value_head:
            head = load_value_head(folder)
            model = attach_value_head(backbone_of(self.load_actor(checkpoint, device=device)), head)
        else:
            model = ValueModel.from_pretrained(folder, use_safetensors=True)
        return model.to(torch.device(device)).eval()

    def tokenizer(self, checkpoint: str | int = "latest") -> PreTrainedTokenizerBase:
        """The tokenizer of the policy."""
        from ippo_cli.models.actor import load_actor_tokenizer, load_tokenizer

        config, weights = self._find_weights(checkpoint)
        record = weights.models[self.name]
        if saved := record.get("tokenizer"):
            return load_tokenizer(saved, None)
        return load_actor_tokenizer(config.task.agents[self.name].actor, record["model"], record["commit"])

    def _find_weights(self, checkpoint: str | int) -> tuple[Config, EvaluatedWeights]:
        from ippo_cli.compose.load import build_config
        from ippo_cli.compose.resume import saved_config
        from ippo_cli.config.teams import policy_by_agent
        from ippo_cli.evaluation.evaluate_run import adapters_by_agent, find_weights

        config = build_config(saved_config(self.folder))
        wanted = str(checkpoint)
        return config, find_weights(self.folder, wanted, policy_by_agent(config), adapters_by_agent(config))

    def _critic_folder(self, config: Config, weights: EvaluatedWeights) -> Path:
        from ippo_cli.config.teams import value_holders

        folder = self.folder / "checkpoints" / weights.name / value_holders(config)[self.name] / "critic"
        if not folder.is_dir():
            raise ConfigError(
                f"agents[{self.name!r}].load_critic()", f"finds no critic in {weights.name}", "use another checkpoint"
            )
        return folder

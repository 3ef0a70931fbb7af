"""`ippo_cli.train`, `ippo_cli.Run` and its agents: train from Python, and the folder of a run as an object."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ippo_cli.api.overrides import Overrides, to_overrides
from ippo_cli.config.commands import expand_home
from ippo_cli.config.errors import ConfigError, PreflightError, ResumeError, combine_errors
from ippo_cli.runs.missing_parts import find_missing_parts
from ippo_cli.runs.records import RunRecord

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ippo_cli.config.schema import Config
    from ippo_cli.evaluation.evaluate_run import EvaluatedWeights


MODES = ("train", "eval")


def train(*overrides: Overrides, **keys: Any) -> Run:
    """Train, as `ippo-train` with these overrides does, and return the run.

    `overrides`: texts `"key=value"`, lists of them, or mappings of keys to values; `keys`: further ones. With
    `launch.processes` above 1, child processes train; otherwise this process does, and has to be in its main thread.
    `resume=` continues a run. Raises the exceptions of `ippo_cli.config.errors`: `ConfigError` before anything is
    loaded, `Preempted` after a signal, once the run is saved.

    >>> run = train("task=sorting_solo", {"actor": {"hidden_size": 32}}, num_iterations=1)  # doctest: +SKIP
    >>> run.status  # doctest: +SKIP
    'done'
    """
    typed = to_overrides(overrides, keys)
    with _convert_hydra_errors(typed), _keep_streams():
        folder = _start(typed)
    return Run(folder)


class Run:
    """A run, finished or not. Its properties are read from the folder at every access.

    >>> run = Run(folder)  # doctest: +SKIP
    >>> run.status, run.metrics[-1]["iteration"]  # doctest: +SKIP
    ('done', 2)
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        """Open the folder of a run; raises `ResumeError` if it is not one."""
        self.folder = expand_home(folder).absolute()
        if not (self.folder / "run.json").is_file():
            raise ResumeError(f"{folder} is not a run's folder; use outputs/NAME/DATE-ID")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def record(self) -> RunRecord:
        """The files of the run, as other commands read them."""
        return RunRecord(self.folder)

    @property
    def status(self) -> str:
        """`running`, `done`, `preempted`, `failed` or `interrupted` (killed without a final state)."""
        return self.record.status

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration as plain values."""
        return self.record.config

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of `metrics.jsonl`, documented in `docs/metrics.md`; missing numbers are NaN."""
        return self.record.metrics

    @property
    def missing(self) -> list[str]:
        """What the folder lacks by its own records, such as `metrics.jsonl has 3 of 91 rows`; empty for a whole run."""
        return find_missing_parts(self.record)

    def metrics_frame(self) -> Any:
        """The metrics as a pandas frame, indexed by iteration."""
        try:
            import pandas
        except ImportError as error:
            raise PreflightError("metrics_frame() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.metrics).set_index("iteration")

    @property
    def scores(self) -> Mapping[str, Mapping[str, Any]]:
        """The `first`, `best` and `last` evaluation: `iteration`, `score` and all metrics of each."""
        return dict(self.record.state.get("evaluation") or {})

    def episodes(self, mode: str | None = None, iteration: int | None = None) -> list[dict[str, Any]]:
        """The sampled episodes, documented in `docs/episodes.md`, oldest first.

        `mode`: `train` or `eval`; None for both. `iteration`: those of one iteration; None for all.
        """
        if mode not in (None, *MODES):
            raise ConfigError(f"mode={mode}", "is unknown", f"use {' or '.join(MODES)}")
        return [
            episode
            for file in self.record.sample_files
            if mode in (None, file.mode) and iteration in (None, file.iteration)
            for episode in file.episodes()
        ]

    @cached_property
    def agents(self) -> Mapping[str, RunAgent]:
        """The agents by name; each loads its models and its tokenizer."""

        return {name: RunAgent(self.folder, name) for name in self.record.agents}

    def evaluate(self, *overrides: Overrides, checkpoint: str | int = "latest", **keys: Any) -> dict[str, Any]:
        """Score the run's weights on held-out data, as `ippo-eval` does; returns the content of its result file.

        `checkpoint`: `latest`, `best`, `initial` or an iteration. `overrides` and `keys`: such as
        `{"evaluation.num_generations": 8}`.
        """
        from ippo_cli.compose.arguments import normalize_arguments
        from ippo_cli.compose.configured import load_run_config
        from ippo_cli.compose.exits import set_library_defaults

        typed = to_overrides(overrides, keys)
        set_library_defaults()
        with _convert_hydra_errors([f"run={self.folder}", *typed], ("run",)), _keep_streams():
            normal = normalize_arguments(typed)
            config = load_run_config(self.folder, str(self.folder), normal)
            from ippo_cli.evaluation.evaluate_run import evaluate_run

            return dict(json.loads(evaluate_run(config, self.folder, str(checkpoint), normal).read_text()))

    def resume(self, *overrides: Overrides, **keys: Any) -> Run:
        """Continue the run, as `ippo-train resume=` does; returns it again, with the new state."""
        return train(f"resume={self.folder}", *overrides, **keys)

    def verify(
        self, iterations: Sequence[int] = (), *, count: int = 2, seed: int = 0, span: int = 20
    ) -> dict[str, Any]:
        """Verify the run, as `ippo-verify` does; returns the certificate, which it also writes.

        `result` is `verified` or `differs`, and `differences` names each difference.
        """
        from ippo_cli.verification.certificate import CERTIFICATE, write_certificate
        from ippo_cli.verification.verify import Selection, verify_run

        selection = Selection(iterations=iterations, count=count, seed=seed, span=span)
        found = verify_run(self.folder, selection, ["Run.verify"], lambda text: None)
        write_certificate(found, self.folder / CERTIFICATE)
        return dict(json.loads((self.folder / CERTIFICATE).read_text()))


def _start(typed: Sequence[str]) -> Path:
    from ippo_cli.cli.start_training import start_training
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.exits import set_library_defaults
    from ippo_cli.compose.load import compose_node, register_options
    from ippo_cli.compose.mistakes import find_saved_overrides
    from ippo_cli.compose.resume import resolve_resume
    from ippo_cli.compose.typed_kinds import check_typed_kinds
    from ippo_cli.compose.user_files import check_user_files

    set_library_defaults()
    register_options()
    argv = normalize_arguments(typed)
    check_user_files(argv)
    check_typed_kinds(argv, find_saved_overrides(argv))
    argv, resumed = resolve_resume(argv)
    command = ["ippo-train", *typed]
    folder = start_training(compose_node(argv), argv, resumed, typed, command=command)
    if folder is None:
        raise ConfigError("mode=plan or mode=pilot", "trains nothing", "use ippo-train for it, or mode=train")
    return folder


@contextmanager
def _convert_hydra_errors(typed: Sequence[str], command_keys: Sequence[str] = ()) -> Iterator[None]:
    """Raise `ConfigError` with all mistakes of the overrides, as the commands report them.

    `command_keys`: keys of the command that are not keys of a run.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        from ippo_cli.compose.mistakes import find_mistakes

        found = find_mistakes(error, typed, command_keys)
        if not found:
            raise
        raise combine_errors(found) from None  # Hydra's message names an internal file


@contextmanager
def _keep_streams() -> Iterator[None]:
    """Restore the standard streams, which a command replaces so that it notices a closed output."""
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams


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

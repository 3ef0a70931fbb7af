"""Train one rank and measure its memory: `watched_memory.py OUT OVERRIDE...` trains as `ippo-train` does, with its rank
from the environment, and writes measured and planned memory of each phase to OUT.

Memory is the process's own memory in the kernel (RssAnon), minus its value before a model is loaded. Mapped files, such
as weights in their stored dtype, are counted separately (RssFile).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401  imported by runs; counted as memory before the run
import peft  # noqa: F401
import torch
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from ippo_cli.cli.train import _dispatch_command
from ippo_cli.compose.exits import run_guarded
from ippo_cli.planning import resources
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.reporting import stopwatch
from ippo_cli.training import build_trainer
from ippo_cli.training.checkpoint import CheckpointManager
from ippo_cli.training.trainer import Trainer

EVERY_S = 0.003
OTHERWISE = "between"  # outside all phases
PHASE_OF = {"logprobs": "targets"}  # phases that the plan includes in another one


class Watch:
    """The peak memory of every phase, sampled by a thread."""

    def __init__(self) -> None:
        self.phase = OTHERWISE
        self.own: dict[str, int] = {}
        self.mapped: dict[str, int] = {}
        self.planned: MemoryEstimate | None = None
        self.before = self.now()
        self.imported = self.before
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Restart the measurement with the current memory as its baseline."""
        self.own, self.mapped, self.before = {}, {}, self.now()

    @staticmethod
    def now() -> tuple[int, int]:
        """Return bytes of the process's own memory and of mapped files."""
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        own, mapped = (int(lines[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile"))
        return own, mapped

    def _look(self) -> None:
        while True:
            self.see()
            time.sleep(EVERY_S)

    def see(self) -> None:
        """Record the current memory."""
        phase = self.phase
        for now, before, seen in zip(self.now(), self.before, (self.own, self.mapped), strict=True):
            seen[phase] = max(seen.get(phase, 0), now - before)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count memory inside this context for the phase."""
        outer, self.phase = self.phase, PHASE_OF.get(phase, phase)
        self.see()
        try:
            yield
        finally:
            self.see()
            self.phase = outer

    def wrapped(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return the function, measured as one phase."""

        def within(*args: Any, **kwargs: Any) -> Any:
            with self.during(phase):
                return function(*args, **kwargs)

        return within


def watch_training(watch: Watch) -> None:
    """Let the phases of a training be told, and keep what it plans."""
    clock, plan = stopwatch.Stopwatch.__call__, resources.estimate_run_memory

    @contextmanager
    def watched_clock(self: stopwatch.Stopwatch, phase: str) -> Iterator[None]:
        with watch.during(phase), clock(self, phase):
            yield

    def planned(*args: Any) -> MemoryEstimate:
        watch.planned = plan(*args)
        return watch.planned

    def beginning(build: Callable[..., Any]) -> Callable[..., Any]:
        def begun(*args: Any) -> Any:
            warm_up()
            watch.begin()
            return build(*args)

        return begun

    stopwatch.Stopwatch.__call__ = watched_clock
    resources.estimate_run_memory = planned
    build_trainer.build_team = beginning(watch.wrapped(build_trainer.build_team, "load"))
    Trainer._evaluate = watch.wrapped(Trainer._evaluate, "rollout")
    CheckpointManager.save = watch.wrapped(CheckpointManager.save, "save")


def warm_up() -> None:
    """Run a model once, so that libraries allocate their buffers before the measurement."""
    size = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
    )
    ids = torch.arange(256)[None]
    for dtype in (torch.float32, torch.bfloat16):
        model = LlamaForCausalLM(size).to(dtype=dtype)  # pyright: ignore[reportCallIssue]
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        loss = checkpoint(lambda model=model: model(input_ids=ids).logits, use_reentrant=False)
        loss.float().log_softmax(-1).sum().backward()
        optimizer.step()


def main() -> None:
    out, overrides = Path(sys.argv[1]), sys.argv[2:]
    watch = Watch()
    watch_training(watch)
    sys.argv = ["ippo-train", *overrides]
    code = run_guarded(lambda: _dispatch_command(overrides), overrides)
    assert watch.planned is not None, "nothing was trained"
    report = {
        "phases": {phase: {"own": watch.own[phase], "mapped": watch.mapped[phase]} for phase in watch.own},
        "before": watch.before,
        "planned": dict(watch.planned.bytes_by_phase),
        "certain": watch.planned.certain_bytes,
        "host": watch.planned.host_bytes,
        "torch": torch.__version__,
    }
    out.write_text(json.dumps(report, indent=1))
    sys.exit(code)


if __name__ == "__main__":
    main()

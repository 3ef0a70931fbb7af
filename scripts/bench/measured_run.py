"""One training run, watched: `measured_run.py OUT [--ideal] OVERRIDE...` trains as `ippo-train` does and writes OUT.

Iterations are timed from the first prompt of one to the first prompt of the next, so that nothing between them is
left out. With `--ideal` the bare cost of each iteration's tokens is measured right after it, outside its time.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ideal import Ideal

from ippo_cli.cli.exits import guarded
from ippo_cli.cli.train import _with_hydra
from ippo_cli.training import trainer as corridor


@dataclass
class Watch:
    """What was seen: seconds of every iteration, and the ideal ones of its phases."""

    ideal: bool
    iterations: list[float] = field(default_factory=list)
    ideals: list[dict[str, float]] = field(default_factory=list)
    own: list[float] = field(default_factory=list)  # seconds that watching took out of each iteration's rollout phase
    rollouts: dict[str, Any] | None = None
    began: float = 0.0
    bare: Ideal | None = None

    def collect(self, agents: Any, batch: Any, config: Any, **options: Any) -> Any:
        training, entered = options["purpose"].startswith("train/"), time.perf_counter()
        if self.rollouts is not None:
            self.iterations.append(entered - self.began)
            if self.ideal:
                self.ideals.append(self._ideal(agents))
            self.rollouts = None
        self.began = time.perf_counter()
        if training:
            self.own.append(self.began - entered)
        rollouts = _collect(agents, batch, config, **options)
        if training:
            self.rollouts = rollouts
        return rollouts

    def _ideal(self, agents: Any) -> dict[str, float]:
        if self.bare is None:
            learner = next(iter(agents.values())).actor
            lm = learner.engine.module.lm
            model = type(lm)(lm.config).to(dtype=lm.dtype, device=lm.device)
            self.bare = Ideal(model, micro_batch_tokens=learner.micro_batch_tokens)
        spent = {"rollout": 0.0, "targets": 0.0, "update": 0.0}
        assert self.rollouts is not None
        for name, rollout in self.rollouts.items():
            prompt, lengths = rollout.prompt_ids.shape[1], rollout.length.tolist()
            spent["rollout"] += self.bare.decode(prompt, lengths)
            spent["targets"] += self.bare.value_forward(prompt, lengths)
            spent["update"] += agents[name].actor.ppo_epochs * self.bare.policy_pass(prompt, lengths)
            spent["update"] += agents[name].critic.ppo_epochs * self.bare.value_pass(prompt, lengths)
        return spent


_collect = corridor.collect


def main() -> None:
    out, ideal, overrides = Path(sys.argv[1]), "--ideal" in sys.argv, [t for t in sys.argv[2:] if t != "--ideal"]
    watch = Watch(ideal)
    corridor.collect = watch.collect
    sys.argv = ["ippo-train", *overrides]
    code = guarded(lambda: _with_hydra(overrides), overrides)
    report = {
        "iterations": watch.iterations,
        "ideals": watch.ideals,
        "own": watch.own,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    out.write_text(json.dumps(report))
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Train one run and time it: `measured_run.py OUT [--ideal] OVERRIDE...` trains as `ippo-train` does and writes OUT.

An iteration is timed from its start to the start of the next one, to include everything between them; so the last
iteration has no time. `--ideal` measures the bare cost of each iteration's tokens after it, outside its time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ideal import Ideal, TurnTokens

from ippo_cli.cli.train import _dispatch_command
from ippo_cli.compose.exits import run_guarded
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Episode, Experience, Targets


@dataclass
class Watch:
    """Seconds of every iteration, and ideal seconds of its phases."""

    ideal: bool
    iterations: list[float] = field(default_factory=list)
    ideals: list[dict[str, float]] = field(default_factory=list)
    experience: Experience | None = None  # of the iteration being timed
    began: float = 0.0
    bare: Ideal | None = None

    def step(self, trainer: Trainer) -> tuple[Experience, dict[str, Targets]]:
        """Run and time one iteration; the overhead of measuring is before its start."""
        if self.experience is not None:
            self.iterations.append(time.perf_counter() - self.began)
            if self.ideal:
                self.ideals.append(self._ideal(trainer.state.team, self.experience))
            self.experience = None
        self.began = time.perf_counter()
        self.experience, targets = _step(trainer)
        return self.experience, targets

    def _ideal(self, agents: Any, experience: Experience) -> dict[str, float]:
        if self.bare is None:
            learner = next(iter(agents.values())).policy
            lm = learner.engine.module.lm
            model = type(lm)(lm.config).to(dtype=lm.dtype, device=lm.device)
            self.bare = Ideal(model, micro_batch_tokens=learner.micro_batch_tokens)
        spent = {"rollout": 0.0, "targets": 0.0, "update": 0.0}
        for name, rollout in experience.rollouts.items():
            assert not any(rollout.detached), "the ideal needs rows of one sequence each"
            lengths = (rollout.prompt_mask.sum(dim=1) + rollout.length).tolist()
            actions = rollout.response_mask.sum(dim=1).tolist()
            spent["rollout"] += self.bare.decode(turn_tokens(experience.episodes, name))
            spent["targets"] += self.bare.value_forward(lengths)
            if agents[name].has_reference:
                spent["targets"] += self.bare.policy_forward(lengths, actions)
            spent["update"] += agents[name].policy.ppo_epochs * self.bare.policy_pass(lengths, actions)
            spent["update"] += agents[name].critic.ppo_epochs * self.bare.value_pass(lengths)
        return spent


def turn_tokens(episodes: Sequence[Episode], agent: str) -> list[TurnTokens]:
    """Count tokens that an agent's turns process and generate if each token is processed once, except the last one."""
    own, found = [episode.turns_of_agent(agent) for episode in episodes], []
    for number in range(max(map(len, own))):
        rows = [turns for turns in own if len(turns) > number]
        there = [len(turns[number].prompt) for turns in rows]
        kept = [
            len(turns[number - 1].prompt) + len(turns[number - 1].completion.ids) - 1 if number else 0 for turns in rows
        ]
        before = round(statistics.mean(kept))
        written = [len(turns[number].completion.ids) for turns in rows]
        found.append(TurnTokens(kept=before, read=round(statistics.mean(there)) - before, written=written))
    return found


_step = Trainer.step


def main() -> None:
    out, ideal, overrides = Path(sys.argv[1]), "--ideal" in sys.argv, [t for t in sys.argv[2:] if t != "--ideal"]
    watch = Watch(ideal)
    Trainer.step = lambda self: watch.step(self)
    sys.argv = ["ippo-train", *overrides]
    code = run_guarded(lambda: _dispatch_command(overrides), overrides)
    report = {
        "iterations": watch.iterations,
        "ideals": watch.ideals,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    out.write_text(json.dumps(report))
    sys.exit(code)


if __name__ == "__main__":
    main()

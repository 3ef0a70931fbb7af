"""One real update of every algorithm with every critic it allows: run as a script, one process per rank.

    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python matrix.py OUT

One process group serves all cases; rank 0 writes what happened to OUT/results.pt, and the test judges it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))  # `small`

from small import SMALL

from ippo_cli.cli.exits import leave
from ippo_cli.config.checks import check
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import config_dir, load_config
from ippo_cli.config.schema import Config
from ippo_cli.config.schema import Console as Style
from ippo_cli.engine import distributed
from ippo_cli.training.console import Console
from ippo_cli.training.folder import reserve_folder
from ippo_cli.training.run import Run, RunState
from ippo_cli.training.signals import Departure
from ippo_cli.training.trainer import build_trainer, prepare_process

ALGORITHMS = sorted(file.stem for file in (config_dir() / "algorithm").glob("*.yaml"))
CRITICS = ("separate", "value_head", "none")
TINY = (
    *SMALL, "task=sorting_solo", "actor.hidden_size=16", "actor.warm_start_steps=1", "task.train_size=24",
    "rollout.max_new_tokens=5", "rollout.temperature=1.5", "evaluation.every=0", "launch.threads=1",
    "actor.learning_rate=0.01", "actor.warmup_iterations=0",
)  # fmt: skip
# Orthogonal pieces on algorithms that do not have them by themselves.
PIECES: dict[str, tuple[str, ...]] = {
    "exact KL in the loss": ("algorithm=ppo", "algorithm.kl.loss.coef=0.1", "algorithm.kl.loss.estimator=full"),
    "exact KL in the reward": ("algorithm=reinforce_plus_plus", "algorithm.kl.reward.estimator=full",
                               "algorithm.kl.reward.target=0.01"),
    "straight-through KL": ("algorithm=grpo", "algorithm.kl.loss.estimator=k1+"),
    "token weights": ("algorithm=ppo", "rollout.top_p=0.8", "algorithm.behavior_correction.level=token",
                      "algorithm.behavior_correction.cap=2.0"),
    "sequence weights in a band": ("algorithm=grpo", "rollout.top_k=4", "algorithm.behavior_correction.level=sequence",
                                   "algorithm.behavior_correction.band_low=0.01",
                                   "algorithm.behavior_correction.band_high=2.0"),
    "GSPO": ("algorithm=grpo", "algorithm.ratio_level=sequence", "algorithm.ratio_pooling=mean"),
    "adaptive lambda": ("algorithm=ppo", "algorithm.gae_lambda=null", "algorithm.length_adaptive_alpha=0.5",
                        "algorithm.critic_gae_lambda=1.0", "algorithm.dual_clip=3.0"),
    "rewards to go by turn": ("algorithm=reinforce_plus_plus", "algorithm.credit=turn", "algorithm.gamma=0.9"),
    "automatic credit": ("algorithm=turn_ppo", "algorithm.credit=auto", "algorithm.turn_value=mean"),
    "extremes only": ("algorithm=grpo", "algorithm.reweight.method=max_min"),
    "truncation masked": ("algorithm=rloo", "algorithm.truncation=mask"),
    "truncation penalised": ("algorithm=remax", "algorithm.truncation=penalty", "algorithm.truncation_penalty=0.5"),
    "bootstrap at turns": ("algorithm=turn_ppo", "critic=value_head", "algorithm.truncation=bootstrap"),
}  # fmt: skip


def cases(root: Path) -> dict[str, Config]:
    """Name -> configuration, for all that the checks allow."""
    wanted = {f"{name} {critic}": (f"algorithm={name}", f"critic={critic}") for name in ALGORITHMS for critic in CRITICS}
    found: dict[str, Config] = {}
    for name, overrides in (wanted | PIECES).items():
        config = load_config([*TINY, f"output_dir={root}", *overrides])
        if config.algorithm.mini_batch_size is not None:
            config.algorithm.mini_batch_size = 8
        try:
            check(config, 2)
        except ConfigError as error:
            assert str(error).startswith("critic="), (name, error)
            continue
        found[name] = config
    return found


def one_update(config: Config, root: Path, device: torch.device) -> dict[str, Any]:
    """Metrics of one iteration, and which parameters it moved."""
    folder = distributed.broadcast_object(reserve_folder(root / "runs") if distributed.is_main() else None)
    trainer = build_trainer(
        config, folder, Run(folder, config.tracker, RunState()), Console(Style.plain, ["solo"]), Departure(), device,
        resumed=False,
    )  # fmt: skip
    agent = trainer.state.agents["solo"]
    before = {learner.role: learner.engine.full_state_dict() for learner in agent.learners}
    trainer._walk(0)
    row = trainer.state.progress.row
    after = {learner.role: learner.engine.full_state_dict() for learner in agent.learners}
    trainer.free()
    moved = {
        f"{role}/{name}": not torch.equal(value, after[role][name])
        for role, weights in before.items()
        if weights is not None
        for name, value in weights.items()
    }
    return {"row": row, "moved": moved}


def main(out: Path) -> None:
    found = cases(out)
    device = prepare_process(next(iter(found.values())))
    results = {name: one_update(config, out, device) for name, config in found.items()}
    if distributed.is_main():
        torch.save(results, out / "results.pt")
    distributed.barrier()
    distributed.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)

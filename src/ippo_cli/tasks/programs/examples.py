"""Examples of `task=program`: rows of data, or seeds if `task.train` is null."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.config.schema import ProgramConfig
from ippo_cli.tasks.environments.examples import make_seed_examples
from ippo_cli.tasks.jsonl import jsonl_examples
from ippo_cli.types import Example

NUM_TRAINING_SEEDS = 65536
NUM_HELD_OUT_SEEDS = 256


def program_examples(config: ProgramConfig, seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return training and held-out examples."""
    if config.train is not None:
        return jsonl_examples(config, seed)
    return make_seed_examples(config.train_size or NUM_TRAINING_SEEDS, config.eval_size or NUM_HELD_OUT_SEEDS, seed)

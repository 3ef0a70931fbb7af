"""What `--help` prints: written by `scripts/docs.py`, read without importing anything heavy."""

from collections.abc import Sequence
from pathlib import Path

HELP_FLAGS = ("-h", "--help")
VERSION_FLAGS = ("-V", "--version")
TRAIN_HELP = (Path(__file__).parent / "help.txt").read_text()
EVAL_HELP = """\
ippo-eval: score a run's checkpoint on the task's held-out data, sampled and greedy.

  ippo-eval run=outputs/default/RUN                    the newest checkpoint
  ippo-eval run=outputs/default/RUN checkpoint=best    the best one; or an iteration's number
  ippo-eval run=outputs/default/RUN evaluation.seed=7 rollout.temperature=0.5

Any other key=value changes the run's configuration for this evaluation. The scores are printed and written to
evaluations/ in the run's folder, with these changes, under a name that differs where they do.
"""


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether anything that was typed is a question for help."""
    return list(argv) == ["help"] or any(argument in HELP_FLAGS for argument in argv)


def asks_for_version(argv: Sequence[str]) -> bool:
    """Whether anything that was typed is a question for the version."""
    return any(argument in VERSION_FLAGS for argument in argv)

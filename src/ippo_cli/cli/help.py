"""What `--help` prints: written by `scripts/docs.py`, read without importing anything heavy."""

from collections.abc import Sequence
from pathlib import Path

HELP_FLAGS = ("-h", "--help")
VERSION_FLAGS = ("-V", "--version")
TRAIN_HELP = (Path(__file__).parent / "help.txt").read_text()
EVAL_HELP = """\
ippo-eval: score a run's weights, or a Hugging Face model, on held-out data, sampled and greedy.

  ippo-eval run=outputs/default/RUN                      the newest checkpoint
  ippo-eval run=outputs/default/RUN checkpoint=best      or latest, initial (before training), an iteration's number
  ippo-eval run=outputs/default/RUN evaluation.seed=7 rollout.temperature=0.5
  ippo-eval run=[outputs/default/A,outputs/default/B] crossplay=true     agents of each run beside those of the others
  ippo-eval run=outputs/default/RUN crossplay=true checkpoints=all       or of one run's: best,latest,initial,40
  ippo-eval model=PATH task=sorting_solo                 a Hugging Face folder or hub id, for every agent of the task
  ippo-eval model=PATH task=jsonl task.eval=test.jsonl 'task.agents.solo.answer="{answer}"' actor.dtype=fp32
  ippo-eval model=PATH task=sorting task.agents.high.actor.model=OTHER

Other keys change the configuration for this evaluation: task, reward, evaluation.seed and .greedy, how responses are
sampled (rollout.), prompts and held-out data (task.), actor.dtype, launch.device. What can have no effect is refused.
The scores are printed and written, with what was evaluated and these changes, to evaluations/ in the run's folder, or
for model= in output_dir, under a name that differs where they do. With crossplay=true every agent of each checkpoint is
scored beside the other agents of each, on the same examples with the same random numbers: a table, crossplay.json,
crossplay.csv and a picture, with the means of self-play and cross-play and their gap.
"""
SWEEP_HELP = """\
ippo-sweep: one table and one picture for a sweep, finished or not.

  ippo-sweep outputs/default/multirun-20260101-120000          the folder that has sweep.json
  ippo-sweep outputs/grpo-seeds                                or one of runs, such as those of a job array
  ippo-sweep outputs/default/multirun-... to=report            write the report elsewhere

One line for each configuration: jobs that differ in their seed alone are one, with the mean of those that ended and a
95% t-interval. Then the jobs that failed, and the command that goes on with what is missing. The same is written
as summary.json and summary.csv, and with matplotlib as summary.png, into the folder. Nothing else is read or changed.
"""


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether anything that was typed is a question for help."""
    return list(argv) == ["help"] or any(argument in HELP_FLAGS for argument in argv)


def asks_for_version(argv: Sequence[str]) -> bool:
    """Whether anything that was typed is a question for the version."""
    return any(argument in VERSION_FLAGS for argument in argv)

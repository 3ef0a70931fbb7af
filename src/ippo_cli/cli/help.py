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
  ippo-eval run=outputs/default/RUN evaluation.num_generations=8     8 samples a row: pass@2, 4 and 8
  ippo-eval run=outputs/default/RUN compare=initial      two on the same rows: differences, intervals, p values
  ippo-eval run=outputs/default/RUN compare=PATH         PATH: another run (compare_checkpoint=best) or a model
  ippo-eval run=[outputs/default/A,outputs/default/B] crossplay=true     agents of each run beside those of the others
  ippo-eval run=outputs/default/RUN crossplay=true checkpoints=all       or of one run's: best,latest,initial,40
  ippo-eval model=PATH task=sorting_solo                 a Hugging Face folder or hub id, for every agent of the task
  ippo-eval model=PATH task=jsonl task.eval=test.jsonl 'task.agents.solo.answer="{answer}"' actor.dtype=fp32
  ippo-eval model=PATH task=sorting task.agents.high.actor.model=OTHER

Other keys change the configuration for this evaluation: task, reward, evaluation. (size, seed, sampled, greedy,
num_generations), how responses are sampled (rollout.), prompts and held-out data (task.), actor.dtype, launch.device.
What can have no effect is refused. Scores with intervals of 95 % are printed and written, with what was evaluated and
these changes, to evaluations/ in the run's folder, or for model= in output_dir, under a name that differs where they
do; every response is in a file beside them. With crossplay=true every agent of each checkpoint is scored beside the
other agents of each, on the same examples with the same random numbers: a table, crossplay.json, crossplay.csv and a
picture, with the means of self-play and cross-play and their gap.
"""
EXPORT_HELP = """\
ippo-export: write a run's agents as Hugging Face folders with model cards, verified to load identically.

  ippo-export run=outputs/default/RUN to=exported                     every agent's newest weights: exported/AGENT/
  ippo-export run=outputs/default/RUN to=exported checkpoint=best     or latest, initial, an iteration's number
  ippo-export run=outputs/default/RUN to=exported agent=low           one agent, or several: agent=low,high
  ippo-export run=outputs/default/RUN to=exported critic=true         and its critic: exported/AGENT/critic/
  ippo-export run=outputs/lora/RUN to=exported merged=false           of actor=lora the adapter alone, in peft's format

Folders are read by transformers (an adapter by peft) without this program. What they compute is compared with what the
run's own weights compute before the folder gets its name: a command that was stopped leaves nothing under to=.
"""
CHAT_HELP = """\
ippo-chat: talk to an agent of a run, or let its agents answer a prompt together, in the terminal.

  ippo-chat run=outputs/default/RUN agent=low            one agent; checkpoint=best, or latest, initial, a number
  ippo-chat run=outputs/default/RUN                      the whole team answers, each agent as the task has it
  ippo-chat run=outputs/default/RUN agent=low raw=true   what is typed is all that it is told
  ippo-chat model=PATH                                   a Hugging Face folder or hub id

What is typed goes into the templates of the task, field by field; later messages to one agent are told as they are.
greedy=true, seed=7 and the keys of rollout. (temperature=0.5 is rollout.temperature=0.5) say how answers are sampled.
/reset begins anew, /exit and the end of the input leave. Lines may be piped in. What models write is shown escaped.
"""
SWEEP_HELP = """\
ippo-sweep: one table and one picture for a sweep, finished or not.

  ippo-sweep outputs/default/multirun-20260101-120000          the folder that has sweep.json
  ippo-sweep outputs/grpo-seeds                                or one of runs, such as those of a job array
  ippo-sweep outputs/default/multirun-... to=report            write the report elsewhere

One line for each configuration: jobs that differ in their seed alone are one, with the mean of those that ended and a
95% t-interval. Then the jobs that failed, and the command that resumes the missing jobs. The same is written
as summary.json and summary.csv, and with matplotlib as summary.png, into the folder. Nothing else is read or changed.
"""


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether anything that was typed is a question for help."""
    return list(argv) == ["help"] or any(argument in HELP_FLAGS for argument in argv)


def asks_for_version(argv: Sequence[str]) -> bool:
    """Whether anything that was typed is a question for the version."""
    return any(argument in VERSION_FLAGS for argument in argv)

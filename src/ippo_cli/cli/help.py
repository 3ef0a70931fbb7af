"""Texts of `--help`; `scripts/docs.py` generates those of groups and keys. Imports only the standard library."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

EXPLAIN_FLAG = "--explain"  # as --help with a group or key
HELP_FLAGS = ("-h", "--help", EXPLAIN_FLAG)
VERSION_FLAGS = ("-V", "--version")
WIDTH = 100
MIN_LIKENESS = 0.75  # of a name that is suggested for another one
MIN_WORD = 3  # letters of a topic that is searched in the meanings of keys
MAX_FOUND = 6
KEYS_FILE = Path(__file__).parent / "help_keys.json"
TRAIN_HELP = (Path(__file__).parent / "help.txt").read_text()
EVAL_HELP = """\
ippo-eval: score a run's weights, or a Hugging Face model, on held-out data, sampled and greedy.

  ippo-eval run=outputs/default/RUN                    the newest checkpoint
  ippo-eval run=outputs/default/RUN checkpoint=best    or latest, initial, an iteration's number
  ippo-eval run=outputs/default/RUN evaluation.seed=7 rollout.temperature=0.5
  ippo-eval run=outputs/default/RUN evaluation.num_generations=8     8 samples a row: pass@2, 4, 8
  ippo-eval run=outputs/default/RUN format=markdown      a row per agent and part; json, csv, latex
  ippo-eval run=outputs/default/RUN json=true            only JSON on stdout, all else on stderr
  ippo-eval run=outputs/default/RUN compare=initial      two on the same rows: intervals, p values
  ippo-eval run=outputs/default/RUN compare=PATH         a run (compare_checkpoint=best) or a model
  ippo-eval run=[outputs/default/A,outputs/default/B] crossplay=true     agents of several runs
  ippo-eval run=outputs/default/RUN crossplay=true checkpoints=all       of one run: best,initial,40
  ippo-eval run=outputs/default/RUN attribution=true     which agent caused the gain: Shapley values
  ippo-eval run=outputs/default/RUN exploitability=true  zero-sum games: gains of best responders
  ippo-eval run=outputs/default/RUN critic=true          its critic's values: bias, ranks, variance
  ippo-eval run=outputs/default/RUN credit=true          kinds of credit of turns, by their ranks
  ippo-eval model=PATH task=sorting_solo                 a folder or hub id for all agents
  ippo-eval model=exported task=sorting                  a team that ippo-export wrote
  ippo-eval model=PATH task=jsonl task.eval=test.jsonl 'task.agents.solo.answer="{answer}"'
  ippo-eval model=PATH task=sorting task.agents.high.actor.model=OTHER

run= also takes outputs/NAME (its newest run), latest, and RUN/checkpoints/step_N; a folder without
run= is the run. Other keys change the configuration for this evaluation: task, reward, evaluation.
(size, seed, sampled, greedy, num_generations), how responses are sampled (rollout.), prompts and
held-out data (task.), actor.dtype, launch.device; ippo-eval --help KEY explains one. Keys without
an effect are errors. Scores with 95 % intervals are printed and written to evaluations/ in the
run's folder (for model= in output_dir), with every response in a separate file.
"""
EXPORT_HELP = """\
ippo-export: write a run's agents as Hugging Face folders, verified to load identically.

  ippo-export run=outputs/default/RUN to=exported                   newest weights: exported/AGENT/
  ippo-export run=outputs/default/RUN to=exported checkpoint=best   latest, initial, or a number
  ippo-export run=outputs/default/RUN to=exported agent=low         one agent, or agent=low,high
  ippo-export run=outputs/default/RUN to=exported critic=true       and its critic, in AGENT/critic/
  ippo-export run=outputs/lora/RUN to=exported merged=false         an adapter alone, for peft
  ippo-export run=outputs/lora/RUN to=exported dtype=bf16           half the size; its loss is shown

An adapter is merged into its base in float32, without loss; AGENT/adapter/ is the adapter itself.

Folders load with transformers (adapters with peft), without this program. Their outputs are
compared with those of the run before the folder is renamed to its final name: an interrupted export
leaves nothing under to=. ippo-eval model=exported evaluates the whole team.
"""
CHAT_HELP = """\
ippo-chat: talk to an agent of a run, or let its agents answer a prompt together, in the terminal.

  ippo-chat run=outputs/default/RUN agent=low            checkpoint=best, latest, initial, a number
  ippo-chat run=outputs/default/RUN                      the whole team answers, as the task has it
  ippo-chat run=outputs/default/RUN agent=low raw=true   prompts are used as typed, without template
  ippo-chat model=PATH                                   a Hugging Face folder or hub id
  ippo-chat run=outputs/default/RUN serve=true             an OpenAI-compatible address (port=8000)

Typed lines fill the templates of the task, field by field; later messages to one agent are used
unchanged. greedy=true, seed=7 and the keys of rollout. (temperature=0.5 is
rollout.temperature=0.5) control sampling. /reset starts a new conversation; /exit or the end of the
input exits. Lines may be piped in. Control characters in answers are shown escaped.

serve=true answers chat completions at host=127.0.0.1 until it is interrupted. Clients
send the key of IPPO_API_KEY, or the one that is printed.
"""
SWEEP_HELP = """\
ippo-sweep: one table and one picture for a sweep, finished or not.

  ippo-sweep outputs/default/multirun-20260101-120000     the folder that has sweep.json
  ippo-sweep outputs/grpo-seeds                           or a folder of runs, as of a job array
  ippo-sweep outputs/default/multirun-... to=report       write the report elsewhere

Prints one line per configuration: jobs that differ only in the seed share a line with the mean of
the finished jobs and a 95 % t-interval; then failed jobs and the command that resumes missing jobs.
The report is also written into the folder as summary.json and summary.csv, and as summary.png if
matplotlib is installed. No other file is changed.
"""
CONTROLS_HELP = """\
ippo-controls: was it the team? Trains a team beside its control arms, and says which it beats.

  ippo-controls task=signalling algorithm=ppo            the overrides of ippo-train; all arms
  ippo-controls task=sorting controls.single='task=sorting_solo'     one agent that does the task
  ippo-controls ... controls.arms=[shared_policy,other_seeds]        these arms only
  ippo-controls ... controls.seeds=30 controls.alpha=0.1 controls.range=[-1,1]
  ippo-controls ... sweep.max_parallel=4                 as sweeps: or hydra/launcher=submitit_slurm
  ippo-controls ... mode=plan                            checks and plans every arm, trains nothing
  ippo-controls outputs/controls/default-0123abcd        prints the table of a comparison

Arms: single_samples, single_tokens (one agent, equal samples or tokens), frozen_partner_AGENT (only
AGENT learns), shared_policy, no_messages, other_seeds (agents of two runs). Final held-out scores
are paired by seed. An arm ends when its confidence sequence excludes a difference of 0, or after
controls.seeds=20 seeds; the error probability controls.alpha=0.05 is split over the arms.
controls.range= is the range of scores, if it is not known; controls.differences=normal needs none,
and fewer seeds. The same command continues a comparison that was stopped. controls.to= is its
folder, which has controls.md, controls.json and the runs.
"""
BENCH_HELP = """\
ippo-bench: a benchmark of teams with known bounds, for this and for other trainers.

  ippo-bench list                                tasks: scores of random play, of one agent that
                                                 learns, and of optimal play
  ippo-bench run copy_1 entry=mine algorithm=mappo       trains team and control arms, five seeds
  ippo-bench run copy_1 seeds=20 controls.arms=[single_samples,shared_policy]
  ippo-bench prompts copy_1 to=rows.jsonl        the held-out rows of five seeds, for other trainers
  ippo-bench prompts copy_1 to=train.jsonl split=train seeds=1       rows to train on; arm=NAME
  ippo-bench import answers.jsonl task=copy_1 entry=theirs trainer='comlrl 1.4.3'
  ippo-bench import single.jsonl task=copy_1 entry=theirs arm=single_samples
  ippo-bench table RESULT.json... FOLDER         scores, control arms, what is settled; page=FILE
                                                 writes it into a Markdown page

ippo-bench run takes overrides of ippo-train, except those that change the task or its score, and the
keys of ippo-controls. Without any it trains small models with clipped independent PPO. Its result is
result.json in the folder that it prints, and to=FILE. The same command continues one that was
stopped. ippo-bench import replays responses in the task's environment, and refuses a file with
missing, unknown or repeated rows. to= of it is the result, default TASK-ENTRY.json; a further arm
is added to it. Results of other versions of a task are refused.
"""
RUNS_HELP = """\
ippo-runs: list, compare, show, remove and clean up the folders of runs.

  ippo-runs                                      all runs below outputs/, newest first
  ippo-runs FOLDER... json=true                  below other folders; as JSON
  ippo-runs state=failed name='sort*'            running, done, preempted, failed, interrupted
  ippo-runs algorithm.advantage=gae seed=1,2     any key of the configuration; sort=score
  ippo-runs compare RUN RUN...                   differing keys, scores and metrics
  ippo-runs compare FOLDER metrics='*/score/*'   all runs below a folder; other metrics
  ippo-runs show RUN                             details, warnings, and commands to go further
  ippo-runs remove RUN...                        what would be removed, and how much space
  ippo-runs remove RUN... confirm=true           removes it
  ippo-runs clean older_than_days=7              failed runs that cannot be resumed, and
                                                 unfinished checkpoints; confirm=true removes them

sort= is age, score (the last one), best, size, name or iterations. Runs that differ only in seed
are one group of ippo-runs compare: their scores are means with 95 % t-intervals. Nothing is removed
without confirm=true, and never a run that a process uses; ippo-runs clean keeps every run with a
checkpoint. Links are not followed.
"""
DOCTOR_HELP = """\
ippo-doctor: examine this machine, or find out why a run does not learn.

  ippo-doctor                            cores, memory, GPUs, packages, compilers, SLURM, disk
  ippo-doctor --json                     the same for a bug report, without secrets
  ippo-doctor output_dir=/scratch/runs   the disk of another folder
  ippo-doctor network=true               also asks the model hub for an answer
  ippo-doctor outputs/default/RUN        findings, evidence, and what to try
  ippo-doctor outputs/default/RUN --json

A diagnosis reads the metrics, samples and configuration of a run, running or not, and trains
nothing. Findings are ordered from causes to consequences, with the keys to try; a finding that has
other explanations is marked likely or possible. docs/doctor.md has the conditions
and what they were checked on.
"""
VERIFY_HELP = """\
ippo-verify: compare a run's files with recorded hashes, and execute some of its iterations again.

  ippo-verify outputs/default/RUN                        all files, and two random iterations
  ippo-verify outputs/default/RUN iterations=12,40       these iterations
  ippo-verify outputs/default/RUN count=5 seed=1         five random ones
  ippo-verify outputs/default/RUN count=0                files only, in seconds
  ippo-verify outputs/default/RUN to=certificate.json    write the certificate elsewhere

Iterations are executed in a temporary folder, from the newest kept checkpoint before them or from
the initial weights, with the recorded numbers of processes and threads. Rows, sample files and the
weights of the next kept checkpoint must be equal to the byte. A random iteration needs at most
span=20 iterations. The result is printed and written to RUN/verification.json; no other file of
the run changes. Exit code 0: verified; 15: something differs, with file, line and first value.
"""
REPORT_HELP = """\
ippo-report: write one HTML page about runs: curves, sampled episodes, critics, configuration.

  ippo-report outputs/default/RUN                        writes RUN/report.html
  ippo-report outputs/default                            all runs of an experiment, or of a sweep
  ippo-report outputs/a/RUN outputs/b to=compare.html    several runs, compared
  ippo-report outputs/default/RUN title='first try'
  ippo-report outputs/default --png --csv --markdown --latex

The page opens from the file, without a server or a network, also while the run trains; it shows
what was written until then. Runs that differ only in the seed are one configuration, with means and
95 % t-intervals. It has at most 30 MB: token values of the oldest sample files are left out first.
Beside the page: --png draws the curves (needs matplotlib), --csv writes all metrics, --markdown and
--latex a table of held-out scores per agent and part.
"""


def has_help_flag(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for help."""
    return list(argv) == ["help"] or any(_is_help_flag(argument) for argument in argv)


def _is_help_flag(argument: str) -> bool:
    return argument in HELP_FLAGS or argument.startswith(f"{EXPLAIN_FLAG}=")


def has_version_flag(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for the version."""
    return any(argument in VERSION_FLAGS for argument in argv)


def help_topic(argv: Sequence[str]) -> str | None:
    """What follows the help flag: a group, a key, `GROUP=OPTION`, an option or a metric; None without one."""
    flag = next((place for place, text in enumerate(argv) if _is_help_flag(text)), len(argv))
    if flag < len(argv) and argv[flag].startswith(f"{EXPLAIN_FLAG}="):
        return argv[flag].partition("=")[2] or None
    following = argv[flag + 1].lstrip("+~") if flag + 1 < len(argv) else ""
    return following if following and not following.startswith("-") else None


def explain_topic(topic: str, own_help: str = "", own_keys: Sequence[str] = ()) -> str | None:
    """The help page of a topic from `help_keys.json`; None if it is unknown.

    `own_help`: the help of a command with the keys `own_keys`; its lines about a key explain it.
    """
    known = json.loads(KEYS_FILE.read_text())
    topic, _, option = topic.partition("=")
    if topic in own_keys:
        lines = [
            line for line in own_help.splitlines()[1:] if re.search(rf"(?<![\w.]){topic}=|(?<!\w){topic}(?!\w)", line)
        ]
        return "\n".join([f"{topic}: a key of this command", *lines]) + "\n"
    key = re.sub(r"^task\.agents\.\w+\.(?=\w+\.)", "", topic)
    if (named := re.sub(r"^task\.agents\.\w+\.", "task.agents.NAME.", topic)) in known["keys"]:
        key = named
    if option and (page := _option_page(key, option, known)):
        return page
    if key == "experiment" and (not option or option in known["experiments"]):
        return _experiments_page(known["experiments"], option)
    if key in known["groups"]:
        return _group_page(key, known)
    below = {name: entry for name, entry in known["keys"].items() if name.startswith(f"{key}.")}
    if key in known["keys"]:
        return _key_page(key, known["keys"][key]) + "".join(f"{line}\n" for line in _key_lines(below))
    if below:
        return "\n".join([f"{key}: keys", *_key_lines(below)]) + "\n"
    if metrics := _find_metrics(key, known["metrics"]):
        return "".join("\n".join(_format_columns(f"{name}:", meaning, 2)) + "\n" for name, meaning in metrics.items())
    pages = [page for group in known["groups"] if (page := _option_page(group, key, known))]
    pages += [_experiments_page(known["experiments"], key)] if key in known["experiments"] else []
    if pages:
        return "".join(pages)
    if within := {name: entry for name, entry in known["keys"].items() if f".{key}." in name}:
        return "\n".join([f"{key}: keys", *_key_lines(within)]) + "\n"
    answer = _peer_answer(key, known["peers"])
    return None if answer is None else f"{topic}: {answer}\n"


def unknown_topic_message(topic: str, argv: Sequence[str], own_keys: Sequence[str] = (), own_help: str = "") -> str:
    """The error message for an unknown topic, with the closest known names, else the keys that mention it.

    `own_keys`: those of the command. `own_help`: a command without keys of a run; its help lists all its keys.
    """
    flag = next((text.partition("=")[0] for text in argv if _is_help_flag(text)), "--help")
    if not topic:
        return f"ippo: {flag} needs a group or key; use {flag} rollout.temperature"
    message = f"ippo: {flag} {topic} is not a group or key"
    if own := get_close_matches(topic, own_keys, n=3, cutoff=MIN_LIKENESS):
        return f"{message}; did you mean {' or '.join(own)}?"
    if own_help:
        return f"{message} of {own_help}; {own_help} --help lists its keys"
    known = json.loads(KEYS_FILE.read_text())
    options = dict.fromkeys(option for group in known["groups"].values() for option in group)
    names = [*known["groups"], *known["keys"], *options, *known["experiments"]]
    tails = {name.rpartition(".")[2]: name for name in known["keys"]}
    close = get_close_matches(topic, names, n=3, cutoff=MIN_LIKENESS) or [
        tails[tail] for tail in get_close_matches(topic.rpartition(".")[2], tails, n=3, cutoff=MIN_LIKENESS)
    ]
    same = [name for name in known["keys"] if name.endswith(f".{topic}")]
    begun = [name for tail, name in tails.items() if tail.startswith(f"{topic}_")]
    if likely := sorted(dict.fromkeys([*same, *begun]), key=lambda name: name.count(".")) or close:
        return f"{message}; did you mean {' or '.join(likely[:3])}?"
    word = re.compile(rf"(?<![a-z]){re.escape(topic.lower())}")
    found = [name for name in known["keys"] if word.search(name.lower())]
    found += [name for name, entry in known["keys"].items() if word.search(entry["meaning"].lower())]
    if len(topic) >= MIN_WORD and found:
        return f"{message}; keys that mention it: {' '.join(dict.fromkeys(found[:MAX_FOUND]))}"
    return f"{message}; ippo-train --help lists groups"


def _option_page(group: str, option: str, known: dict[str, Any]) -> str | None:
    """The meaning of an option of a group; None if the group does not have it."""
    meaning = known["groups"].get(group, {}).get(option)
    if meaning is None:
        return None
    lines = textwrap.wrap(f"{group}={option}: {meaning}", WIDTH, subsequent_indent="  ")
    return (
        "\n".join([*lines, f"  ippo-train --help {group} lists its keys; --cfg job {group}={option} their values"])
        + "\n"
    )


def _experiments_page(experiments: dict[str, str], name: str = "") -> str:
    """The meaning of one experiment, or of all."""
    if name:
        lines = textwrap.wrap(f"experiment={name}: {experiments[name]}", WIDTH, subsequent_indent="  ")
        return "\n".join([*lines, f"  ippo-train --cfg job experiment={name} shows its values"]) + "\n"
    width = max(map(len, experiments)) + 4
    lines = [line for one, meaning in experiments.items() for line in _format_columns(f"  {one}", meaning, width)]
    return "\n".join(["experiment=", "", "Experiments: files of settings, without a default", *lines]) + "\n"


def _find_metrics(topic: str, metrics: dict[str, str]) -> dict[str, str]:
    """The metrics that a topic names; of those with placeholders the ones with fewest, if no other fits."""
    found = [name for name in metrics if _is_metric(topic, name)]
    if not found:
        found = [name for name in metrics if "/" in topic and re.fullmatch(_metric_pattern(name), topic)]
        fewest = min((name.count("<") for name in found), default=0)
        found = [name for name in found if name.count("<") == fewest]
    return {name: metrics[name] for name in found}


def _metric_pattern(name: str) -> str:
    """A pattern of the metric's names: a placeholder such as `<mode>` is any text without a slash."""
    return "".join("[^/]+" if part.startswith("<") else re.escape(part) for part in re.split(r"(<\w+>)", name))


def _is_metric(topic: str, name: str) -> bool:
    """Whether a topic is a metric, with or without the agent or learner before its name."""
    bare = re.sub(r"^<(?:agent|learner)>/", "", name)
    return "/" in topic and (topic in (name, bare) or topic.endswith(f"/{bare}"))


def _group_page(group: str, known: dict[str, Any]) -> str:
    options = known["groups"][group]
    width = max(map(len, options)) + 4
    lines = [f"{group}=", "", "Options (the first is the default)"]
    for option, meaning in options.items():
        lines += _format_columns(f"  {option}", meaning, width)
    keys = {name: entry for name, entry in known["keys"].items() if name.startswith(f"{group}.")}
    return "\n".join([*lines, "", f"Keys (ippo-train --help {group}.KEY explains one)", *_key_lines(keys)]) + "\n"


def _key_lines(keys: dict[str, Any]) -> list[str]:
    width = min(max(map(len, keys), default=0) + 4, 38)
    return [line for name, entry in keys.items() for line in _format_columns(f"  {name}", entry["meaning"], width)]


def _key_page(key: str, entry: dict[str, Any]) -> str:
    variants = [entry, *entry["others"]]
    rows = [("type", _by_options(variants, lambda one: str(one["type"])))]
    if values := _by_options(variants, lambda one: " | ".join(one["values"])):
        rows.append(("values", values))
    rows.append(("default", _join_defaults(entry["defaults"])))
    if entry["pretrained"]:
        rows.append(("", f"of a pretrained actor, such as actor=full: {_join_defaults(entry['pretrained'])}"))
    if entry["peers"]:
        rows.append(("elsewhere", ", ".join(entry["peers"])))
    if entry["readers"]:
        rows.append(("read by", ", ".join(entry["readers"])))
    meaning = _by_options(variants, lambda one: one["meaning"] or "see docs/config.md")
    lines = textwrap.wrap(f"{key}: {meaning}", WIDTH, subsequent_indent="  ")
    for label, text in rows:
        lines += _format_columns(f"  {label}", text, 14)
    return "\n".join(lines) + "\n"


def _by_options(variants: Sequence[dict[str, Any]], text: Callable[[dict[str, Any]], str]) -> str:
    """A text about a key, by the options of its group where it differs between them."""
    options_by_text: dict[str, list[str]] = {}
    for one in variants:
        options_by_text.setdefault(text(one), []).extend(one["options"])
    if len(options_by_text) == 1:
        return next(iter(options_by_text))
    return "; ".join(f"{part} ({' '.join(options)})" for part, options in options_by_text.items() if part)


def _join_defaults(defaults: Sequence[tuple[str, Sequence[str]]]) -> str:
    options_by_value: dict[str, list[str]] = {}
    for value, options in defaults:
        options_by_value.setdefault(value, []).extend(options)
    return "; ".join(
        f"{value}" + (f" ({' '.join(options)})" if options else "") for value, options in options_by_value.items()
    )


def _peer_answer(key: str, peers: dict[str, str]) -> str | None:
    parts = key.lower().split(".")
    return next((peers[name] for take in (3, 2, 1) if (name := ".".join(parts[-take:])) in peers), None)


def _format_columns(left: str, right: str, width: int) -> list[str]:
    """A name and its meaning in two columns; the meaning is wrapped to `WIDTH`."""
    lines = textwrap.wrap(right, WIDTH - width, break_on_hyphens=False) or [""]
    first = [f"{left:<{width}}{lines[0]}".rstrip()] if len(left) < width else [left, " " * width + lines[0]]
    return [*first, *(" " * width + line for line in lines[1:])]

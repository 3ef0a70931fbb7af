"""Tab completion: scripts for bash, zsh and fish, and their candidates. Imports only the standard library.

The scripts call the command with `--complete LINE`, where LINE is the command line up to the cursor.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ippo_cli.cli.command_keys import CHECKPOINT_KEYS, OWN_KEYS, OWN_VALUES
from ippo_cli.cli.help import KEYS_FILE
from ippo_cli.runs.output import print_text

SCRIPT_FLAG, QUERY_FLAG = "--completion", "--complete"
RUN_KEY_PROGRAMS = ("ippo-eval", "ippo-export", "ippo-chat")  # a folder alone is run=
FOLDER_PROGRAMS = ("ippo-sweep", "ippo-verify", "ippo-report", "ippo-runs", "ippo-doctor")
PROGRAMS = ("ippo-train", "ippo-controls", "ippo-bench", *RUN_KEY_PROGRAMS, *FOLDER_PROGRAMS)
TRAIN_FLAGS = ("--cfg", "--completion", "--config-dir=", "--diff", "--explain", "--help", "--info", "--multirun")
TRAIN_FLAGS += ("--new-task", "--version", "-m")
OWN_FLAGS = {
    "ippo-train": TRAIN_FLAGS,
    "ippo-report": ("--csv", "--help", "--latex", "--markdown", "--png", "--version"),
    "ippo-doctor": ("--help", "--json", "--version"),
}
SUBCOMMANDS = {
    "ippo-runs": ("list", "compare", "show", "remove", "clean"),
    "ippo-bench": ("list", "run", "prompts", "import", "table"),
}
RUN_KEYS = ("run", "resume", "compare")
AGENT = "task.agents."
AGENT_GROUPS = ("actor", "critic")

SCRIPTS = {
    "bash": """\
_ippo_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" word prefix=""
    word="${line##*[[:space:]]}"
    # Bash splits words at = and : and replaces only the last part.
    case "$COMP_WORDBREAKS" in *=*) case "$word" in *=*) prefix="${word%=*}=";; esac;; esac
    case "$COMP_WORDBREAKS" in *:*) case "${word#"$prefix"}" in *:*) prefix="${word%:*}:";; esac;; esac
    local IFS=$'\\n'
    COMPREPLY=($("$1" --complete "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
}
complete -o nospace -o default -F _ippo_complete PROGRAMS
""",
    "zsh": """\
_ippo_complete() {
    local -a found
    found=("${(@f)$(${words[1]} --complete "$LBUFFER" 2>/dev/null)}")
    if (( ${#found} && ${#found[1]} )); then compadd -Q -S '' -- $found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _ippo_complete PROGRAMS
""",
    "fish": """\
for program in PROGRAMS
    complete -c $program -f -a "($program --complete (commandline -cp) 2>/dev/null)"
end
""",
}


def answer_completion(argv: Sequence[str]) -> str | None:
    """The text that `--completion SHELL` or `--complete LINE` prints; None without these flags."""
    if argv[:1] == [QUERY_FLAG]:
        return "".join(f"{candidate}\n" for candidate in find_candidates("".join(argv[1:2])))
    flag = next((text for text in argv if text.partition("=")[0] == SCRIPT_FLAG), None)
    if flag is None:
        return None
    shell = flag.partition("=")[2] or next(iter(argv[argv.index(flag) + 1 :]), "")
    if shell not in SCRIPTS:
        _exit_unknown_shell(shell)
    return SCRIPTS[shell].replace("PROGRAMS", " ".join(PROGRAMS))


def _exit_unknown_shell(shell: str) -> NoReturn:
    import sys

    print_text(f"ippo: {SCRIPT_FLAG} {shell}".rstrip() + " is not a shell; use bash, zsh or fish", to_stderr=True)
    sys.exit(2)


def find_candidates(line: str) -> list[str]:
    """Words that may replace the last word of a command line, whole words, sorted."""
    words = _split(line)
    program, typed = Path(words[0]).name if words else "", words[1:]
    current = "" if not typed or line[-1:].isspace() else typed[-1]
    before = typed if current == "" else typed[:-1]
    mark = re.match(r"[+~]{0,2}", current)
    prefix = mark[0] if mark else ""
    found = _candidates(program, before, current[len(prefix) :])
    return sorted({prefix + word for word in found if (prefix + word).startswith(current)})


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # an unclosed quote
        return line.split()


def _candidates(program: str, before: Sequence[str], current: str) -> Iterator[str]:
    if current.startswith("-"):
        yield from OWN_FLAGS.get(program, ("--help", "--version"))
        return
    known = json.loads(KEYS_FILE.read_text())
    key, equals, value = current.partition("=")
    if equals:
        yield from (f"{key}={text}" for text in _values(program, key, value, before, known))
        return
    if program in FOLDER_PROGRAMS or (program in RUN_KEY_PROGRAMS and ("/" in current or current == "outputs")):
        yield from run_folders(current)
    if not before:
        yield from SUBCOMMANDS.get(program, ())
    yield from (f"{name}=" for name in OWN_KEYS.get(program, ()))
    if program in ("ippo-train", "ippo-eval", "ippo-chat"):
        yield from _next_parts(current, _keys(known, before, current))
    if program == "ippo-train" and before[-1:] and before[-1] in ("--explain", "--help", "-h"):
        yield from known["groups"]
    if program == "ippo-train" and before[-1:] == ["--diff"]:
        yield from run_folders(current)


def _keys(known: dict[str, Any], before: Sequence[str], current: str) -> Iterator[str]:
    """All keys, each with `=`; those of agents with the names of the task's agents."""
    yield from (f"{group}=" for group in known["groups"])
    yield "resume="
    for key in known["keys"]:
        if not key.startswith(AGENT):
            yield f"{key}="
    agents = task_agents(before, known) if current.startswith("task.a") else ["NAME"]
    for agent in agents:
        place = f"{AGENT}{agent}."
        yield from (f"{place}{key.removeprefix(f'{AGENT}NAME.')}=" for key in known["keys"] if key.startswith(AGENT))
        yield from (f"{place}{group}=" for group in AGENT_GROUPS)
        yield from (f"{place}{key}=" for key in known["keys"] if key.startswith(tuple(f"{g}." for g in AGENT_GROUPS)))


def _next_parts(current: str, keys: Iterator[str]) -> Iterator[str]:
    """Keys up to their next dot after the typed text: `rollout.` for an empty text."""
    for key in keys:
        if key.startswith(current):
            end = key.find(".", len(current))
            yield key if end < 0 else key[: end + 1]


def _values(program: str, key: str, value: str, before: Sequence[str], known: dict[str, Any]) -> Iterator[str]:
    """Values of a key: options, values of enumerations, run folders, checkpoints."""
    bare = re.sub(r"^task\.agents\.\w+\.(?=\w)", "", key)
    if key in CHECKPOINT_KEYS and program != "ippo-train":
        yield from ("latest", "best", "initial", *_checkpoints(before))
    elif key in RUN_KEYS:
        yield from ("auto", "must", "never") if key == "resume" else ("latest",) if key == "run" else ("initial",)
        yield from run_folders(value)
    elif program in OWN_KEYS and key in OWN_VALUES:
        yield from OWN_VALUES[key]
    elif bare in known["groups"]:
        yield from known["groups"][bare]
    elif bare in known["keys"]:
        entry = known["keys"][bare]
        yield from dict.fromkeys(value for one in (entry, *entry["others"]) for value in one["values"])
        if "None" in entry["type"]:
            yield "null"


def run_folders(typed: str) -> list[str]:
    """Folders of runs below `outputs`, or below the folder that is typed, newest names first; at most 50."""
    parent = Path(typed).parent if typed and not typed.endswith("/") else Path(typed)
    roots = [Path("outputs")] if str(parent) == "." else [parent]
    found = {
        file.parent
        for root in roots
        for pattern in ("*/run.json", "*/*/run.json", "*/*/*/run.json")
        for file in root.glob(pattern)
    }
    return [str(path) for path in sorted(found, key=lambda path: path.name, reverse=True)[:50]]


def _checkpoints(before: Sequence[str]) -> list[str]:
    """Iterations of the checkpoints of the run in `run=`."""
    run = next((text.partition("=")[2] for text in before if text.startswith("run=")), "")
    names = [path.parent.name for path in Path(run).glob("checkpoints/step_*/manifest.json")] if run else []
    return [str(int(name.removeprefix("step_"))) for name in names]


def task_agents(before: Sequence[str], known: dict[str, Any]) -> list[str]:
    """The agents of the chosen task: of an option, or below `agents:` in a file of the user."""
    chosen = next((text.partition("=")[2] for text in reversed(before) if text.startswith("task=")), "sorting")
    if chosen in known["agents"]:
        return known["agents"][chosen]
    try:
        text = Path(chosen).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    block = re.search(r"^( *)agents: *(?:#.*)?\n((?:\1 +.*\n|\s*\n)+)", text + "\n", re.MULTILINE)
    if block is None:
        return []
    indent = re.match(r" *", block[2])
    return re.findall(rf"^{indent[0] if indent else ''}(\w+):", block[2], re.MULTILINE)

"""Files of other trainers: the rows that they answer, and the scores of their responses.

A response is one JSON line: {"version": "1537ba8f", "seed": 0, "row": 3, "responses": [["first", "ab"], ...]}.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from ippo_cli.benchmark.replay import ReplayError, Responses, RowSet, load_rows, replay_row, row_seed, score_episodes
from ippo_cli.benchmark.result import ArmRun
from ippo_cli.benchmark.strategies import find_strategy_mistakes, list_information_sets, score_strategy
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.version import task_version
from ippo_cli.config.errors import PreflightError, convert_storage_errors, raise_interruption
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environment import closing_environment
from ippo_cli.tasks.task import make_task_factory
from ippo_cli.types import Episode
from ippo_cli.user_code.errors import format_user_error

MAX_SHOWN = 20  # mistakes in one message
FIELDS = {"seed", "row", "responses", "strategy", "training", "version"}
EXAMPLE = '{"version": "1537ba8f", "seed": 0, "row": 3, "responses": [["first", "ab"], ["second", "bc"]]}'


def write_rows(name: str, arm: str, seeds: Sequence[int], file: Path, *, is_train: bool) -> int:
    """Write the rows that another trainer answers, one JSON line each; return their number. Raises `StorageError`."""
    version = task_version(name)
    lines = [json.dumps({"version": version, **record}) + "\n" for record in _iter_rows(name, arm, seeds, is_train)]
    with convert_storage_errors(str(file)):
        write_atomically(file, "".join(lines))
    return len(lines)


def _iter_rows(name: str, arm: str, seeds: Sequence[int], is_train: bool) -> Iterator[dict[str, Any]]:
    if BENCHMARK_TASKS[name].game is not None:
        config = load_rows(name, arm, 0).config
        for agent, sets in list_information_sets(name).items():
            for seen, legal in sets.items():
                prompt = config.task.agents[agent].template.replace("{observation}", seen)
                yield {"agent": agent, "information": seen, "observation": prompt, "actions": list(legal)}
        return
    for seed in seeds:
        rows = load_rows(name, arm, seed, is_train=is_train)
        environment = make_task_factory(rows.config.task)()
        with closing_environment(environment):
            for row, example in enumerate(rows.examples):
                observations = dict(environment.reset(example, row_seed(rows.config, row)))
                legal = environment.actions() if isinstance(environment, SupportsActions) else {}
                actions = {"actions": {agent: list(own) for agent, own in legal.items()}} if legal else {}
                yield {"seed": seed, "row": row, "example": dict(example), "observations": observations, **actions}


@dataclass
class _Lines:
    """What a file has, by seed."""

    responses: dict[int, dict[int, tuple[int, Responses]]] = field(default_factory=lambda: defaultdict(dict))
    strategies: dict[int, tuple[int, Any]] = field(default_factory=dict)
    training: dict[int, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    mistakes: list[tuple[int, str]] = field(default_factory=list)  # with their line

    def note(self, line: int, mistake: str) -> None:
        """Add a mistake, `what; what would work`."""
        self.mistakes.append((line, mistake))


def score_file(file: Path, name: str, arm: str) -> list[ArmRun]:
    """Return the runs of an arm, one for each seed of a file.

    Raises `PreflightError` with all mistakes, each as `file:line: what; what would work`, and `ConfigError` for an arm
    without responses.
    """
    lines = _read_lines(file, name)
    scores: dict[int, float] = {}
    if BENCHMARK_TASKS[name].game is not None:
        for seed, (line, strategy) in lines.strategies.items():
            found = list(find_strategy_mistakes(name, strategy))
            for mistake in found:
                lines.note(line, mistake)
            if not found:
                scores[seed] = score_strategy(name, strategy)
        for seed, rows in lines.responses.items():
            lines.note(next(iter(rows.values()))[0], f'has responses of seed {seed}; {name} needs {{"strategy": ...}}')
    else:
        for seed, own in lines.responses.items():
            scores |= _score_seed(name, arm, seed, own, lines)
        for seed, (line, _) in lines.strategies.items():
            lines.note(line, f"has a strategy of seed {seed}; {name} needs responses: {EXAMPLE}")
    for seed, (line, _) in lines.training.items():
        if seed not in lines.responses and seed not in lines.strategies:
            lines.note(line, f"has the training of seed {seed}, which has no responses; remove the line")
    if not (lines.responses or lines.strategies or lines.mistakes):
        lines.note(1, f"has no {'strategy' if BENCHMARK_TASKS[name].game else 'response'}; ippo-bench prompts {name}")
    _raise_mistakes(file, lines.mistakes)
    return [
        ArmRun(
            arm=arm,
            seed=seed,
            score=scores[seed],
            tokens=lines.training.get(seed, (0, {}))[1].get("tokens"),
            episodes=lines.training.get(seed, (0, {}))[1].get("episodes"),
            error=None,
        )
        for seed in sorted(scores)
    ]


def _raise_mistakes(file: Path, mistakes: Sequence[tuple[int, str]]) -> None:
    if not mistakes:
        return
    name = display_path(file)
    lines = [f"{name}:{line}: {text}" for line, text in sorted(mistakes)[:MAX_SHOWN]]
    more = len(mistakes) - len(lines)
    if len(mistakes) == 1:
        raise PreflightError(lines[0])
    raise PreflightError("\n  ".join([f"{len(mistakes)} mistakes", *lines, *([f"and {more} more"] if more else [])]))


def _read_lines(file: Path, name: str) -> _Lines:
    found = _Lines()
    try:
        texts = file.read_text(encoding="utf-8").split("\n")  # a text may contain other separators of lines
    except (OSError, UnicodeDecodeError) as error:
        raise PreflightError(f"{display_path(file)}: cannot be read ({error}); name a file of JSON lines") from error
    for line, text in enumerate(texts, start=1):
        if text.strip():
            _read_line(found, line, text, name)
    return found


def _read_line(found: _Lines, line: int, text: str, name: str) -> None:
    """Add the content of one line, or its first mistake."""
    try:
        record = json.loads(text)
    except ValueError as error:
        found.note(line, f"is not JSON ({error}); write {EXAMPLE}")
        return
    if not isinstance(record, dict):
        found.note(line, f"is not an object; write {EXAMPLE}")
        return
    seed, unknown = record.get("seed"), sorted(record.keys() - FIELDS)
    if unknown:
        found.note(line, f"has the unknown field {unknown[0]}; use {' '.join(sorted(FIELDS))}")
    elif not _is_count(seed):
        found.note(line, f"seed={seed!r} is not a whole number from 0; give the seed of the training")
    elif (version := record.get("version")) != task_version(name) and (version or record.keys() - {"seed", "training"}):
        rule = "has no version" if version is None else f"version={version} is another version of {name}"
        found.note(line, f"{rule}, which is {task_version(name)} here; answer the rows of ippo-bench prompts {name}")
    else:
        _read_content(found, line, seed, record)


def _read_content(found: _Lines, line: int, seed: int, record: Mapping[str, Any]) -> None:
    if "training" in record:
        _read_training(found, line, seed, record)
    if "strategy" in record:
        if seed in found.strategies:
            found.note(line, f"repeats seed {seed} of line {found.strategies[seed][0]}; keep one of them")
        found.strategies.setdefault(seed, (line, record["strategy"]))
    elif "training" not in record or record.keys() & {"row", "responses"}:
        _read_responses(found, line, seed, record)


def _read_training(found: _Lines, line: int, seed: int, record: Mapping[str, Any]) -> None:
    training = record["training"]
    if not isinstance(training, dict) or training.keys() - {"tokens", "episodes"}:
        found.note(line, 'training is not {"tokens": ..., "episodes": ...}; write these two numbers')
    elif not all(map(_is_count, training.values())):
        found.note(line, f"training={training} has a value that is no whole number; leave unknown ones out")
    elif seed in found.training:
        found.note(line, f"repeats the training of seed {seed}, line {found.training[seed][0]}; keep one of them")
    else:
        found.training[seed] = line, training


def _read_responses(found: _Lines, line: int, seed: int, record: Mapping[str, Any]) -> None:
    row, responses = record.get("row"), record.get("responses")
    if not _is_count(row):
        found.note(line, f"row={row!r} is not a whole number from 0; give the row that is answered")
    elif not isinstance(responses, list) or not all(
        isinstance(turn, list) and len(turn) == 2 and all(isinstance(part, str) for part in turn) for turn in responses
    ):
        found.note(line, 'responses is not a list of [agent, text]; write [["first", "ab"], ["second", "bc"]]')
    elif row in found.responses[seed]:
        found.note(line, f"repeats row {row} of seed {seed}, line {found.responses[seed][row][0]}; keep one of them")
    else:
        found.responses[seed][row] = line, [(agent, text) for agent, text in responses]


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _score_seed(
    name: str, arm: str, seed: int, own: Mapping[int, tuple[int, Responses]], lines: _Lines
) -> dict[int, float]:
    """Return the score of a seed, or nothing after a mistake, which is added to `lines`."""
    rows = load_rows(name, arm, seed)
    count, agents = len(rows.examples), list(rows.config.task.agents)
    before = len(lines.mistakes)
    for row, (line, _) in own.items():
        if row >= count:
            lines.note(line, f"row={row} is not a row of seed {seed}; rows are 0 to {count - 1}")
    for line, responses in own.values():
        for agent in dict.fromkeys(agent for agent, _ in responses if agent not in agents):
            lines.note(line, f"{agent} is no agent of {name}; use {' '.join(agents)}")
    if missing := [row for row in range(count) if row not in own]:
        listed = " ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        last = max((line for line, _ in own.values()), default=1)
        rule = f"seed {seed} has no response to {'row' if len(missing) == 1 else 'rows'} {listed}"
        lines.note(last, f"{rule}; answer every row of ippo-bench prompts {name}")
    if len(lines.mistakes) > before:
        return {}
    episodes = _replay_rows(rows, own, lines)
    if len(lines.mistakes) > before:
        return {}
    return {seed: score_episodes(rows, episodes)[BENCHMARK_TASKS[name].metric]}


def _replay_rows(rows: RowSet, own: Mapping[int, tuple[int, Responses]], lines: _Lines) -> list[Episode]:
    episodes: list[Episode] = []
    environment = make_task_factory(rows.config.task)()
    with closing_environment(environment):
        for row in range(len(rows.examples)):
            line, responses = own[row]
            try:
                episodes.append(replay_row(rows, environment, row, responses))
            except ReplayError as error:
                lines.note(line, f"row {row} {error}; give the responses of the episode in the order of its turns")
            except BaseException as error:  # of an environment
                raise_interruption(error)
                lines.note(line, f"row {row} fails in the environment ({format_user_error(error)}); report it")
    return episodes

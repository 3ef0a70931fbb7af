"""Responses of other trainers: scores that are known, and one message for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.benchmark.commands import run_subcommand
from ippo_cli.benchmark.result import read_result
from ippo_cli.benchmark.version import task_version
from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.controls.arms import SINGLE_ARMS

Records = list[dict[str, Any]]
SEED = 3
FOLLOWING = dict(zip("abc", "bca", strict=True))


def run(command: str, *arguments: str) -> None:
    run_subcommand(command, arguments, OWN_KEYS["ippo-bench"], OWN_KEYS["ippo-controls"])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The rows of `copy_1` that another trainer answers."""
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    run("prompts", "copy_1", f"to={file}", "seeds=1", f"seed={SEED}")
    return [json.loads(line) for line in file.read_text().splitlines()]


def answer(row: Mapping[str, Any], second: Callable[[str], str]) -> dict[str, Any]:
    """Return the response to a row: the first agent copies its letters, the second one maps each of them."""
    word = row["observations"]["first"].removeprefix("A")
    responses = [["first", word], ["second", "".join(map(second, word))]]
    return {"seed": row["seed"], "row": row["row"], "version": row["version"], "responses": responses}


def write(file: Path, records: Records) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.mark.parametrize(("second", "score"), [(FOLLOWING.__getitem__, 1.0), (str, 0.5), (lambda _: "x", 0.0)])
def test_known_scores(second: Callable[[str], str], score: float, rows: Records, tmp_path: Path) -> None:
    assert [row["row"] for row in rows] == list(range(256))
    assert rows[0]["example"]["seed"] != 0, "held-out rows of the run with this seed"
    file = write(tmp_path / "answers.jsonl", [answer(row, second) for row in reversed(rows)])
    training = {"seed": SEED, "training": {"tokens": 1000, "episodes": 64}}
    file.write_text(file.read_text() + json.dumps(training) + "\n")
    target = tmp_path / "result.json"
    run("import", str(file), "task=copy_1", "entry=known", "trainer=pen 1.0", f"to={target}")
    result = read_result(target)
    (found,) = result.runs
    assert (found.arm, found.seed, found.score) == ("team", SEED, pytest.approx(score))
    assert (found.tokens, found.episodes) == (1000, 64)
    assert list(result.missing) == [*SINGLE_ARMS, "frozen_partner_first", "frozen_partner_second", "shared_policy"]


def test_arm_is_added_to_the_result(rows: Records, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    file = write(tmp_path / "team.jsonl", [answer(row, FOLLOWING.__getitem__) for row in rows])
    run("import", str(file), "task=copy_1", "entry=known", f"to={target}")
    words = [row["observations"]["first"].removeprefix("A") for row in rows]
    single = [
        {
            "version": rows[0]["version"],
            "seed": SEED,
            "row": place,
            "responses": [["solo", word + "".join(FOLLOWING[one] for one in word)]],
        }
        for place, word in enumerate(words)
    ]
    file = write(tmp_path / "single.jsonl", single)
    for _ in range(2):  # once more replaces it
        run("import", str(file), "task=copy_1", "entry=known", "arm=single_samples", f"to={target}")
    result = read_result(target)
    assert [(found.arm, found.score) for found in result.runs] == [("team", 1.0), ("single_samples", 1.0)]
    assert "single_samples" not in result.missing
    assert result.arms == [*SINGLE_ARMS, "frozen_partner_first", "frozen_partner_second", "shared_policy"]
    for keys, rule in ((["entry=other"], "is the result of known"), (["entry=known", "trainer=x"], "was other in")):
        with pytest.raises(ConfigError, match=rf"{rule}.*; use another file"):
            run("import", str(file), "task=copy_1", *keys, "arm=single_samples", f"to={target}")
    target.write_text(target.read_text().replace('"overrides": []', '"overrides": ["algorithm=mappo"]'))
    with pytest.raises(ConfigError, match=r"has the runs of ippo-bench run; use another file"):
        run("import", str(file), "task=copy_1", "entry=known", "arm=single_samples", f"to={target}")


def test_prompts_of_an_arm_name_its_game(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("prompts", "copy_3", "arm=single_samples", f"to={tmp_path / 'rows.jsonl'}", "seeds=1")
    printed = capsys.readouterr().out
    assert "environments:alone +task.environment_args.game=copy" in printed
    assert "rollout.max_new_tokens=4" in printed
    assert printed.rstrip().endswith("arm=single_samples")


def edit_responses(responses: Any) -> Callable[[Records], None]:
    return lambda records: records[5].update(responses=responses)


MISTAKES: list[tuple[str, Callable[[Records], Any], list[str]]] = [
    ("missing rows", lambda records: records.pop(5), [":255: seed 3 has no response to row 5; answer every row"]),
    ("duplicate", lambda records: records.append(records[5]), [":257: repeats row 5 of seed 3, line 6; keep one"]),
    (
        "unknown agent",
        edit_responses([["first", "ab"], ["third", "bc"]]),
        [":6: third is no agent", "use first second"],
    ),
    (
        "same agent twice",
        edit_responses([["first", "ab"], ["first", "bc"]]),
        [":6: row 5 has a response of first at position 2, where second acts; give the responses"],
    ),
    ("too few", edit_responses([["first", "ab"]]), [":6: row 5 has too few responses (1): second acts next"]),
    (
        "too many",
        edit_responses([["first", "ab"], ["second", "bc"], ["first", "ab"]]),
        [":6: row 5 has 3 responses, and the episode ends after 2"],
    ),
    ("no text", edit_responses([["first", 1]]), [":6: responses is not a list of [agent, text]; write"]),
    ("unknown row", lambda records: records[5].update(row=256), [":6: row=256 is not a row", "rows are 0 to 255"]),
    ("no row", lambda records: records[5].pop("row"), [":6: row=None is not a whole number from 0; give the row"]),
    ("seed", lambda records: records[5].update(seed="3"), [":6: seed='3' is not a whole number from 0"]),
    ("field", lambda records: records[5].update(reward=1), [":6: has the unknown field reward; use responses row"]),
    ("version", lambda records: records[5].update(version="0"), [":6: version=0 is another version of copy_1"]),
    ("no version", lambda records: records[5].pop("version"), [":6: has no version, which is", "answer the rows of"]),
    (
        "strategy",
        lambda records: records.append({"version": records[0]["version"], "seed": 4, "strategy": {}}),
        [":257: has a strategy of seed 4"],
    ),
    (
        "training twice",
        lambda records: records.extend([{"seed": 3, "training": {"tokens": 1}}] * 2),
        [":258: repeats the training of seed 3, line 257; keep one of them"],
    ),
    (
        "training",
        lambda records: records.append({"seed": 3, "training": {"tokens": 1.5}}),
        [":257: training={'tokens': 1.5} has a value that is no whole number"],
    ),
    (
        "training alone",
        lambda records: records.append({"seed": 4, "training": {"tokens": 1}}),
        [":257: has the training of seed 4, which has no responses"],
    ),
    (
        "two mistakes",
        lambda records: (records[0].update(row=-1), records[5].update(row=True)),
        ["3 mistakes", ":1: row=-1", ":6: row=True", "no response to rows 0 5"],
    ),
]


@pytest.mark.parametrize(("edit", "words"), [one[1:] for one in MISTAKES], ids=[one[0] for one in MISTAKES])
def test_mistakes_name_line_rule_and_remedy(
    edit: Callable[[Records], Any], words: list[str], rows: Records, tmp_path: Path
) -> None:
    records = [answer(row, str) for row in rows]
    edit(records)
    file = write(tmp_path / "answers.jsonl", records)
    with pytest.raises(PreflightError) as raised:
        run("import", str(file), "task=copy_1", "entry=x", f"to={tmp_path / 'result.json'}")
    assert raised.value.exit_code == 3
    assert [word for word in words if word not in str(raised.value)] == [], str(raised.value)
    assert not (tmp_path / "result.json").exists()


def test_texts_may_contain_separators_of_lines(rows: Records, tmp_path: Path) -> None:
    records = [answer(row, str) for row in rows]
    records[0]["responses"][0][1] = "\u2028"
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    run("import", str(file), "task=copy_1", "entry=x", f"to={tmp_path / 'result.json'}")
    assert read_result(tmp_path / "result.json").runs[0].score == pytest.approx(0.5 - 0.5 / 256)


def test_line_that_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    for text, words in (("{", ":1: is not JSON"), ("[1]", ":1: is not an object"), ("", ":1: has no response")):
        file.write_text(text)
        with pytest.raises(PreflightError, match=words):
            run("import", str(file), "task=copy_1", "entry=x")


def test_order_of_turns_is_checked(tmp_path: Path) -> None:
    """In `signalling` the second agent reads the first one's message."""
    run("prompts", "signalling", f"to={tmp_path / 'rows.jsonl'}", "seeds=1")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert all(list(row["observations"]) == ["sender"] for row in rows)
    signals = [row["example"]["signal"] for row in rows]
    records = [
        {
            "version": rows[0]["version"],
            "seed": 0,
            "row": place,
            "responses": [["sender", signal], ["receiver", signal if place % 2 else "x"]],
        }
        for place, signal in enumerate(signals)
    ]
    file = write(tmp_path / "answers.jsonl", records)
    run("import", str(file), "task=signalling", "entry=x", f"to={tmp_path / 'result.json'}")
    assert read_result(tmp_path / "result.json").runs[0].score == 0.5
    records[0]["responses"].reverse()
    write(file, records)
    with pytest.raises(PreflightError, match=r":1: row 0 has a response of receiver at position 1, where sender acts"):
        run("import", str(file), "task=signalling", "entry=x", f"to={tmp_path / 'other.json'}")


def make_equilibrium(bluff: float) -> dict[str, dict[str, dict[str, float]]]:
    """Return an equilibrium of Kuhn poker: the first agent bets a jack with this probability, up to 1/3."""
    bets = {
        "first": {"J": bluff, "Q": 0.0, "K": 3 * bluff, "Jpb": 0.0, "Qpb": bluff + 1 / 3, "Kpb": 1.0},
        "second": {"Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0},
    }
    return {agent: {seen: {"p": 1 - bet, "b": bet} for seen, bet in own.items()} for agent, own in bets.items()}


def test_strategies_of_kuhn_poker(tmp_path: Path) -> None:
    """Equilibria have the score 0, uniform play -11/12 (of the fold or call of a best response to it)."""
    rows, target = tmp_path / "rows.jsonl", tmp_path / "kuhn.json"
    run("prompts", "kuhn", f"to={rows}")
    sets = [json.loads(line) for line in rows.read_text().splitlines()]
    uniform: dict[str, Any] = {"first": {}, "second": {}}
    for one in sets:
        uniform[one["agent"]][one["information"]] = dict.fromkeys(one["actions"], 0.5)
    strategies = [make_equilibrium(0.0), make_equilibrium(0.2), uniform]
    records = [{"version": sets[0]["version"], "seed": seed, "strategy": own} for seed, own in enumerate(strategies)]
    records[0]["training"] = {"episodes": 5}  # in the same line
    file = write(tmp_path / "strategies.jsonl", records)
    run("import", str(file), "task=kuhn", "entry=solver", f"to={target}")
    runs = read_result(target).runs
    assert [found.score for found in runs] == pytest.approx([0.0, 0.0, -11 / 12], abs=1e-9)
    assert [found.episodes for found in runs] == [5, None, None]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda own: own.pop("second"), ":1: strategy.second is missing; it needs Jb Jp"),
        (lambda own: own.update(third={}), ":1: strategy.third is no agent; use first second"),
        (lambda own: own["first"].pop("Jpb"), ":1: strategy.first.Jpb is missing; give the probability of p and b"),
        (lambda own: own["first"].update(Jp={}), ":1: strategy.first.Jp is no information set of first; use"),
        (
            lambda own: own["first"].update(J={"p": 1.0}),
            ":1: strategy.first.J has the actions p; give those of p and b",
        ),
        (lambda own: own["first"].update(J={"p": "1", "b": 0}), "J has a probability that is no number"),
        (lambda own: own["first"].update(J={"p": 0.5, "b": 0.6}), "J is no distribution"),
        (lambda own: own["first"].update(J={"p": 1.5, "b": -0.5}), "J is no distribution"),
    ],
)
def test_incomplete_strategy_is_refused(edit: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path) -> None:
    strategy = make_equilibrium(0.1)
    edit(strategy)
    record = {"version": task_version("kuhn"), "seed": 0, "strategy": strategy}
    file = write(tmp_path / "strategy.jsonl", [record])
    with pytest.raises(PreflightError) as raised:
        run("import", str(file), "task=kuhn", "entry=solver", f"to={tmp_path / 'kuhn.json'}")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("lst", [], "is no subcommand (closest: list); use one of list run prompts import table"),
        ("run", ["copy1"], "names no task (closest: copy_1"),
        ("run", ["copy_1", "task.environment_args.length=1"], "changes the task or its score; leave it out"),
        ("run", ["copy_1", "evaluation.size=4", "name=x"], "name=x is the name of the entry; use entry=x"),
        ("run", ["copy_1", "seeds=none"], "seeds=none is not a whole number from 1; use seeds=5"),
        ("run", ["copy_1", "page=x"], "page=x is not a key of ippo-bench run"),
        ("prompts", ["copy_1"], "to= is missing in ippo-bench prompts; add to=rows.jsonl"),
        ("prompts", ["copy_1", "to=x", "split=test"], "split=test is not known; use held_out"),
        ("prompts", ["copy_1", "to=x", "arm=frozen_partner"], "(closest: frozen_partner_first"),
        (
            "prompts",
            ["signalling", "to=x", "arm=single_samples"],
            "arm=single_samples is no arm of responses to signalling",
        ),
        ("import", ["task=copy_1", "entry=x"], "is not one file of responses"),
        ("import", ["answers.jsonl", "task=copy_1"], "entry= is missing in ippo-bench import; add entry=NAME"),
        ("table", [], "names no result"),
        ("list", ["pages=x"], "is not a key of ippo-bench list (closest: page)"),
    ],
)
def test_wrong_arguments(command: str, arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run(command, *arguments)
    assert words in str(raised.value)

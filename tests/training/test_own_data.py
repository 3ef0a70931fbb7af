"""A run on user data from several files: mixed, filtered, with Jinja templates, too long rows excluded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small import small_config, train

from ippo_cli.config.errors import ConfigError
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.planning.plan import show_plan


def overrides(root: Path) -> list[str]:
    """19 short rows and a long one, of which half are filtered; and 8 rows with other columns."""
    first = [{"problem": "abc" if row else "abc" * 20, "gold": "a", "level": row} for row in range(20)]
    second = [{"question": "cab", "gold": "c", "level": 0} for _ in range(8)]
    for name, rows in (("first", first), ("second", second)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "task=jsonl",
        f"task.train=[{root / 'first.jsonl'},{root / 'second.jsonl'}]",
        "task.weights=[3,1]",
        f"task.eval={root / 'first.jsonl'}",
        "++task.columns.question=[question,problem]",
        "task.filter='level < 10'",
        "task.agents.solo.template='jinja:{{ question | upper }}{{ question }}='",
        "task.agents.solo.answer='{gold}'",
        "rollout.max_prompt_tokens=20",
        "num_iterations=1",
        "evaluation.every=0",
        "rollout.buffer_size=16",
        "rollout.max_new_tokens=4",
    ]


@pytest.mark.slow
def test_rows_are_mixed_filtered_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = [*overrides(tmp_path), "task.train_size=null", "task.eval_size=null"]
    with pytest.raises(
        ConfigError, match="does not allow agent solo's prompt of 121 tokens, row 0 of the training data"
    ):
        train(tmp_path / "refused", *typed)
    typed += ["task.overlong=drop"]
    run = train(tmp_path / "runs", *typed, "tracker.samples_every=1", "tracker.samples=16")
    output = capsys.readouterr().out
    assert f"data: {tmp_path / 'first.jsonl'}: 20 rows, 10 excluded by task.filter: 10 are used" in output
    assert "data: 1 of 18 training rows excluded: prompts too long for rollout.max_prompt_tokens=20" in output
    assert "data: 1 of 10 held-out rows excluded" in output
    samples = [json.loads(line) for line in (run / "samples" / "train_00000001.jsonl").read_text().splitlines()]
    prompts = [row["agents"]["solo"]["prompt"] for row in samples]
    assert set(prompts) == {"ABCabc=", "CABcab="}
    assert 8 <= prompts.count("ABCabc=") < 16, "three quarters of them, in any order"
    assert all(row["parts"]["characters"] == pytest.approx(row["agents"]["solo"]["score"]) for row in samples)
    config, _ = small_config(tmp_path / "runs", *typed)
    written = json.loads(evaluate_run(config, run, "latest", []).read_text())
    assert (written["rows"], written["too_long"]) == (9, 1)
    show_plan(config)
    assert "17 training examples, 9 held out" in capsys.readouterr().out

"""The profile of one iteration: a readable trace, a consistent table, and no change of the run."""

from __future__ import annotations

import gzip
import json

import pytest
from small import rows, train


@pytest.mark.slow
def test_profile_shows_second_iteration_and_changes_nothing(tmp_path, capsys):
    plain = train(tmp_path / "plain", "num_iterations=2")
    folder = train(tmp_path / "watched", "num_iterations=2", "tracker.profile=true")
    assert rows(folder) == rows(plain)
    assert not (plain / "profile").exists()
    table = (folder / "profile" / "iteration_00000002.txt").read_text()
    assert table in capsys.readouterr().out
    lines = [line.split() for line in table.splitlines()[1 : table.splitlines().index(_operators(table))]]
    shares = {line[0]: float(line[-2].rstrip("%")) for line in lines}
    assert {"rollout", "score", "targets", "update"} <= shares.keys()
    assert sum(shares[phase] for phase in ("rollout", "score", "targets", "update")) == pytest.approx(100.0, abs=0.3)
    assert {"low policy", "high value"} <= {" ".join(line[:-3]) for line in lines}
    with gzip.open(folder / "profile" / "iteration_00000002_rank_0.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert {"ippo/rollout", "ippo/update/low policy"} <= {event.get("name") for event in events}


def _operators(table: str) -> str:
    return next(line for line in table.splitlines() if line.startswith("operator"))

"""Two ranks under ZeRO 3 match one rank, although one of them finishes its episodes much earlier."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import assert_metrics_close, rows, train, train_on_two_ranks

from ippo_cli.compose.arguments import normalize_arguments

pytestmark = pytest.mark.slow

WORLD = '''
import os

class Talk:
    """Two agents speak in turn, for one to four rounds; one seed in five cannot be played on."""

    def __init__(self, log):
        self.log = log

    def reset(self, seed):
        self.seed, self.number, self.rounds = seed, 0, 1 + seed // 10 % 4
        return self.observations(), {}

    def step(self, action):
        self.number += 1
        if self.number == 1:
            with open(self.log, "a") as log:
                log.write(f"{os.environ.get('RANK', '0')} {self.rounds}\\n")
        if self.seed % 5 == 0 and self.number == 2:
            raise OSError("the board is gone")
        over = self.number >= 2 * self.rounds
        paid = {name: text.count("a") + len(text) / 7 for name, text in action.items()}
        return ({} if over else self.observations()), paid, over, False, {}

    def observations(self):
        return {("low", "high")[self.number % 2]: f"{self.seed % 10}{self.number}"}

    def close(self):
        pass


def make(log):
    return Talk(log)
'''


def overrides(root: Path, log: str) -> list[str]:
    (root / "world.py").write_text(WORLD)
    return [
        "task=environment",
        f"task.environment={root / 'world.py'}:make",
        f"task.environment_args.log={root / log}",
        "~task.agents.player",
        '+task.agents={low:{template:"{observation}"},high:{template:"{observation}"}}',
        "reward.failure_budget=0.5",
        "rollout.buffer_size=4",
        "rollout.decode_batch_size=3",
        "rollout.max_new_tokens=4",
        "evaluation.every=0",
        "num_iterations=2",
        "checkpoint.every=0",
        "algorithm.credit=turn",
        "algorithm.turn_value=first",
    ]


def longest(log: Path) -> list[list[int]]:
    """Longest rounds of every two episodes, by rank: two episodes per rank in a buffer, four in an evaluation."""
    lines = [line.split() for line in log.read_text().splitlines()]
    lengths = [[int(length) for rank, length in lines if rank == own] for own in ("0", "1")]
    return [[max(part[at : at + 2]) for at in range(0, len(part), 2)] for part in lengths]


@pytest.mark.core
def test_uneven_episodes_under_zero3_match_one_rank(tmp_path: Path) -> None:
    one = rows(train(tmp_path / "one", *normalize_arguments(overrides(tmp_path, "one.log"))))
    folder = train_on_two_ranks(
        tmp_path / "two", *overrides(tmp_path, "two.log"), "deepspeed=zero3", "rollout.zero3_gather=layer"
    )
    first, second = longest(tmp_path / "two.log")
    assert any(a != b for a, b in zip(first, second, strict=True)), "ranks must be through at other times"
    assert one[1]["low/score/failed_fraction"] > 0, "an episode must fail"
    assert_metrics_close(one[1:2], rows(folder)[1:2])

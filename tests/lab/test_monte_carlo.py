"""Monte-Carlo values in training: exact expectations, shared states, units, excluded rows, several turns and keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lab_errors import find_errors
from small import experience_of, open_trainer, rows, train

from ippo_cli.algorithms.inputs import AdvantageInputs
from ippo_cli.compose.former_keys import convert_config, convert_overrides
from ippo_cli.evaluation.critic_references import enumerate_references
from ippo_cli.evaluation.report_session import ReportSession
from ippo_cli.formulas import reward_to_go
from ippo_cli.lab.monte_carlo import MonteCarlo, StateValues, assign_states, estimate_segments, summarize_returns
from ippo_cli.lab.value_states import ValueStateChooser
from ippo_cli.rollout.branches import State
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.training.methods.continued_returns import state_columns
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Experience

KEYS = (
    "task=probe_conditional",
    "algorithm=vine_ppo",
    "algorithm.advantage_args.every=1",
    "algorithm.advantage_args.continuations=64",
    "rollout.num_generations=4",
    "rollout.max_new_tokens=3",
    "rollout.top_k=2",
    "rollout.buffer_size=48",
    "rollout.decode_batch_size=512",
    "actor.warm_start_steps=12",
    "actor.warmup_iterations=0",
)


POOL = ("team.opponent_pool.every=2", "team.opponent_pool.size=4", "team.opponent_pool.share=0.5")
CURRENT = "episodes in which all agents act with their current policies"
FIXED = "algorithm.advantage=monte_carlo needs scores that depend on their own response alone"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (POOL, f"algorithm.advantage=monte_carlo needs {CURRENT}, and team.opponent_pool.every=2 lets"),
        (["reward.processor=[running_zscore]"], f"{FIXED}, and reward.processor=[running_zscore]"),
        (["reward=function", "reward.function=a.py:f", "reward.whole_batch=true"], f"{FIXED}, and reward.whole_batch"),
        (["reward.credit_assignment=leave_out"], f"{FIXED}, and reward.credit_assignment=leave_out"),
        (
            ["critic=separate", "algorithm.value_loss_coef=0.5"],
            "algorithm.advantage=monte_carlo needs a run without a critic, and critic=separate trains values that",
        ),
        (["algorithm.credit=turn"], "algorithm.credit=turn has no effect: advantage=monte_carlo does not read it"),
        (["algorithm.critic_gae_lambda=1.0"], "algorithm.critic_gae_lambda=1.0 has no effect"),
        (
            ["algorithm.turn_value=first"],
            "algorithm.turn_value=first has no effect: advantage=monte_carlo has no values",
        ),
        (["algorithm.gae_lambda=null"], "algorithm.gae_lambda=null is needed by this algorithm; use 0.95"),
        (
            ["algorithm.advantage_args.every=null"],
            "algorithm.advantage_args.every=null is needed by states=tokens; use",
        ),
        (
            ["algorithm.advantage_args.states=lines"],
            "algorithm.advantage_args.every=2 has no effect: only states=tokens counts tokens; use null",
        ),
        (
            ["algorithm.advantage_args.states=words"],
            "algorithm.advantage_args.states=words is not known; use one of turns",
        ),
        (
            ["algorithm.advantage_args.continuations=null"],
            "algorithm.advantage_args.continuations=null must not be null",
        ),
        (["algorithm.advantage_args.max_states=0"], "algorithm.advantage_args.max_states=0 is out of range"),
    ],
)
def test_keys_that_do_not_fit_are_refused(overrides: Sequence[str], message: str) -> None:
    assert any(error.startswith(message) for error in find_errors(["algorithm=vine_ppo", *overrides]))


def test_every_lost_need_is_reported() -> None:
    assert find_errors(["algorithm=vine_ppo", *POOL, "reward.processor=[running_zscore]"]) == [
        f"algorithm.advantage=monte_carlo needs {CURRENT}, and "
        "team.opponent_pool.every=2 lets snapshots of earlier policies act for some agents; "
        "use team.opponent_pool.every=0, or another method",
        f"{FIXED}, and "
        "reward.processor=[running_zscore] standardises scores by moments that change from buffer to buffer; "
        "use reward.processor without running_zscore, or another method",
    ]


def test_keys_that_fit() -> None:
    assert find_errors(["algorithm=vine_ppo"]) == []
    turns = ("algorithm.advantage_args.states=turns", "algorithm.advantage_args.every=null")
    assert find_errors(["algorithm=vine_ppo", *turns]) == []


def test_former_keys() -> None:
    keys = ["algorithm.monte_carlo.every=null", "algorithm.monte_carlo={states: turns, continuations: 2}"]
    assert convert_overrides(keys) == [
        "algorithm.advantage_args.every=null",
        "algorithm.advantage_args={states: turns, continuations: 2}",
    ]
    own = {"continuations": 9, "states": "tokens", "every": 2, "max_states": None}
    assert convert_config({"algorithm": {"advantage": "monte_carlo", "monte_carlo": dict(own)}}) == {
        "algorithm": {"advantage": "monte_carlo", "advantage_args": own}
    }
    unused = {"advantage": "gae", "monte_carlo": dict.fromkeys(own)}
    assert convert_config({"algorithm": unused}) == {"algorithm": {"advantage": "gae"}}


def test_segments() -> None:
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    inputs = AdvantageInputs(
        rewards=torch.tensor([[0.0, 0, 0, 1], [4, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0]]),
        values=torch.arange(16.0).reshape(4, 4) / 10 * mask,
        mask=mask,
        turn=torch.where(mask, 0, -1),
        is_by_turn=False,
        group=torch.tensor([7, 3, 7, 3]),
        baseline=torch.zeros(4),
        valid=torch.ones(4, dtype=torch.bool),
    )
    starts = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.bool)
    found = estimate_segments(inputs, starts, gamma=1.0, gae_lambda=0.0)
    torch.testing.assert_close(found.advantages[0], torch.tensor([0.3, 0.3, 0.0, 0.7]))
    torch.testing.assert_close(found.advantages[2], torch.tensor([0.2, 0.2, 1.0, 1.0]))
    torch.testing.assert_close(found.returns[2], torch.tensor([1.0, 1.0, 2.0, 2.0]))
    assert found.usable.tolist() == [True, False, True, False], "the first state of a row needs a value"
    whole = estimate_segments(inputs, starts, gamma=1.0, gae_lambda=1.0)
    torch.testing.assert_close(whole.advantages[2], torch.tensor([1.2, 1.2, 1.0, 1.0]))


def chosen_states(trainer: Trainer, experience: Experience, agent: str) -> list[State]:
    estimator = trainer.state.algorithm.estimator
    assert isinstance(estimator, MonteCarlo)
    chooser = ValueStateChooser(estimator.keys, trainer.state.team[agent].tokenizer)
    return chooser.choose(experience.episodes, range(len(experience.episodes)), agent)


def state_numbers(found: StateValues, experience: Experience, agent: str, states: list[State]) -> torch.Tensor:
    rollout = experience.rollouts[agent]
    where = [state.episode for state in states]
    return found.values[where, state_columns(rollout, states, where)]


def exact_values(trainer: Trainer, experience: Experience, agent: str, states: list[State]) -> torch.Tensor:
    """The expected return from each state, over all responses of all agents."""
    collector = trainer.collector
    session = ReportSession(
        config=trainer.config,
        team=trainer.state.team,
        algorithm=trainer.state.algorithm,
        environments=collector.environments,
        formats=collector.formats,
        generator=collector.generator,
        reward=collector.rewards.reward,
        draws=SamplingStream(seed=0, purpose="unused"),
        device=collector.device,
        batch=experience.batch,
        prompts=[],
        episodes=experience.episodes,
    )
    return enumerate_references(
        session, agent, states, 4096, is_by_turn=False, report=lambda done, total: None
    ).means.float()


@contextmanager
def open_updated_trainer(root: Path, *overrides: str) -> Iterator[tuple[Trainer, Experience]]:
    """A trainer after one update, and the experience of the next iteration."""
    with open_trainer(root, *KEYS, *overrides) as trainer:
        trainer.step()
        yield trainer, experience_of(trainer, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("algorithm.gamma=0.7",),
        ("algorithm.kl.loss.coef=0", "algorithm.kl.reward.coef=0.3", "actor.learning_rate=0.01"),
        ("algorithm.truncation=penalty", "algorithm.truncation_penalty=0.5"),
    ],
    ids=["score", "discount", "KL in the reward", "truncation penalty"],
)
def test_values_are_expected_returns(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Distances to enumerated expectations are as large as the standard errors say, in the units of the returns."""
    with open_updated_trainer(tmp_path, *overrides) as (trainer, experience):
        for agent, found in experience.additions["monte_carlo"].items():
            states = chosen_states(trainer, experience, agent)
            exact = exact_values(trainer, experience, agent, states)
            values = state_numbers(found, experience, agent, states)
            errors = found.variance[found.starts].sum()
            assert found.starts.sum() == len(states) > 20
            assert exact.std() > 0.05, "the states differ"
            assert 0.3 * errors < (values - exact).square().sum() < 2.5 * errors
            targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
            own = targets[agent]
            to_go = reward_to_go(own.rewards, own.loss_mask, gamma=trainer.config.algorithm.gamma or 1.0)
            last = found.starts.long().cumsum(1) == found.starts.sum(1, keepdim=True)
            own_last = last & found.starts
            torch.testing.assert_close(own.returns[own_last], to_go[own_last], msg="the last segment ends the episode")


@pytest.mark.slow
def test_equal_states_share_continuations(tmp_path: Path) -> None:
    with open_updated_trainer(tmp_path) as (trainer, experience):
        for agent, found in experience.additions["monte_carlo"].items():
            first = found.values[found.starts.cumsum(1).eq(1) & found.starts].view(-1, 4)
            assert (first == first[:, :1]).all(), "responses to one prompt have one value of it"
            texts = [
                (index // 4, tuple(ids[:position]))
                for index, ids in (
                    (episode.index, episode.turns_of_agent(agent)[0].completion.ids.tolist())
                    for episode in experience.episodes
                )
                for position in range(len(ids))
            ]
            assert (found.num_states, found.num_sampled) == (len(texts), len(set(texts)))
            assert found.num_continuations == 64 * len(set(texts))
        again = experience_of(trainer, 1)
        for agent, found in experience.additions["monte_carlo"].items():
            assert torch.equal(found.values, again.additions["monte_carlo"][agent].values), (
                "a function of seed and iteration"
            )


@pytest.mark.slow
def test_rows_that_are_not_trained_on_have_no_states(tmp_path: Path) -> None:
    keys = ("algorithm.truncation=mask", "algorithm.advantage_args.continuations=2")
    with open_updated_trainer(tmp_path, *keys) as (_, experience):
        for agent, found in experience.additions["monte_carlo"].items():
            trained_rows = experience.rollouts[agent].finished & experience.scores[agent].valid
            assert 0 < trained_rows.sum() < len(trained_rows)
            assert not found.starts[~trained_rows].any()
            assert found.num_states == experience.rollouts[agent].response_mask[trained_rows].sum()
            assert found.num_unusable > 0, "truncated continuations, as truncated responses"


FAILING = """
def score(example, responses):
    if responses["same"][:1] == "a":
        raise RuntimeError("no score")
    return {"team": float(len(responses["same"]))}
"""


@pytest.mark.slow
def test_failed_continuations_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    keys = ("reward=function", f"reward.function={path}:score", "reward.per_sample=true", "reward.failure_budget=1.0")
    keys = (*keys, "rollout.top_k=0")
    with open_trainer(tmp_path, *KEYS, *keys, "algorithm.advantage_args.continuations=6") as trainer:
        experience, targets = trainer.step()
        unusable = 0
        for agent, found in experience.additions["monte_carlo"].items():
            assert torch.isfinite(found.values).all()
            assert not found.starts[~experience.scores[agent].valid].any()
            assert torch.isfinite(targets[agent].advantages).all()
            assert not targets[agent].loss_mask[~found.starts.any(dim=1)].any()
            unusable += found.num_unusable
        assert unusable > 0
        row = trainer.state.progress.row
        assert row is not None
        assert 0 < row[f"{agent}/monte_carlo/unusable_fraction"] < 1


@pytest.mark.slow
def test_several_turns_and_agents(tmp_path: Path) -> None:
    """A state before every turn, and segments that do not cross turns."""
    keys = ("task.num_turns=2", "rollout.max_new_tokens=4", "algorithm.advantage_args.every=2")
    with open_trainer(tmp_path, "algorithm=vine_ppo", *keys, "algorithm.advantage_args.continuations=3") as trainer:
        experience, targets = trainer.step()
        row = trainer.state.progress.row
        assert row is not None
        for agent, found in experience.additions["monte_carlo"].items():
            rollout = experience.rollouts[agent]
            assert rollout.turn.max() == 1
            before = torch.where(rollout.response_mask, rollout.turn, -1).cummax(1).values.roll(1, 1)
            before[:, 0] = -1
            turn_starts = rollout.response_mask & (rollout.turn > before)
            assert (found.starts | ~turn_starts).all()
            changes = targets[agent].returns[:, 1:] != targets[agent].returns[:, :-1]
            inside = rollout.response_mask[:, 1:] & rollout.response_mask[:, :-1] & ~found.starts[:, 1:]
            assert not (changes & inside).any()
            assert row[f"{agent}/monte_carlo/states"] == pytest.approx(
                float(found.starts.sum()) / len(experience.episodes)
            )
            assert row[f"{agent}/monte_carlo/unusable_fraction"] == 0
            assert row[f"{agent}/monte_carlo/tokens"] > 0
        assert row["time/continuations"] > 0


@pytest.mark.slow
def test_keys_have_effects(tmp_path: Path) -> None:
    base = (*KEYS[:2], *KEYS[4:], "num_iterations=1", "evaluation.every=0")

    def measure(*overrides: str) -> dict[str, float]:
        return rows(train(tmp_path, *base, *overrides))[-1]

    few = ("algorithm.advantage_args.continuations=2", "algorithm.advantage_args.every=1")
    plain = measure(*few)
    agent = next(key for key in plain if key.endswith("monte_carlo/tokens")).split("/")[0]
    states, tokens = f"{agent}/monte_carlo/states", f"{agent}/monte_carlo/tokens"
    more = measure("algorithm.advantage_args.continuations=8", "algorithm.advantage_args.every=1")
    assert more[states] == plain[states]
    assert more[tokens] == pytest.approx(4 * plain[tokens], rel=0.25)
    assert (
        measure("algorithm.advantage_args.continuations=2", "algorithm.advantage_args.every=2")[states] < plain[states]
    )
    assert measure(*few, "algorithm.advantage_args.max_states=1")[states] == 1
    turns = measure(
        "algorithm.advantage_args.continuations=2",
        "algorithm.advantage_args.every=null",
        "algorithm.advantage_args.states=turns",
    )
    assert turns[states] == 1
    name = f"{agent}/targets/advantage_std"
    raw = (*few, "algorithm.advantage_normalization=false")
    assert measure(*raw)[name] != measure(*raw, "algorithm.gae_lambda=1.0")[name]


def test_states_are_assigned_to_the_smallest_index() -> None:
    assert assign_states([b"a", b"b", b"a", b"c", b"b"], [5, 4, 3, 8, 9]) == [1, 2, 3]
    assert assign_states([], []) == []


def test_estimates_leave_out_unusable_returns() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0], [4.0, math.nan, math.nan], [math.nan] * 3], dtype=torch.float64)
    full, one, none = summarize_returns(returns)
    assert (full.mean, full.variance) == (2.0, pytest.approx(1 / 3))
    assert (one.mean, one.variance) == (4.0, 0.0)
    assert math.isnan(none.mean)

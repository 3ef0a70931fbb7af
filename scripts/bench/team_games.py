"""Tasks beside those of the benchmark, algorithms and scales of the comparison of teams."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from play import tictactoe_odds

from ippo_cli.benchmark.baseline import (
    CLIPPED,
    INDEPENDENT_PPO,
    MINI_BATCH,
    SMALL,
    Algorithm,
    Scale,
)
from ippo_cli.benchmark.bounds import LIMIT, Bounds, caller_bounds, duel_bounds, exploitability
from ippo_cli.benchmark.environments import DILEMMA, DUEL, STAG_HUNT
from ippo_cli.benchmark.tasks import (
    BENCHMARK_TASKS,
    BUFFER,
    LOW_RATE,
    SEES_ALL,
    WARM_START,
    BenchmarkTask,
    Kind,
    list_world_overrides,
    make_copy_task,
    make_matrix_task,
)
from ippo_cli.benchmark.turn_games import LETTERS

BOARDS = "scripts/bench/team_boards.py"
SCALES = {
    "small": SMALL,
    "large": Scale(
        episodes=4,
        overrides=("actor.num_layers=4", "actor.hidden_size=256"),
        from_scratch=True,
        actor_learning_rate=5e-4,
        critic_learning_rate=5e-4,
    ),
    "pretrained": Scale(  # needs actor.model=
        episodes=4,
        overrides=("actor=full",),
        from_scratch=False,
        actor_learning_rate=1e-6,
        critic_learning_rate=1e-5,
    ),
}
ABOUT_CRITICS = ("copy_1_signs", "copy_6_signs", "copy_6_end_signs")
"""Tasks that test the claim about critics; they are excluded from other comparisons."""


def unexploited(metrics: Mapping[str, float]) -> float:
    """Return the negative exploitability of the action frequencies of an evaluation."""
    options = list(dict.fromkeys(pair[0] for pair in DUEL))
    taken = [{option: metrics[f"sampled/{name}_{option}"] for option in options} for name in ("first", "second")]
    return -exploitability(*taken)


def tictactoe_bounds() -> Bounds:
    """Compute wins minus losses against random play with alternating seats; both agents of a side play equally."""
    random, best = (
        sum(win - loss for win, _, loss in (tictactoe_odds(optimal=optimal, first=first) for first in (True, False)))
        / 2
        for optimal in (False, True)
    )
    return Bounds(random, best)


def list_board_overrides(name: str) -> tuple[str, ...]:
    """Return the overrides of a board game."""
    return "task=benchmark_pair", f"task.environment={BOARDS}:{name}", *SEES_ALL


OTHER_TASKS: dict[str, BenchmarkTask] = {
    "sorting": BenchmarkTask(
        about="sort four of six letters, each agent writes two; reward per letter",
        kind=Kind.team,
        turns="1",
        overrides=(
            "task=sorting",
            "task.length=4",
            "task.alphabet=abcdef",
            "task.train_size=200",
            "task.eval_size=160",
            "rollout.max_new_tokens=2",
            # The right format with wrong letters: each agent gets the other one's answer.
            "task.agents.low.warm_start_answer='{high}'",
            "task.agents.high.warm_start_answer='{low}'",
        ),
        episodes=60 * BUFFER,
        bounds=lambda: Bounds(1 / 6, 1.0),
    ),
    "copy_6_end": make_copy_task(
        6,
        "at_end=true",
        episodes=20 * BUFFER,
        warm_start_steps=30,
        about="the same, reward after the last turn",
    ),
    "copy_6_signs": make_copy_task(6, "signs=true", episodes=20 * BUFFER, about="`copy_6` with new signs each turn"),
    "copy_6_end_signs": make_copy_task(
        6, "at_end=true", "signs=true", episodes=20 * BUFFER, about="`copy_6_end` with new signs each turn"
    ),
    "stag_hunt": make_matrix_task(
        "stag_hunt",
        STAG_HUNT,
        Kind.mixed,
        about="stag needs both agents (1), hare needs one (.75, or .5 if both choose it): mean reward",
    ),
    "dilemma": make_matrix_task(
        "dilemma",
        DILEMMA,
        Kind.mixed,
        about="repeated prisoners' dilemma: mean reward (.2 if both defect)",
    ),
    "duel": BenchmarkTask(
        about="rock, paper, scissors where paper wins three: negative exploitability of both",
        kind=Kind.zero_sum,
        turns="1",
        overrides=(*list_world_overrides("duel", "turns=1"), "rollout.max_new_tokens=1", "task.eval_size=1024"),
        episodes=40 * BUFFER,
        bounds=duel_bounds,
    ),
    "caller": BenchmarkTask(
        about="one agent names a letter; where it does not see it, it may pay .2 to ask the other: reward of both",
        kind=Kind.team,
        turns="1 or 2, and 0 or 1",
        overrides=(*list_world_overrides("caller"), *SEES_ALL),
        episodes=40 * BUFFER,
        bounds=caller_bounds,
    ),
    "tictactoe": BenchmarkTask(
        about="PettingZoo's classic/tictactoe_v3: both agents alternate as one player against random play",
        kind=Kind.team,
        turns="2 or 3",
        overrides=list_board_overrides("tictactoe"),
        episodes=30 * BUFFER,
        bounds=tictactoe_bounds,
    ),
    "connect_four": BenchmarkTask(
        about="PettingZoo's classic/connect_four_v3, played the same way",
        kind=Kind.team,
        turns="2 to 11",
        overrides=list_board_overrides("connect_four"),
        episodes=10 * BUFFER,
        bounds=lambda: Bounds(0.0, 1.0, sources={"best": LIMIT}),
    ),
}
ORDER = (
    "sorting", "signalling", "copy_1", "copy_1_all", "copy_3", "copy_3_end", "copy_6", "copy_6_end", "copy_1_signs",
    "copy_6_signs", "copy_6_end_signs", "meet", "meet_end", "convention", "stag_hunt", "dilemma", "duel", "caller",
    "tictactoe", "connect_four",
)  # fmt: skip
TASKS = {name: (OTHER_TASKS | BENCHMARK_TASKS)[name] for name in ORDER}
# Scored by `ippo-eval exploitability=exact` alone: a best response leads to situations that play does not reach.
ENUMERATED_TASKS = {"kuhn": BENCHMARK_TASKS["kuhn"]}
ROLE_BUFFER = 64  # episodes per update: eight optimizer steps
ROLE_TASKS: dict[str, BenchmarkTask] = {
    "unequal_turns": BenchmarkTask(
        about="the first agent copies a letter in six turns, the second writes the letter after one in the last",
        kind=Kind.mixed,
        turns="6 and 1",
        overrides=(*list_world_overrides("unequal_roles", "turns=6"), *SEES_ALL),
        episodes=12 * ROLE_BUFFER,
        bounds=lambda: Bounds(1 / len(LETTERS), 1.0),
        rate=LOW_RATE,
    ),
}


def find_score(name: str) -> Callable[[Mapping[str, float]], float]:
    """Return the function of the metrics of an evaluation that is the score of a task."""
    if name == "duel":
        return unexploited
    metric = (TASKS | ENUMERATED_TASKS | ROLE_TASKS)[name].metric
    return lambda metrics: metrics[metric]


# On-policy algorithms take a quarter of the steps: each episode is used once instead of four times. With four times the
# rate, entropies were 0 after ten steps, and learning stopped.
ON_POLICY_RATE = 2.0
ADAPTER_RATE = 5.0  # copy_6_end: 1 learns almost nothing, 10 learns as much as 5
# The critics of arXiv 2601.21972: one value per response, from the tokens before it, and TD over turns.
RESPONSE_VALUE = (
    "algorithm.credit=turn",
    "algorithm.turn_value=first",
    "algorithm.value_unit=turn",
    "algorithm.gae_lambda=0",
)
ALGORITHMS: dict[str, Algorithm] = {
    "ippo": Algorithm(
        about="independent PPO, on-policy: one step per buffer, one value per token, GAE",
        overrides=("algorithm=ippo",),
        buffer=MINI_BATCH,
        rate=ON_POLICY_RATE,
    ),
    "ippo_clipped": INDEPENDENT_PPO,
    "mappo": Algorithm(
        about="MAPPO: each agent's critic reads all observations and responses",
        overrides=("algorithm=mappo", *CLIPPED),
    ),
    "ippo_centralized": Algorithm(
        about="`ippo_clipped` with MAPPO's critic, without its other changes",
        overrides=("algorithm=ppo", "critic=centralized", *CLIPPED),
    ),
    "response_value": Algorithm(
        about="`ippo_clipped` with one value per response and one-step TD over turns",
        overrides=("algorithm=ppo", *CLIPPED, *RESPONSE_VALUE),
    ),
    "response_value_centralized": Algorithm(
        about="the same with a centralised critic",
        overrides=("algorithm=ppo", "critic=centralized", *CLIPPED, *RESPONSE_VALUE),
    ),
    "happo": Algorithm(
        about="HAPPO: sequential updates of agents, corrected by the ratios of earlier agents",
        overrides=("algorithm=happo", *CLIPPED),
        cannot={"signalling": "no two agents act at the same step, so there is nothing to correct"},
    ),
    "shared_policy": Algorithm(
        about="one actor and one critic for both agents",
        overrides=("algorithm=ppo", "team=shared_policy", *CLIPPED),
    ),
    "shared_base": Algorithm(
        about="one frozen base, adapters for each agent's actor and critic",
        overrides=(
            "algorithm=ppo",
            "actor=tiny_lora",
            "team=shared_base",
            "critic=adapter",
            f"actor.warm_start_steps={WARM_START}",  # the base is trained by the warm start only
            *CLIPPED,
        ),
        rate=ADAPTER_RATE,
    ),
    "grpo": Algorithm(
        about="GRPO per agent: groups of eight responses instead of a critic",
        overrides=("algorithm=grpo", *CLIPPED),
        critic=False,
    ),
    "comlrl_iac": Algorithm(
        about="CoMLRL's independent actor-critic: on-policy, one value per response, computed before the response",
        overrides=("algorithm=comlrl_iac",),
        buffer=MINI_BATCH,
        rate=ON_POLICY_RATE,
    ),
    "comlrl_cc": Algorithm(
        about="the same with a centralised critic",
        overrides=("algorithm=comlrl_iac", "critic=centralized"),
        buffer=MINI_BATCH,
        rate=ON_POLICY_RATE,
    ),
}

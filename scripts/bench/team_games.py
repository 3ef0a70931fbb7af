"""Tasks with their bounds, algorithms and scales of the team benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import product

from learning import sampled_score
from play import backward_induction, tictactoe_odds
from team_worlds import (
    AGENTS,
    CELLS,
    CONVENTION,
    DILEMMA,
    DUEL,
    LETTERS,
    MOVES,
    STAG_HUNT,
    Caller,
    Kuhn,
    Payoffs,
    meeting,
    walked,
)

from ippo_cli.formulas.game_tree import Leaf, Node, Tree, expected_payoffs, nash_conv

WORLDS = "scripts/bench/team_worlds.py"
BUFFER = 256  # episodes per update of algorithms with a clipped ratio
MINI_BATCH = 64  # episodes per optimizer step, for all algorithms
WARM_START = 100  # supervised steps until most answers are valid


class Kind(Enum):
    """Relation of the two agents' rewards."""

    team = "team"  # both agents get the same reward
    mixed = "mixed motives"
    zero_sum = "zero sum"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Expected scores of uniformly random play and of optimal play."""

    random: float
    best: float

    def normalised(self, score: float) -> float:
        return (score - self.random) / (self.best - self.random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task for two agents."""

    about: str
    kind: Kind
    turns: str
    overrides: tuple[str, ...]
    episodes: int  # for training
    bounds: Callable[[], Bounds]
    score: Callable[[Mapping[str, float]], float] = sampled_score  # score of an evaluation's metrics
    rate: float = 1.0  # factor of the scale's learning rates
    warm_start_steps: int = WARM_START  # supervised steps on valid answers, of models without pretrained weights
    about_critics: bool = False  # tests the claim about critics; excluded from other comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm, as overrides in addition to a task's."""

    about: str
    overrides: tuple[str, ...]
    buffer: int = BUFFER
    rate: float = 1.0  # factor of the scale's learning rates
    critic: bool = True
    cannot: Mapping[str, str] = field(default_factory=dict)  # task -> why it is rejected there


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Model size, number of episodes and learning rates; `overrides` come before the task's."""

    episodes: int  # factor of the task's episodes
    overrides: tuple[str, ...]
    from_scratch: bool  # with the overrides `FROM_SCRATCH` and a warm start
    actor_learning_rate: float
    critic_learning_rate: float


FROM_SCRATCH = (
    "actor.alphabet=printable",  # equal initial weights for every critic input
    "actor.lr_schedule=linear",  # a constant rate unlearns again: whitening amplifies noise
    "actor.min_lr_ratio=0.1",
    "actor.warmup_iterations=2",
)
SMALL = ("actor.num_layers=1", "actor.hidden_size=64")
LARGE = ("actor.num_layers=4", "actor.hidden_size=256")
SCALES = {
    "small": Scale(  # most team tasks of one to four turns are solved in a minute or two of one core
        episodes=1,
        overrides=SMALL,
        from_scratch=True,
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
    ),
    "large": Scale(
        episodes=4,
        overrides=LARGE,
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
# For tasks in which policies become deterministic with wrong answers at the scale's rates.
LOW_RATE = 1 / 3
# For tasks in which some seeds ignore the prompt after a longer warm start. Most initial answers are invalid, so tasks
# with signs, or with a reward only if all letters are right, are learnt worse with it.
SHORT_WARM_START = 10
MEDIUM_WARM_START = 30  # for six turns
QUICK = ("num_iterations=2", "evaluation.every=1", "task.eval_size=16")


def copying(
    turns: int,
    *arguments: str,
    length: int = 2,
    episodes: int,
    rate: float = 1.0,
    warm_start_steps: int = WARM_START,
    about: str,
) -> Task:
    random = 1 / len(LETTERS)
    letters = 2 * length if "together=true" in arguments else 1
    signs = "signs=true" in arguments
    return Task(
        about=about,
        kind=Kind.team,
        turns=str(turns),
        overrides=(
            *world("copy", f"turns={turns}", f"length={length}", *arguments),
            f"rollout.max_new_tokens={length}",
        ),
        episodes=episodes,
        bounds=lambda: Bounds(random**letters, 1.0),
        score=_without_signs if signs else sampled_score,
        rate=rate,
        warm_start_steps=warm_start_steps,
        about_critics=signs,
    )


def _without_signs(metrics: Mapping[str, float]) -> float:
    return metrics["sampled/learnt"]


def meetings(*arguments: str, turns: int, episodes: int, rate: float = 1.0, about: str) -> Task:
    return Task(
        about=about,
        kind=Kind.team,
        turns=str(turns),
        overrides=(*world("meet", f"turns={turns}", *arguments), *SEES_ALL),
        episodes=episodes,
        bounds=lambda: meet_bounds(turns, at_end="at_end=true" in arguments),
        rate=rate,
    )


def matrix(name: str, payoffs: Payoffs, kind: Kind, *, about: str) -> Task:
    """Return a task with a repeated matrix game."""
    turns = 4
    return Task(
        about=about,
        kind=kind,
        turns=str(turns),
        overrides=(*world(name, f"turns={turns}"), *SEES_ALL),
        episodes=40 * BUFFER,
        bounds=lambda: matrix_bounds(payoffs),
    )


def world(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the overrides of an environment of `team_worlds.py`."""
    given = [f"+task.environment_args.{argument}" for argument in arguments]
    return "task=scripts/bench/pair.yaml", f"task.environment={WORLDS}:{name}", *given


SEES_ALL = ("rollout.context=last_only", "rollout.max_new_tokens=1")


@cache
def meet_bounds(turns: int, *, at_end: bool) -> Bounds:
    """Compute bounds for both agents by backward induction over cells and remaining turns."""
    cells = list(product(range(CELLS), repeat=2))
    transitions: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
    for turn, one in product(range(turns), range(len(cells))):
        transitions[turn * len(cells) + one] = {
            action: _outcome(walked(cells[one], *moves), turn, turns, at_end)
            for action, moves in enumerate(product(MOVES, repeat=2))
        }
    values = [backward_induction(transitions, turns, choose) for choose in (lambda found: sum(found) / len(found), max)]
    random, best = (sum(value[cell] for cell in range(len(cells))) / len(cells) for value in values)
    return Bounds(random, best)


def _outcome(cells: tuple[int, int], turn: int, turns: int, at_end: bool) -> list[tuple[float, int, float, bool]]:
    over = turn == turns - 1
    behind = 0 if over else (turn + 1) * CELLS**2 + cells[0] * CELLS + cells[1]
    return [(1.0, behind, meeting(cells, turn, turns, at_end), over)]


def matrix_bounds(payoffs: Payoffs) -> Bounds:
    """Compute bounds of the mean over both agents; the best pair of actions gives the upper one."""
    means = [sum(pair) / 2 for pair in payoffs.values()]
    return Bounds(sum(means) / len(means), max(means))


def exploitability(mixed: Mapping[str, float], other: Mapping[str, float], payoffs: Payoffs = DUEL) -> float:
    """Return NashConv: the sum of both agents' gains from a best response to the other's mixed strategy."""
    first = max(sum(share * payoffs[own + theirs][0] for theirs, share in other.items()) for own in mixed)
    second = max(sum(share * payoffs[theirs + own][1] for theirs, share in mixed.items()) for own in other)
    return (
        first
        + second
        - sum(
            share * part * sum(payoffs[own + theirs]) for own, share in mixed.items() for theirs, part in other.items()
        )
    )


def unexploited(metrics: Mapping[str, float]) -> float:
    """Return the negative exploitability of the action frequencies of an evaluation."""
    options = list(dict.fromkeys(pair[0] for pair in DUEL))
    taken = [{option: metrics[f"sampled/{name}_{option}"] for option in options} for name in ("first", "second")]
    return -exploitability(*taken)


def duel_bounds() -> Bounds:
    uniform = {option: 1 / 3 for option in "rps"}
    return Bounds(-exploitability(uniform, uniform), 0.0)


Probabilities = Callable[[str, str, Sequence[str]], Sequence[float]]
"""An agent's strategy: agent, observation and legal actions -> probabilities."""


def game_tree(environment: Kuhn | Caller, strategy: Probabilities) -> Node:
    """Return the tree of an environment in which one agent acts at a time and remembers its last observation."""
    outcomes = environment.chance_outcomes()
    children = [_subtree(environment, seed, [], strategy) for seed in outcomes]
    return Node(player=None, probabilities=[*outcomes.values()], children=children)


def _subtree(environment: Kuhn | Caller, seed: int, taken: Sequence[str], strategy: Probabilities) -> Tree:
    observations, rewards = environment.reset(seed)
    for action in taken:
        observations, rewards, *_ = environment.step(dict.fromkeys(observations, action))
    if not observations:
        return Leaf(tuple(rewards[name] for name in AGENTS))
    ((name, observation),) = observations.items()
    legal = environment.actions()[name]
    return Node(
        player=AGENTS.index(name),
        information=observation,
        probabilities=strategy(name, observation, legal),
        children=[_subtree(environment, seed, [*taken, action], strategy) for action in legal],
    )


def act_uniformly(agent: str, observation: str, legal: Sequence[str]) -> Sequence[float]:
    """Return equal probabilities."""
    return [1 / len(legal)] * len(legal)


def kuhn_bounds() -> Bounds:
    return Bounds(-nash_conv(game_tree(Kuhn(), act_uniformly), len(AGENTS)), 0.0)


def caller_bounds() -> Bounds:
    """Compute the score of random play, and of asking exactly where the letter is unknown."""
    caller = Caller()
    return Bounds(expected_payoffs(game_tree(caller, act_uniformly))[0], 1 - caller.cost / 2)


def tictactoe_bounds() -> Bounds:
    """Compute wins minus losses against random play with alternating seats; both agents of a side play equally."""
    random, best = (
        sum(win - loss for win, _, loss in (tictactoe_odds(optimal=optimal, first=first) for first in (True, False)))
        / 2
        for optimal in (False, True)
    )
    return Bounds(random, best)


TASKS: dict[str, Task] = {
    "sorting": Task(
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
    "signalling": Task(
        about="the first agent observes one of four signals, the second acts on the first one's character",
        kind=Kind.team,
        turns="1 each, in turn",
        overrides=("task=signalling", "task.signals=abcd", "rollout.max_new_tokens=1"),
        episodes=60 * BUFFER,
        bounds=lambda: Bounds(1 / 4, 1.0),
    ),
    "copy_1": copying(
        1,
        episodes=80 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=SHORT_WARM_START,
        about="one agent copies two letters, the other writes the following letters",
    ),
    "copy_1_all": copying(
        1,
        "together=true",
        length=1,
        episodes=40 * BUFFER,
        rate=LOW_RATE,
        about="the same with one letter; reward only if both are correct",
    ),
    "copy_3": copying(
        3,
        episodes=60 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=SHORT_WARM_START,
        about="three turns of `copy_1`, reward per letter each turn",
    ),
    "copy_3_end": copying(
        3,
        "at_end=true",
        episodes=80 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=SHORT_WARM_START,
        about="the same, reward after the last turn",
    ),
    "copy_6": copying(
        6,
        episodes=40 * BUFFER,
        warm_start_steps=MEDIUM_WARM_START,
        about="six turns of `copy_1`, reward per letter each turn",
    ),
    "copy_6_end": copying(
        6,
        "at_end=true",
        episodes=20 * BUFFER,
        warm_start_steps=MEDIUM_WARM_START,
        about="the same, reward after the last turn",
    ),
    "copy_1_signs": copying(
        1,
        "signs=true",
        episodes=60 * BUFFER,
        rate=LOW_RATE,
        about="`copy_1` with signs: each agent observes its own half of a random bonus",
    ),
    "copy_6_signs": copying(6, "signs=true", episodes=20 * BUFFER, about="`copy_6` with new signs each turn"),
    "copy_6_end_signs": copying(
        6, "at_end=true", "signs=true", episodes=20 * BUFFER, about="`copy_6_end` with new signs each turn"
    ),
    "meet": meetings(
        turns=4,
        episodes=60 * BUFFER,
        rate=LOW_RATE,
        about="agents move on a ring of five cells; reward while in one cell",
    ),
    "meet_end": meetings(
        "at_end=true", turns=4, episodes=30 * BUFFER, about="the same; reward if in one cell at the end"
    ),
    "convention": matrix(
        "convention",
        CONVENTION,
        Kind.team,
        about="reward if both choose the same one of four signs",
    ),
    "stag_hunt": matrix(
        "stag_hunt",
        STAG_HUNT,
        Kind.mixed,
        about="stag needs both agents (1), hare needs one (.75, or .5 if both choose it): mean reward",
    ),
    "dilemma": matrix(
        "dilemma",
        DILEMMA,
        Kind.mixed,
        about="repeated prisoners' dilemma: mean reward (.2 if both defect)",
    ),
    "duel": Task(
        about="rock, paper, scissors where paper wins three: negative exploitability of both",
        kind=Kind.zero_sum,
        turns="1",
        overrides=(*world("duel", "turns=1"), "rollout.max_new_tokens=1", "task.eval_size=1024"),
        episodes=40 * BUFFER,
        bounds=duel_bounds,
        score=unexploited,
    ),
    "caller": Task(
        about="one agent names a letter; where it does not see it, it may pay .2 to ask the other: reward of both",
        kind=Kind.team,
        turns="1 or 2, and 0 or 1",
        overrides=(*world("caller"), *SEES_ALL),
        episodes=40 * BUFFER,
        bounds=caller_bounds,
    ),
    "tictactoe": Task(
        about="PettingZoo's classic/tictactoe_v3: both agents alternate as one player against random play",
        kind=Kind.team,
        turns="2 or 3",
        overrides=(*world("tictactoe"), *SEES_ALL),
        episodes=30 * BUFFER,
        bounds=tictactoe_bounds,
    ),
    "connect_four": Task(
        about="PettingZoo's classic/connect_four_v3, played the same way",
        kind=Kind.team,
        turns="2 to 11",
        overrides=(*world("connect_four"), *SEES_ALL),
        episodes=10 * BUFFER,
        bounds=lambda: Bounds(0.0, 1.0),
    ),
}
# Scored by `ippo-eval exploitability=exact` alone: a best response leads to situations that play does not reach.
ENUMERATED_TASKS: dict[str, Task] = {
    "kuhn": Task(
        about="Kuhn poker with three cards",
        kind=Kind.zero_sum,
        turns="1 or 2",
        overrides=(*world("kuhn"), *SEES_ALL, "task.eval_size=60"),
        episodes=80 * BUFFER,
        bounds=kuhn_bounds,
    ),
}
ROLE_BUFFER = 64  # episodes per update: eight optimizer steps
ROLE_TASKS: dict[str, Task] = {
    "unequal_turns": Task(
        about="the first agent copies a letter in six turns, the second writes the letter after one in the last",
        kind=Kind.mixed,
        turns="6 and 1",
        overrides=(*world("unequal_roles", "turns=6"), *SEES_ALL),
        episodes=12 * ROLE_BUFFER,
        bounds=lambda: Bounds(1 / len(LETTERS), 1.0),
        rate=LOW_RATE,
    ),
}

# On-policy algorithms take a quarter of the steps: each episode is used once instead of four times. With four times the
# rate, entropies were 0 after ten steps, and learning stopped.
ON_POLICY_RATE = 2.0
CLIPPED = ("algorithm.ppo_epochs=4", f"algorithm.mini_batch_size={MINI_BATCH}")
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
    "ippo_clipped": Algorithm(about="independent PPO with clipped ratios", overrides=("algorithm=ppo", *CLIPPED)),
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

"""What the benchmark of teams is made of: tasks with their bounds, algorithms, and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import product

from learning import sampled_score
from play import backward_induction, tictactoe_odds
from team_worlds import CELLS, CONVENTION, DILEMMA, DUEL, LETTERS, MOVES, STAG_HUNT, Payoffs, meeting, walked

WORLDS = "scripts/bench/team_worlds.py"
BUFFER = 256  # episodes that algorithms with a clipped ratio collect before they learn
MINI_BATCH = 64  # episodes of an optimizer step, of all algorithms


class Kind(Enum):
    """Whose interests are whose."""

    team = "team"  # both are paid the same
    mixed = "mixed motives"
    zero_sum = "zero sum"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Expected scores: of play that draws every action at random, and the best there is."""

    random: float
    best: float

    def normalised(self, score: float) -> float:
        return (score - self.random) / (self.best - self.random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What two agents are to learn."""

    about: str
    kind: Kind
    turns: str
    overrides: tuple[str, ...]
    episodes: int  # that are trained on
    bounds: Callable[[], Bounds]
    score: Callable[[Mapping[str, float]], float] = sampled_score  # of the metrics of an evaluation
    about_critics: bool = False  # made for the claim about critics: what is no matter of critics is not compared on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Overrides beside a task's."""

    about: str
    overrides: tuple[str, ...]
    buffer: int = BUFFER
    rate: float = 1.0  # times the learning rates of the scale
    critic: bool = True
    cannot: Mapping[str, str] = field(default_factory=dict)  # tasks that it is refused on, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is spent: `overrides` come before the task's."""

    episodes: int  # times those of the task
    overrides: tuple[str, ...]
    actor_learning_rate: float
    critic_learning_rate: float


FROM_SCRATCH = (
    "actor.alphabet=printable",  # equal initial weights, whatever the critics read
    "actor.lr_schedule=linear",  # at a constant rate what was learnt is lost again, in noise that whitening makes large
    "actor.min_lr_ratio=0.1",
    "actor.warmup_iterations=2",
    "actor.warm_start_steps=100",  # the form of answers, drawn at random
    "actor.warm_start_learning_rate=3e-3",
)
SMALL = ("actor.num_layers=1", "actor.hidden_size=64")
LARGE = ("actor.num_layers=4", "actor.hidden_size=256")
SCALES = {
    "small": Scale(
        episodes=1,
        overrides=(*FROM_SCRATCH, *SMALL),
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
    ),
    "large": Scale(
        episodes=8,
        overrides=(*FROM_SCRATCH, *LARGE),
        actor_learning_rate=5e-4,
        critic_learning_rate=5e-4,
    ),
    "pretrained": Scale(  # with actor.model=
        episodes=8,
        overrides=("actor=full",),
        actor_learning_rate=1e-6,
        critic_learning_rate=1e-5,
    ),
}
QUICK = ("num_iterations=2", "evaluation.every=1", "task.eval_size=16")


def copying(turns: int, *arguments: str, length: int = 2, episodes: int, about: str) -> Task:
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
        about_critics=signs,
    )


def _without_signs(metrics: Mapping[str, float]) -> float:
    return metrics["sampled/learnt"]


def meetings(*arguments: str, turns: int, episodes: int, about: str) -> Task:
    return Task(
        about=about,
        kind=Kind.team,
        turns=str(turns),
        overrides=(*world("meet", f"turns={turns}", *arguments), *SEES_ALL),
        episodes=episodes,
        bounds=lambda: meet_bounds(turns, at_end="at_end=true" in arguments),
    )


def matrix(name: str, payoffs: Payoffs, kind: Kind, *, about: str) -> Task:
    """A matrix game that is played again and again."""
    turns = 4
    return Task(
        about=about,
        kind=kind,
        turns=str(turns),
        overrides=(*world(name, f"turns={turns}"), *SEES_ALL),
        episodes=20 * BUFFER,
        bounds=lambda: matrix_bounds(payoffs),
    )


def world(name: str, *arguments: str) -> tuple[str, ...]:
    """Overrides of a world of `team_worlds.py`."""
    given = [f"+task.environment_args.{argument}" for argument in arguments]
    return "task=scripts/bench/pair.yaml", f"task.environment={WORLDS}:{name}", *given


SEES_ALL = ("rollout.context=last_only", "rollout.max_new_tokens=1")


@cache
def meet_bounds(turns: int, *, at_end: bool) -> Bounds:
    """Of both walkers together, by backward induction over where they stand and the turns that are left."""
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
    """Of the mean over both agents, each turn as good as the best pair of actions."""
    means = [sum(pair) / 2 for pair in payoffs.values()]
    return Bounds(sum(means) / len(means), max(means))


def exploitability(mixed: Mapping[str, float], other: Mapping[str, float], payoffs: Payoffs = DUEL) -> float:
    """What both agents could gain at most by answering the other's mixture of actions as best one can (NashConv)."""
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
    """The exploitability, less than 0, of how often each action was taken in an evaluation."""
    options = list(dict.fromkeys(pair[0] for pair in DUEL))
    taken = [{option: metrics[f"sampled/{name}_{option}"] for option in options} for name in ("first", "second")]
    return -exploitability(*taken)


def duel_bounds() -> Bounds:
    uniform = {option: 1 / 3 for option in "rps"}
    return Bounds(-exploitability(uniform, uniform), 0.0)


def tictactoe_bounds() -> Bounds:
    """Won less lost against random play, where the seats alternate; who of a side moves makes no difference."""
    random, best = (
        sum(win - loss for win, _, loss in (tictactoe_odds(optimal=optimal, first=first) for first in (True, False)))
        / 2
        for optimal in (False, True)
    )
    return Bounds(random, best)


TASKS: dict[str, Task] = {
    "sorting": Task(
        about="four letters of six are sorted, each agent writes two of them; paid by the letter",
        kind=Kind.team,
        turns="1",
        overrides=(
            "task=sorting",
            "task.length=4",
            "task.alphabet=abcdef",
            "task.train_size=200",
            "task.eval_size=160",
            "rollout.max_new_tokens=2",
            # Two letters in order, and the wrong ones.
            "task.agents.low.warm_start_answer='{high}'",
            "task.agents.high.warm_start_answer='{low}'",
        ),
        episodes=30 * BUFFER,
        bounds=lambda: Bounds(1 / 6, 1.0),
    ),
    "signalling": Task(
        about="one agent sees one of four signals, the other acts on the character that it is sent",
        kind=Kind.team,
        turns="1 each, in turn",
        overrides=("task=signalling", "task.signals=abcd", "rollout.max_new_tokens=1"),
        episodes=30 * BUFFER,
        bounds=lambda: Bounds(1 / 4, 1.0),
    ),
    "copy_1": copying(1, episodes=20 * BUFFER, about="two letters are copied by one, moved on by the other"),
    "copy_1_all": copying(
        1, "together=true", length=1, episodes=20 * BUFFER, about="the same with one letter, paid if both are right"
    ),
    "copy_3": copying(3, episodes=20 * BUFFER, about="three times, paid each time by the letter"),
    "copy_3_end": copying(3, "at_end=true", episodes=20 * BUFFER, about="the same, paid when all is over"),
    "copy_6": copying(6, episodes=10 * BUFFER, about="six times, paid each time by the letter"),
    "copy_6_end": copying(6, "at_end=true", episodes=10 * BUFFER, about="the same, paid when all is over"),
    "copy_1_signs": copying(
        1, "signs=true", episodes=20 * BUFFER, about="`copy_1`; half of each agent's luck is seen by the other alone"
    ),
    "copy_6_signs": copying(6, "signs=true", episodes=10 * BUFFER, about="the same of `copy_6`, a sign each turn"),
    "copy_6_end_signs": copying(
        6, "at_end=true", "signs=true", episodes=10 * BUFFER, about="the same of `copy_6_end`, paid when all is over"
    ),
    "meet": meetings(
        turns=4, episodes=15 * BUFFER, about="walkers on a ring of five cells, paid while they are together"
    ),
    "meet_end": meetings(
        "at_end=true", turns=4, episodes=15 * BUFFER, about="the same, paid if they are together in the end"
    ),
    "convention": matrix(
        "convention",
        CONVENTION,
        Kind.team,
        about="both are paid for the same one of four signs",
    ),
    "stag_hunt": matrix(
        "stag_hunt",
        STAG_HUNT,
        Kind.mixed,
        about="a stag takes both (1), a hare one (.75, or .5 beside the other): mean pay",
    ),
    "dilemma": matrix(
        "dilemma",
        DILEMMA,
        Kind.mixed,
        about="prisoners' dilemma, repeated: mean pay (.2 where both defect)",
    ),
    "duel": Task(
        about="rock, paper, scissors where paper wins three: how little both can be exploited",
        kind=Kind.zero_sum,
        turns="1",
        overrides=(*world("duel", "turns=1"), "rollout.max_new_tokens=1", "task.eval_size=1024"),
        episodes=20 * BUFFER,
        bounds=duel_bounds,
        score=unexploited,
    ),
    "tictactoe": Task(
        about="PettingZoo's classic/tictactoe_v3 as a side whose moves the two make in turn, against random play",
        kind=Kind.team,
        turns="2 or 3",
        overrides=(*world("tictactoe"), *SEES_ALL),
        episodes=15 * BUFFER,
        bounds=tictactoe_bounds,
    ),
    "connect_four": Task(
        about="PettingZoo's classic/connect_four_v3, in the same way",
        kind=Kind.team,
        turns="2 to 11",
        overrides=(*world("connect_four"), *SEES_ALL),
        episodes=5 * BUFFER,
        bounds=lambda: Bounds(0.0, 1.0),
    ),
}

# They take a quarter as many steps, seeing every episode once and not four times. At four times the rate entropies were
# gone after ten steps, and nothing was learnt any more.
ON_POLICY_RATE = 2.0
CLIPPED = ("algorithm.ppo_epochs=4", f"algorithm.mini_batch_size={MINI_BATCH}")
ADAPTER_RATE = 5.0  # of copy_6_end nearly nothing is learnt at 1, and at 10 as much as at 5
# What arXiv 2601.21972's critics estimate: one value for a response, from what stands before it, and TD over turns.
RESPONSE_VALUE = (
    "algorithm.credit=turn",
    "algorithm.turn_value=first",
    "algorithm.value_unit=turn",
    "algorithm.gae_lambda=0",
)
ALGORITHMS: dict[str, Algorithm] = {
    "ippo": Algorithm(
        about="Independent PPO on-policy: one step a buffer, a value per token, GAE",
        overrides=("algorithm=ippo",),
        buffer=MINI_BATCH,
        rate=ON_POLICY_RATE,
    ),
    "ippo_clipped": Algorithm(about="Independent PPO with clipped ratios", overrides=("algorithm=ppo", *CLIPPED)),
    "mappo": Algorithm(
        about="MAPPO: a critic per agent that reads what all saw and said",
        overrides=("algorithm=mappo", *CLIPPED),
    ),
    "ippo_centralized": Algorithm(
        about="`ippo_clipped` with MAPPO's critic and nothing else of it",
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
        about="HAPPO: agents are updated one after another, corrected by the ratios before them",
        overrides=("algorithm=happo", *CLIPPED),
        cannot={"signalling": "nobody acts at the same step as another, so there is nothing to correct"},
    ),
    "shared_policy": Algorithm(
        about="one actor and one critic for both agents",
        overrides=("algorithm=ppo", "team=shared_policy", *CLIPPED),
    ),
    "shared_base": Algorithm(
        about="one frozen base, adapters for each agent's actor and critic",
        overrides=("algorithm=ppo", "actor=tiny_lora", "team=shared_base", "critic=adapter", *CLIPPED),
        rate=ADAPTER_RATE,
    ),
    "grpo": Algorithm(
        about="GRPO per agent: groups of eight instead of a critic",
        overrides=("algorithm=grpo", *CLIPPED),
        critic=False,
    ),
    "comlrl_iac": Algorithm(
        about="CoMLRL's independent actor-critic: on-policy, one value per response, read before it",
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

"""The tasks of the benchmark: each is one entry of `BENCHMARK_TASKS`, with overrides of a run, bounds and episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from ippo_cli.benchmark.bounds import NO_DEAL, Bounds, kuhn_bounds, matrix_bounds, meet_bounds
from ippo_cli.benchmark.environments import CONVENTION, Payoffs
from ippo_cli.benchmark.text_games import MIN_SCORE, PACKAGE, compute_equal_values_probability
from ippo_cli.benchmark.turn_games import LETTERS, Kuhn

ENVIRONMENTS = "ippo_cli.benchmark.environments"
TEXT_GAMES = "ippo_cli.benchmark.text_games"
BUFFER = 256  # episodes per update of algorithms with a clipped ratio
WARM_START = 100  # supervised steps until most answers are valid
# For tasks in which some seeds ignore the prompt after a longer warm start. Most initial answers are invalid, so tasks
# with signs, or with a reward only if all letters are right, are learnt worse with it.
SHORT_WARM_START = 10
MEDIUM_WARM_START = 30  # for six turns
TEXT_WARM_START = 300  # for answers of some words; with 100 steps most offers are invalid, and training ends with none
LOW_RATE = 1 / 3  # for tasks in which policies become deterministic with wrong answers at the scale's rates
SEES_ALL = ("rollout.context=last_only", "rollout.max_new_tokens=1")  # an observation has all that is needed
SCORE, EXPLOITABILITY = "sampled/score", "negative NashConv"
JOINT = "sampled/joint"  # of text games


class Kind(Enum):
    """Relation of the two agents' rewards."""

    team = "team"  # both agents get the same reward
    mixed = "mixed motives"
    zero_sum = "zero sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTask:
    """One task; its overrides, its metric and its rows define it, the other fields are about training."""

    about: str
    kind: Kind
    turns: str  # of each agent
    overrides: tuple[str, ...]  # of a run
    bounds: Callable[[], Bounds]
    episodes: int  # for training
    metric: str = SCORE  # of an evaluation
    game: Callable[[], Any] | None = None  # the score is its negative NashConv, by enumeration, instead of the metric
    score_range: tuple[float, float] = (0.0, 1.0)  # of the score, which confidence sequences need
    single: tuple[str, ...] = ()  # overrides of one agent that does the work of the team; empty: there are none
    arms: tuple[str, ...] | None = None  # control arms; None: all that the task admits
    rate: float = 1.0  # factor of the learning rates of the scale
    warm_start_steps: int = WARM_START  # supervised steps on valid answers, of models without pretrained weights
    long_prompts: bool = False  # the baseline plays fewer episodes per update
    package: str | None = None  # of the extra with the same name, which the task needs

    @property
    def score_name(self) -> str:
        """What the score is."""
        return self.metric if self.game is None else EXPLOITABILITY


def list_world_overrides(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the overrides of an environment of the benchmark for two agents."""
    settings = [f"+task.environment_args.{argument}" for argument in arguments]
    return "task=benchmark_pair", f"task.environment={ENVIRONMENTS}:{name}", *settings


def list_single_overrides(name: str, *arguments: str, tokens: int) -> tuple[str, ...]:
    """Return the overrides with which one agent plays for both, with as many tokens as both."""
    settings = [f"+task.environment_args.{argument}" for argument in (f"game={name}", *arguments)]
    return (
        "task=benchmark_solo",
        f"task.environment={ENVIRONMENTS}:alone",
        *settings,
        f"rollout.max_new_tokens={tokens}",
    )


def make_copy_task(
    turns: int,
    *arguments: str,
    length: int = 2,
    episodes: int,
    rate: float = 1.0,
    warm_start_steps: int = WARM_START,
    about: str,
) -> BenchmarkTask:
    """Return a task in which one agent copies letters and the other one writes the letters after them."""
    letters = 2 * length if "together=true" in arguments else 1
    settings = (f"turns={turns}", f"length={length}", *arguments)
    return BenchmarkTask(
        about=about,
        kind=Kind.team,
        turns=str(turns),
        overrides=(*list_world_overrides("copy", *settings), f"rollout.max_new_tokens={length}"),
        single=list_single_overrides("copy", *settings, tokens=2 * length),
        episodes=episodes,
        bounds=partial(copy_bounds, letters),
        metric="sampled/learnt" if "signs=true" in arguments else SCORE,  # without the random bonus
        rate=rate,
        warm_start_steps=warm_start_steps,
    )


def copy_bounds(letters: int) -> Bounds:
    """Compute bounds of a task that rewards this many letters together; one agent knows half of the letters."""
    guess = 1 / len(LETTERS)
    single = (1 + guess) / 2 if letters == 1 else guess ** (letters / 2)
    return Bounds(guess**letters, 1.0, single)


def make_meeting_task(*arguments: str, turns: int, episodes: int, rate: float = 1.0, about: str) -> BenchmarkTask:
    """Return a task in which two agents move on a ring."""
    settings = (f"turns={turns}", *arguments)
    return BenchmarkTask(
        about=about,
        kind=Kind.team,
        turns=str(turns),
        overrides=(*list_world_overrides("meet", *settings), *SEES_ALL),
        single=list_single_overrides("meet", *settings, tokens=2),
        episodes=episodes,
        bounds=partial(meet_bounds, turns, at_end="at_end=true" in arguments),
        rate=rate,
    )


def make_matrix_task(name: str, payoffs: Payoffs, kind: Kind, *, about: str) -> BenchmarkTask:
    """Return a task with a repeated matrix game."""
    turns = 4
    return BenchmarkTask(
        about=about,
        kind=kind,
        turns=str(turns),
        overrides=(*list_world_overrides(name, f"turns={turns}"), *SEES_ALL),
        single=list_single_overrides(name, f"turns={turns}", tokens=2),
        episodes=40 * BUFFER,
        bounds=partial(matrix_bounds, payoffs),
    )


def list_text_overrides(
    env_id: str, *arguments: str, payoff: str, best: float | str, answers: str, shared: bool = False
) -> tuple[str, ...]:
    """Return the overrides of a game of TextArena for two agents; `TextGame` describes the settings.

    `best` (unless it is a number) and `answers` are functions of `text_games`.
    """
    settings = {
        "env_id": env_id,
        "payoff": payoff,
        "best": f"{TEXT_GAMES}:{best}" if isinstance(best, str) else best,
        "answers": f"{TEXT_GAMES}:{answers}",
        **({"shared": "true"} if shared else {}),
    }
    return (
        "task=benchmark_text",
        f"task.environment={TEXT_GAMES}:text_game",
        *(f"+task.environment_args.{key}={value}" for key, value in settings.items()),
        *(f"+task.environment_args.arguments.{argument}" for argument in arguments),
        "task.eval_size=128",
    )


make_text_task = partial(
    BenchmarkTask,
    metric=JOINT,
    rate=LOW_RATE,
    warm_start_steps=TEXT_WARM_START,
    long_prompts=True,
    package=PACKAGE,
)


BENCHMARK_TASKS: dict[str, BenchmarkTask] = {
    "signalling": BenchmarkTask(
        about="the first agent observes one of four signals, the second acts on the first one's character",
        kind=Kind.team,
        turns="1 each, in turn",
        overrides=("task=signalling", "task.signals=abcd", "rollout.max_new_tokens=1"),
        episodes=60 * BUFFER,
        bounds=lambda: Bounds(1 / 4, 1.0, 1 / 4),
    ),
    "copy_1": make_copy_task(
        1,
        episodes=80 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=SHORT_WARM_START,
        about="one agent copies two letters, the other writes the following letters",
    ),
    "copy_1_all": make_copy_task(
        1,
        "together=true",
        length=1,
        episodes=40 * BUFFER,
        rate=LOW_RATE,
        about="the same with one letter; reward only if both are correct",
    ),
    "copy_3": make_copy_task(
        3,
        episodes=60 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=SHORT_WARM_START,
        about="three turns of `copy_1`, reward per letter each turn",
    ),
    "copy_3_end": make_copy_task(
        3,
        "at_end=true",
        episodes=80 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=SHORT_WARM_START,
        about="the same, reward after the last turn",
    ),
    "copy_6": make_copy_task(
        6,
        episodes=40 * BUFFER,
        warm_start_steps=MEDIUM_WARM_START,
        about="six turns of `copy_1`, reward per letter each turn",
    ),
    "copy_1_signs": make_copy_task(
        1,
        "signs=true",
        episodes=60 * BUFFER,
        rate=LOW_RATE,
        about="`copy_1` with signs: each agent observes its own half of a random bonus",
    ),
    "meet": make_meeting_task(
        turns=4,
        episodes=60 * BUFFER,
        rate=LOW_RATE,
        about="agents move on a ring of five cells; reward while in one cell",
    ),
    "meet_end": make_meeting_task(
        "at_end=true", turns=4, episodes=30 * BUFFER, about="the same; reward if in one cell at the end"
    ),
    "convention": make_matrix_task(
        "convention",
        CONVENTION,
        Kind.team,
        about="reward if both choose the same one of four signs",
    ),
    "hanabi": BenchmarkTask(
        about="Hanabi with two colours, two ranks, hands of two, one hint token and one life",
        kind=Kind.team,
        turns="about 3 each",
        overrides=(
            "task=benchmark_pair",
            "task.environment=ippo_cli.benchmark.hanabi:hanabi",
            "rollout.max_new_tokens=2",
            "task.eval_size=180",  # as many as there are deals
        ),
        bounds=lambda: Bounds(0.157011, 149 / 180, 0.333392),  # `hanabi_scores`, which takes seconds
        episodes=40 * BUFFER,
        rate=LOW_RATE,
        warm_start_steps=300,  # with 100 it learnt nothing in 20 iterations
    ),
    # A best response leads to situations that play does not reach, so that only the enumerated game has its score.
    "kuhn": BenchmarkTask(
        about="Kuhn poker with three cards: negative NashConv of both",
        kind=Kind.zero_sum,
        turns="1 or 2",
        overrides=(*list_world_overrides("kuhn"), *SEES_ALL, "task.eval_size=60"),
        episodes=80 * BUFFER,
        bounds=kuhn_bounds,
        game=Kuhn,
        score_range=(-4.0, 0.0),
        arms=("frozen_partner", "shared_policy"),
    ),
    "negotiation": make_text_task(
        about="trade five resources that are worth more to one agent than to the other; joint gain / best joint gain",
        kind=Kind.team,
        turns="1 or 2",
        overrides=list_text_overrides(
            "SimpleNegotiation-v0",
            "max_turns=2",
            payoff="inventory_value.{player}.change",
            best="find_best_trade",
            answers="list_trade_answers",
            shared=True,
        ),
        # Few games draw equal values for both agents, so that no trade gains.
        bounds=lambda: Bounds(0.0, 1 - compute_equal_values_probability(), sources={"random": NO_DEAL}),
        score_range=(MIN_SCORE, 1.0),
        episodes=10 * BUFFER,
    ),
    "ultimatum": make_text_task(
        about="the first agent offers a part of ten dollars, the second accepts or rejects, twice; accepted fraction",
        kind=Kind.mixed,
        turns="2",
        overrides=list_text_overrides(
            "IteratedUltimatumGame-v0",
            "max_turns=4",
            "pool=10",
            payoff="player_totals.{player}",
            best=20,
            answers="list_ultimatum_answers",
        ),
        bounds=lambda: Bounds(1 / 2, 1.0, 1.0),
        episodes=5 * BUFFER,
    ),
}

"""Train on tasks with episodes, per seed, and record the results: conversations, turns, environments.

    python scripts/bench/episodes.py                                    all runs: some hours on two cores
    python scripts/bench/episodes.py --proofs signalling relay --seeds 0 1 --jobs 2
    python scripts/bench/episodes.py --quick --output /tmp/try --docs /tmp/try        three iterations of each

Each run is a separate process (`ippo-train`) with one thread. Finished runs of the same configuration in the output
folder are not repeated; delete them after a change of the code. Writes `results.json` there, and the table of
`results.md` and one picture of curves per proof into the documents' folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

from algorithms import EVERY_RUN, QUICK, Job, run, with_common_arguments
from learning import Outcome, cell, write_between

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config

PARALLEL = ("task.protocol=parallel", "task.agents.second.template='{own}<'")
MARKERS = ("<!-- results -->", "<!-- /results -->")
SOLVED = ("solved", lambda: 1.0)
References = Sequence[tuple[str, Callable[[], float]]]  # reference scores, computed for the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One experiment: a task that an agent can learn, with one or several variants."""

    about: str
    common: tuple[str, ...]  # overrides of all variants
    ways: Mapping[str, tuple[str, ...]]  # variant -> its overrides in addition to `common`
    trained_on: bool = False  # report scores of training buffers, since held-out data has unseen cases
    references: References = field(default=())


def world(env_id: str, *overrides: str) -> tuple[str, ...]:
    """Return overrides of an environment in which a small model learns from rewards only."""
    return (
        f"task={'pettingzoo' if '/' in env_id else 'gymnasium'}",
        f"task.env_id={env_id}",
        *FROM_SCRATCH,
        *overrides,
    )


FROM_SCRATCH = (
    "algorithm=ppo",
    "algorithm.gamma=0.99",
    "algorithm.gae_lambda=0.95",
    "algorithm.ppo_epochs=4",
    "algorithm.mini_batch_size=64",
    # KL to the warm start, which plays at random: an entropy bonus would reward other spellings of one action.
    "algorithm.kl.loss.coef=0.03",
    "actor.hidden_size=32",
    "actor.num_layers=1",
    "actor.num_heads=2",
    "actor.learning_rate=3e-3",
    "actor.lr_schedule=constant",
    "critic.learning_rate=3e-3",
    # No mark after the observation: a small model uses the end of the prompt most, and a mark has no information.
    "task.agents.player.template='{observation}'",
    "task.agents.player.turn_template='{observation}'",
    "rollout.max_new_tokens=1",
    "rollout.buffer_size=256",
    "rollout.decode_batch_size=256",
    "evaluation.every=10",
)
SHARED = (  # the value loss trains the layers that the policy uses
    "critic=value_head",
    "algorithm.gae_lambda=1.0",
    "algorithm.ppo_epochs=2",
    "actor.hidden_size=64",
    "actor.learning_rate=2e-3",
    "critic.learning_rate=2e-3",
)
LONG = (  # returns of hundreds; an invalid action must cost more than a step
    "algorithm.mini_batch_size=32",
    "rollout.buffer_size=128",
    "reward.processor=[scale]",
    "task.invalid_reward=-2",
)

FROM_LITTLE = (
    "algorithm=ppo",
    "critic=value_head",
    "algorithm.ppo_epochs=4",
    "algorithm.kl.loss.coef=0.05",  # instead of an entropy bonus
    "actor.hidden_size=64",
    "actor.num_layers=1",
    "actor.learning_rate=2e-3",
    "actor.lr_schedule=constant",
    "actor.min_lr_ratio=1.0",
    "actor.warmup_iterations=2",
    "actor.warm_start_steps=60",
    "actor.warm_start_learning_rate=3e-3",
    "critic.learning_rate=2e-3",
    "rollout.buffer_size=256",
    "rollout.max_new_tokens=2",
    "evaluation.every=10",
)


def tabular(name: str, which: str, turns: int = 32) -> float:
    """Return the expected score of `random` or `optimal` play in an environment of `play.TABULAR`."""
    import gymnasium
    from play import TABULAR, tabular_returns

    env_id, arguments = TABULAR[name]
    env = gymnasium.make(env_id, **arguments)
    return getattr(tabular_returns(env, turns), which)


def blackjack(which: str) -> float:
    from play import blackjack_returns

    return getattr(blackjack_returns(), which)


def tictactoe(which: str) -> float:
    """Return wins minus losses against random play with alternating seats."""
    from play import tictactoe_odds

    odds = [tictactoe_odds(optimal=which == "optimal", first=first) for first in (True, False)]
    return sum(win - loss for win, _, loss in odds) / len(odds)


def relay_bound() -> float:
    """Return the best fraction of correct letters if the second agent does not observe the first one's answer."""
    from ippo_cli.tasks.small_tasks import best_parallel_score

    second = best_parallel_score(load_config(list(PROOFS["relay"].common)).task)  # type: ignore[arg-type]
    return (1 + second) / 2


def between(score: Callable[[str], float]) -> References:
    return (("random play", lambda: score("random")), ("optimal play", lambda: score("optimal")))


PROOFS: dict[str, Proof] = {
    "signalling": Proof(
        about="one agent observes one of 8 signals, the other acts on its message",
        common=("+experiment=signalling", "evaluation.every=10"),
        ways={"sequential": ()},
        references=(("guess without the signal", lambda: 1 / 8), SOLVED),
    ),
    "relay": Proof(
        about="the second agent needs the first one's answer (training buffers)",
        common=(
            "task=relay",
            "task.alphabet=abcdefgh",
            "task.train_size=48",
            "task.eval_size=16",
            # Letters unrelated to the prompt: the warm start teaches the format of answers, not the answers.
            "task.agents.first.warm_start_answer='{own}'",
            "task.agents.second.warm_start_answer='{hidden}'",
            *FROM_LITTLE,
            "actor.lr_schedule=cosine",
            "actor.min_lr_ratio=0.1",
            "rollout.max_new_tokens=1",
            "num_iterations=60",
        ),
        ways={"sequential": (), "parallel": PARALLEL},
        trained_on=True,
        references=(("optimum without the message", relay_bound), SOLVED),
    ),
    "ladder": Proof(
        about="five turns, each rewarded at once (training buffers)",
        common=(
            "task=ladder",
            "task.agents.climber.template='{observation}'",
            *FROM_LITTLE,
            "actor.num_layers=2",
            "num_iterations=50",
        ),
        ways={
            "credit by token": (),
            "credit by turn": ("algorithm=turn_ppo",),
            "credit auto": ("algorithm.credit=auto", "algorithm.turn_value=first"),
        },
        trained_on=True,
        references=(("random play", lambda: 1 / 8), SOLVED),
    ),
    "frozen_lake": Proof(
        about="FrozenLake-v1, 4 x 4, not slippery",
        common=world(
            "FrozenLake-v1",
            "+task.environment_args={is_slippery: false}",
            "algorithm.mini_batch_size=32",
            "rollout.buffer_size=128",
            "num_iterations=30",
        ),
        ways={"ppo": ()},
        references=between(lambda which: tabular("FrozenLake-v1, not slippery", which)),
    ),
    "frozen_lake_slippery": Proof(
        about="FrozenLake-v1, 4 x 4, slippery, 100 turns",
        common=world("FrozenLake-v1", "task.observation=numbers", "task.max_turns=100", "num_iterations=100"),
        ways={"ppo": ()},
        references=between(lambda which: tabular("FrozenLake-v1", which, turns=100)),
    ),
    "cliff_walking": Proof(
        about="CliffWalking-v1, 32 turns",
        common=world("CliffWalking-v1", *LONG, "reward.scale=0.02", "num_iterations=40"),
        ways={"ppo": ()},
        references=between(lambda which: tabular("CliffWalking-v1", which)),
    ),
    "taxi": Proof(
        about="Taxi-v4, 32 turns",
        common=world("Taxi-v4", *LONG, "reward.scale=0.05", "num_iterations=40"),
        ways={"ppo": ()},
        references=between(lambda which: tabular("Taxi-v4", which)),
    ),
    "blackjack": Proof(
        about="Blackjack-v1",
        common=world(
            "Blackjack-v1",
            *SHARED,
            "algorithm.kl.loss.coef=0.1",
            "task.invalid_reward=-1",
            "task.eval_size=1024",
            "rollout.buffer_size=512",
            "rollout.decode_batch_size=512",
            "num_iterations=100",
        ),
        ways={"ppo": ()},
        references=between(blackjack),
    ),
    "tictactoe": Proof(
        about="classic/tictactoe_v3 against a random player, alternating seats",
        common=world(
            "classic/tictactoe_v3",
            *SHARED,
            "actor.warm_start_steps=1500",  # random play is legal: it teaches which squares are free
            "actor.lr_schedule=cosine",
            "actor.min_lr_ratio=0.1",
            "algorithm.kl.loss.coef=0.02",
            "task.invalid_reward=-0.3",
            "num_iterations=120",
        ),
        ways={"ppo": ()},
        references=between(tictactoe),
    ),
}


def main() -> int:
    given = _arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    jobs = [
        _job(name, way, seed, given)
        for name in given.proofs for way in PROOFS[name].ways for seed in given.seeds
    ]  # fmt: skip
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(run, jobs))
    (given.output / "results.json").write_text(json.dumps([asdict(result) for result in outcomes], indent=1) + "\n")
    references = {name: {label: value() for label, value in PROOFS[name].references} for name in given.proofs}
    done = [result for result in outcomes if result.error is None]
    from curves import compare  # needs matplotlib; nothing else here does

    for name in given.proofs:
        compare(name, [one for one in done if one.task == name], references[name], given.docs / "pictures")
    page = given.docs / "results.md"
    before = page.read_text() if page.exists() else ""
    write_between(page, "\n".join(table(outcomes, references, before)), MARKERS)
    print(f"wrote {given.output / 'results.json'} and {given.docs / 'results.md'}")
    return len(done) < len(outcomes)


def table(outcomes: Sequence[Outcome], references: Mapping[str, Mapping[str, float]], page: str = "") -> list[str]:
    """Return one line per proof and variant: held-out scores before and after training, and reference scores.

    Lines of proofs without `references` (not selected) stay as they are on the page.
    """
    lines = [
        "Held-out score (sampled) before -> after training, mean over seeds (lowest to highest), mean wall time, "
        "one thread.",
        "",
        "| task | variant | score, time | references |",
        "|---|---|---|---|",
    ]
    for name in PROOFS:
        if name not in references:
            lines += [line for line in page.splitlines() if line.startswith(f"| [`{name}`]")]
            continue
        compared = references[name]
        beside = ", ".join(f"{label} {value:.2f}" for label, value in compared.items())
        for way in PROOFS[name].ways:
            results = [one for one in outcomes if (one.task, one.variant) == (name, way)]
            if PROOFS[name].trained_on:
                results = [_in_buffers(one) for one in results]
            link = f"[`{name}`](pictures/episodes-{name}.svg): {PROOFS[name].about}"
            lines.append(f"| {link} | {way} | {cell(results)} | {beside} |")
    return lines


def _in_buffers(result: Outcome) -> Outcome:
    """Return the result with scores of the first training buffer and of the last five."""
    scores = [point.score for point in result.points(held_out=False)]
    return replace(result, first=scores[0], last=fmean(scores[-5:])) if scores else result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proofs", nargs="+", choices=tuple(PROOFS), default=list(PROOFS))
    return with_common_arguments(parser, folder="episodes", page="results.md")


def _job(name: str, way: str, seed: int, given: argparse.Namespace) -> Job:
    """Return one training job. Raises `ConfigError` for an invalid job, before any job runs."""
    proof = PROOFS[name]
    short = (*QUICK[:-1], "task.eval_size=8") if given.quick and name != "ladder" else QUICK[:-1] if given.quick else ()
    folder = f"{name}-{way.replace(' ', '_')}-{seed}"
    overrides = [*proof.common, *proof.ways[way], *EVERY_RUN, *short, f"seed={seed}", f"name={folder}"]
    overrides.append(f"output_dir={given.output / 'runs'}")
    config = load_config(overrides)
    check_config(config, 1)
    return Job(task=name, variant=way, seed=seed, overrides=tuple(overrides), config=config)


if __name__ == "__main__":
    sys.exit(main())

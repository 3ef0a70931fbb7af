"""Opponent pool: agents also play with snapshots of earlier policies.

A snapshot is the weights of every trained policy after N iterations, in `partners/step_N/` of the run's folder.
The seed, the iteration and the available snapshots determine which snapshot plays and which agent learns per prompt.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.agents.team import Team
from ippo_cli.config.errors import ResumeError, convert_storage_errors
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import policy_by_agent, trained_agents_by_policy
from ippo_cli.engine import distributed
from ippo_cli.models.actor import Policy, load_actor_lm
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rollout.collect import OnEpisodes
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.rollout.noise import uniforms
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.runs.checkpoint_files import (
    FileManifest,
    file_sha256,
    fsync_folder,
    fsync_folders,
    list_files,
    read_method_states,
)
from ippo_cli.runs.folder import checkpoint_name, list_checkpoints
from ippo_cli.tasks.schedule import rank_range
from ippo_cli.training.methods.elo import GameResults, count_results, snapshot_name
from ippo_cli.training.methods.method import Method, Outcome, PlayBatch, Player, Prompts
from ippo_cli.types import Batch, Episode

PlayPoliciesFn = Callable[[Mapping[str, GenerationPolicy], Batch, list[int]], list[Episode]]
"""Plays the episodes of a batch with these policies; the list has the examples' places in the rank's whole batch."""


@dataclass
class PoolState:
    """The part of a pool that checkpoints store; the weights are in the run's folder."""

    snapshots: dict[int, FileManifest] = field(default_factory=dict)  # files by iteration, oldest first
    games: GameResults = field(default_factory=GameResults)

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON-serialisable values, which later changes leave alone."""
        return {"snapshots": list(self.snapshots.items()), "games": copy.deepcopy(self.games.counts)}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        stored = copy.deepcopy(stored)
        self.snapshots = {int(iteration): files for iteration, files in stored["snapshots"]}
        self.games = GameResults(stored["games"])


def evict_snapshots(iterations: Sequence[int], size: int) -> list[int]:
    """At most `size` of the iterations: repeatedly removes the one with the smallest gap between its neighbours.

    Keeps the oldest and the newest, with nearly even spacing between them; size 1 keeps the newest.
    """
    kept = sorted(iterations)
    while len(kept) > size:
        if size == 1:
            return kept[-1:]
        gaps = [kept[place + 1] - kept[place - 1] for place in range(1, len(kept) - 1)]
        del kept[1 + gaps.index(min(gaps))]
    return kept


def sample_opponent(seed: int, iteration: int, snapshots: Sequence[int]) -> int:
    """The snapshot that plays in an iteration, sampled uniformly."""
    number = float(uniforms(seed, "partners/snapshot", torch.tensor([iteration]), 1))
    return snapshots[int(number * len(snapshots))]


def assign_learner(seed: int, iteration: int, prompts: int, share: float, agents: Sequence[str]) -> list[str | None]:
    """For each prompt, the one agent that uses its current weights; None if all agents do.

    The prompts are sampled. Agents alternate over them, and each iteration starts with the next agent.
    """
    numbers = uniforms(seed, "partners/prompts", torch.tensor([iteration]), prompts)[0]
    seats: list[str | None] = [None] * prompts
    for turn, prompt in enumerate(numbers.argsort(stable=True)[: round(share * prompts)].tolist()):
        seats[prompt] = agents[(iteration + turn) % len(agents)]
    return seats


class OpponentPool(Method):
    """The opponent pool of one run (`team.opponent_pool`)."""

    name = "opponent_pool"

    def __init__(self, config: Config, folder: Path, device: torch.device) -> None:
        self._config, self._folder, self._device = config, folder / "partners", device
        self._settings, self._state = config.team.opponent_pool, PoolState()
        self._agents_by_policy, self.policy_of_agent = trained_agents_by_policy(config), policy_by_agent(config)
        self._agents = [name for name, agent in config.task.agents.items() if not agent.frozen]
        self._loaded_snapshot: tuple[int, dict[str, FrozenAgent]] | None = None

    @property
    def snapshots(self) -> list[int]:
        """The iterations of the pool's snapshots, oldest first."""
        return list(self._state.snapshots)

    def state_dict(self) -> dict[str, Any]:
        return self._state.state_dict()

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        self._state.load_state_dict(stored)

    def check_resume(self) -> None:
        """Check the snapshots' hashes. Raises `ResumeError` if a file is missing or changed. Collective."""
        distributed.run_on_main(self._verify_snapshots)

    def _verify_snapshots(self) -> None:
        for iteration, files in self._state.snapshots.items():
            for name, entry in files.items():
                file = self._snapshot_folder(iteration) / name
                if not _is_intact(file, entry["sha256"]):
                    raise ResumeError(
                        f"{file} is missing or has changed, so the run would continue with different opponents; "
                        "restore the file, resume without opponents (team.opponent_pool.every=0), or start a new run"
                    )

    def begin(self, team: Team, iteration: int, clock: Stopwatch) -> None:
        with clock("opponents"):
            self._add_due_snapshot(team, iteration)

    def _add_due_snapshot(self, team: Team, iteration: int) -> None:
        """Take a snapshot if one is due before this iteration (counted from 0), or if the pool is empty.

        The pool is empty after a resume that enables it. Collective.
        """
        if iteration % self._settings.every and self._state.snapshots:
            return
        assert self._settings.size is not None
        self._state.snapshots[iteration] = self._write_snapshot(team, iteration)
        kept = evict_snapshots(list(self._state.snapshots), self._settings.size)
        self._state.snapshots = {step: self._state.snapshots[step] for step in kept}
        self._loaded_snapshot = (
            None
            if self._loaded_snapshot is not None and self._loaded_snapshot[0] == iteration
            else self._loaded_snapshot
        )
        if iteration:  # games of the current weights since the last snapshot become games of this snapshot
            self._state.games.rename_players(
                {holder: snapshot_name(holder, iteration) for holder in self._agents_by_policy}
            )

    def _write_snapshot(self, team: Team, iteration: int) -> FileManifest:
        """Write the weights of every trained policy; the folder gets its final name when it is complete."""
        final = self._snapshot_folder(iteration)
        partial = final.with_name(f".{final.name}.partial")
        distributed.run_on_main(lambda: shutil.rmtree(partial, ignore_errors=True))
        own: list[Path] = []  # on the first rank of each policy
        for learner in team.learners:
            if learner.is_policy:
                weights = None
                if learner.group.is_member:
                    with learner.group.activate():
                        weights = learner.engine.full_state_dict()
                with distributed.synchronize_errors(), convert_storage_errors(str(self._folder)):
                    own += learner.save_pretrained(
                        partial / learner.name, weights, team.tokenizer(learner), merged=False
                    )
        written = [file for files in distributed.gather_objects(own) for file in files]

        def commit_snapshot() -> FileManifest:
            with convert_storage_errors(str(self._folder)):
                listed = list_files(partial, written)
                fsync_folders(partial, listed)
                shutil.rmtree(final, ignore_errors=True)  # of an earlier attempt at the same iteration
                partial.rename(final)
                fsync_folder(final.parent)
            return listed

        return distributed.run_on_main(commit_snapshot)

    def clean_up(self) -> None:
        """Remove snapshots that are in neither the pool nor any checkpoint. Collective.

        An abandoned iteration restores the previous pool, so this belongs after a complete one.
        """
        distributed.run_on_main(self._remove_unused_snapshots)

    def _remove_unused_snapshots(self) -> None:
        kept = {checkpoint_name(iteration) for iteration in self._state.snapshots}
        for checkpoint in list_checkpoints(self._folder.parent / "checkpoints"):
            try:
                stored = read_method_states(checkpoint)[self.name]["snapshots"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            kept |= {checkpoint_name(iteration) for iteration, _ in stored}
        for folder in self._folder.glob("step_*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def wrap_play(self, player: Player, prompts: Prompts, draws: SamplingStream, play: PlayBatch) -> PlayBatch:
        """Episodes with opponents are played in separate batches."""

        def play_parts(batch: Batch, on_episodes: OnEpisodes | None) -> list[Episode]:
            def play_with(speakers: Mapping[str, GenerationPolicy], part: Batch, places: list[int]) -> list[Episode]:
                def map_places(part_places: list[int], episodes: list[Episode]) -> None:
                    assert on_episodes is not None
                    on_episodes([places[place] for place in part_places], episodes)

                callback = None if on_episodes is None else map_places
                generator = player.build_generator(speakers)
                try:
                    return player.play_episodes(part, draws, callback, generator=generator)
                finally:
                    generator.close()

            return self._play_seats(player.team, batch, prompts.iteration, play_with)

        return play_parts

    def _play_seats(self, team: Team, batch: Batch, iteration: int, play: PlayPoliciesFn) -> list[Episode]:
        """Play one episode per example of this rank, some of them with opponents. Collective."""
        generations = self._config.rollout.num_generations
        assert self._settings.share is not None
        seats = assign_learner(
            self._config.seed,
            iteration,
            self._config.rollout.buffer_size // generations,
            self._settings.share,
            self._agents,
        )
        rows = rank_range(self._config.rollout.buffer_size, distributed.rank(), distributed.world_size())
        own = [seats[row // generations] for row in rows]
        found: dict[int, Episode] = {}
        for seat in (None, *self._agents):
            if seat not in seats:
                continue
            places = [place for place, learner in enumerate(own) if learner == seat]
            part = Batch(examples=[batch.examples[place] for place in places], index=batch.index[places])
            others = frozenset(name for name in self._agents if seat is not None and name != seat)
            speakers = team.generation_policies
            if others:
                speakers = {
                    name: self._load_opponent(team, iteration, name) if name in others else speakers[name]
                    for name in speakers
                }
            for place, episode in zip(places, play(speakers, part, places), strict=True):
                found[place] = replace(episode, partners=others)
        return [found[place] for place in range(len(own))]

    def _load_opponent(self, team: Team, iteration: int, agent: str) -> FrozenAgent:
        drawn = sample_opponent(self._config.seed, iteration, list(self._state.snapshots))
        if self._loaded_snapshot is None or self._loaded_snapshot[0] != drawn:
            self._loaded_snapshot = None  # free the memory before loading
            self._loaded_snapshot = (
                drawn,
                {
                    name: FrozenAgent(
                        name=name,
                        tokenizer=team[names[0]].tokenizer,
                        held_policy=self._load_policy(drawn, name) if team[names[0]].group.is_member else None,
                        group=team[names[0]].group,
                        remote_config=team[names[0]].model_config,
                    )
                    for name, names in self._agents_by_policy.items()
                },
            )
        return replace(self._loaded_snapshot[1][self.policy_of_agent[agent]], name=agent)

    def _load_policy(self, iteration: int, policy: str) -> Policy:
        actor = self._config.task.agents[self._agents_by_policy[policy][0]].actor
        lm = load_actor_lm(actor, str(self._snapshot_folder(iteration) / policy / "actor"), None)
        return Policy(lm).to(self._device).requires_grad_(False).eval()

    def _snapshot_folder(self, iteration: int) -> Path:
        return self._folder / checkpoint_name(iteration)

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        """Record an iteration's games; returns its metrics. Collective."""
        episodes, iteration = outcome.experience.episodes, outcome.buffer.prompts.iteration
        snapshots, drawn = (
            self._state.snapshots,
            sample_opponent(self._config.seed, iteration, list(self._state.snapshots)),
        )
        counts = torch.tensor([sum(bool(episode.partners) for episode in episodes), len(episodes)])
        opponent_episodes, total = distributed.all_sum(counts).tolist()
        row = {"team/opponents/iteration": float(drawn), "team/opponents/fraction": opponent_episodes / total}
        row["team/opponents/size"] = float(len(snapshots))
        if not self._settings.elo:
            return row
        first, second = self._agents
        for partners in (frozenset(), frozenset({second}), frozenset({first})):
            names = [
                snapshot_name(self.policy_of_agent[name], drawn) if name in partners else self.policy_of_agent[name]
                for name in (first, second)
            ]
            games = [episode for episode in episodes if episode.partners == partners]
            self._state.games.add_results(names[0], names[1], count_results(games, first, second))
        ratings = self.ratings()
        return row | {f"team/elo/{holder}": ratings[holder] for holder in self._agents_by_policy}

    def ratings(self) -> dict[str, float]:
        """Elo ratings of the policies and all snapshots with games; NaN without games, empty if Elo is off."""
        if not self._settings.elo:
            return {}
        return self._state.games.ratings(
            [snapshot_name(holder, 0) for holder in self._agents_by_policy], [*self._agents_by_policy]
        )

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        return {"elo.json": self._state.games.rating_rows(self.ratings())} if self._settings.elo else {}


def _is_intact(file: Path, digest: str) -> bool:
    try:
        return file_sha256(file) == digest
    except OSError:  # missing or unreadable
        return False


def sort_ratings(ratings: Mapping[str, float]) -> list[tuple[str, float]]:
    """The ratings that are not NaN, highest first."""
    return sorted(((n, r) for n, r in ratings.items() if not math.isnan(r)), key=lambda entry: -entry[1])


class OpponentPlan(MethodPlan):
    """A snapshot of each policy in memory, and all of them on disk, including the one being written."""

    @property
    def copies(self) -> tuple[str, ...]:
        return ("partner",) if self.config.team.opponent_pool.every else ()

    @property
    def num_stored_policies(self) -> int:
        return self.config.team.opponent_pool.max_on_disk

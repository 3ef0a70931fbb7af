"""Sampled tokens show the numbers that the update used, and collecting them changes no metric."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from small import open_trainer, rows, train_on_two_ranks

from ippo_cli.training.training_samples import training_samples

SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
LADDER = ("task=ladder", "task.train_size=16", "task.eval_size=8")
KINDS: dict[str, tuple[str, ...]] = {
    "separate": (),
    "no critic": ("algorithm=grpo", "rollout.num_generations=4", "algorithm.mini_batch_size=8"),
    "value head": ("critic=value_head", "algorithm=ppo", "algorithm.mini_batch_size=8", "algorithm.kl.loss.coef=0.1"),
    "shared policy": ("team=shared_policy", "rollout.recompute_logprobs=true"),
    "adapters": ("actor=tiny_lora", "actor.rank=4", "critic=adapter", "critic.rank=4", "team=shared_base"),
    "centralized": ("algorithm=mappo", "critic.shared=true", "algorithm.mini_batch_size=8"),
    "frozen": ("task.agents.high.frozen=true", "rollout.top_p=0.9"),
    "turns": (*LADDER,),
    "detached turns": (*LADDER, "rollout.context=last_only", "algorithm=ppo", "algorithm.mini_batch_size=8"),
    "partners": ("team.opponent_pool.every=1", "team.opponent_pool.size=2", "team.opponent_pool.share=0.5"),
    "credit": ("reward.credit_assignment=difference", "tracker.sample_tokens=3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_show_the_numbers_of_the_update(kind: str, tmp_path: Path) -> None:
    more = [*SHORT, *KINDS[kind], "tracker.samples=12"]
    with open_trainer(tmp_path, *more) as trainer:
        trainer.step()
        experience, targets = trainer.step()
        team, limit = trainer.state.team, trainer.config.tracker.sample_tokens
        samples = training_samples(team, experience, targets, trainer.config)
        new = {name: team[name].recompute_logprobs(experience.rollouts[name]).logprobs for name in team}
    assert len(samples) == 12
    assert json.loads(json.dumps(samples, allow_nan=False)) == samples
    generations = trainer.config.rollout.num_generations
    assert [row["group"] for row in samples] == [row["index"] // generations for row in samples]
    assert ("credit" in samples[0]) == (kind == "credit")
    trained, ratios = set(), []
    for row, (sample, episode) in enumerate(zip(samples, experience.episodes, strict=False)):
        for name in team.names:
            turns = [turn["tokens"] for turn in sample["turns"] if turn["agent"] == name]
            for number, (tokens, turn) in enumerate(zip(turns, episode.turns_of_agent(name), strict=True)):
                length = min(len(turn.completion.ids), limit)
                assert {len(values) for values in tokens.values()} == {length}
                assert turn.completion.text.startswith(re.sub("<(eos|pad|unk)>", "", "".join(tokens["text"])))
                if name not in team or name in episode.partners:
                    assert set(tokens) - {"behavior_logprob"} == {"text", "logprob", "trained"}
                    assert set(tokens["trained"]) <= {0}
                    continue
                rollout, target, agent = experience.rollouts[name], targets[name], team[name]
                place = (rollout.turn[row] == number).nonzero()[:limit, 0]
                expected = {
                    "logprob": rollout.logprobs,
                    "ratio": (new[name] - rollout.logprobs).exp(),
                    "return": target.returns,
                    "advantage": target.advantages,
                    "reward": target.rewards,
                }
                expected |= {"value": target.values} if agent.has_values else {}
                expected |= {"ref_logprob": target.ref_logprobs} if agent.reference is not None else {}
                for key, values in expected.items():
                    assert tokens[key] == pytest.approx(values[row, place].tolist(), rel=1e-3, abs=1e-6), key
                assert set(tokens) - {"behavior_logprob", "trained"} == {"text", "entropy", *expected}
                assert ("behavior_logprob" in tokens) <= (kind in ("frozen", "shared policy"))
                assert all(0 < entropy < 10 for entropy in tokens["entropy"])
                trained.add(name)
                ratios += tokens["ratio"]
    assert trained == set(team)
    assert max(abs(ratio - 1) for ratio in ratios) > 1e-3, "ratios are those of the updated policy"
    assert torch.tensor(ratios).isfinite().all()


@pytest.mark.parametrize(("every", "expected"), [(20, [1, 3]), (2, [1, 2, 3]), (0, [])])
def test_first_and_last_iteration_have_samples(every: int, expected: list[int], tmp_path: Path) -> None:
    keys = (*SHORT, "num_iterations=3", "tracker.sample_tokens=0", f"tracker.samples_every={every}")
    with open_trainer(tmp_path, *keys) as trainer:
        experience, targets = trainer.step()
        for iteration in (1, 2, 3):
            trainer.state.progress.iteration = iteration
            trainer._show_training_samples(experience, targets)
        files = sorted((trainer.run.folder / "samples").iterdir())
    assert [int(file.stem.removeprefix("train_")) for file in files] == expected


def metrics_of_two_iterations(root: Path, sample_tokens: int) -> list[dict[str, float]]:
    """Metrics of two iterations; the second one follows samples of the first."""
    metrics = []
    with open_trainer(root, *SHORT, "tracker.samples_every=1", f"tracker.sample_tokens={sample_tokens}") as trainer:
        for _ in range(2):
            trainer._show_training_samples(*trainer.step())
            row = trainer.state.progress.row
            assert row is not None
            metrics.append({key: value for key, value in row.items() if not key.startswith(("time/", "perf/"))})
        files = sorted((trainer.run.folder / "samples").iterdir())
    assert [file.name for file in files] == ["train_00000001.jsonl", "train_00000002.jsonl"]
    assert ('"tokens"' in files[0].read_text()) == (sample_tokens > 0)
    return metrics


@pytest.mark.core
@pytest.mark.slow
def test_metrics_do_not_depend_on_sampled_tokens(tmp_path: Path) -> None:
    assert repr(metrics_of_two_iterations(tmp_path, 256)) == repr(metrics_of_two_iterations(tmp_path, 0))


@pytest.mark.slow
def test_two_ranks_under_zero3_write_the_same_metrics_with_tokens(tmp_path: Path) -> None:
    # Ranks have prompts and responses of different lengths; one forward batch holds one row.
    keys = [*SHORT, "deepspeed=zero3", "tracker.samples_every=1", "deepspeed.forward_batch_tokens=16"]
    texts = []
    for tokens in (0, 256):
        folder = train_on_two_ranks(tmp_path / str(tokens), *keys, f"tracker.sample_tokens={tokens}")
        texts.append("\n".join(json.dumps(row) for row in rows(folder)))
        samples = (folder / "samples" / "train_00000002.jsonl").read_text()
        assert ('"tokens"' in samples) == (tokens > 0)
    assert texts[0] == texts[1]

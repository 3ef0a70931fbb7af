"""Updates: micro-batches, first ratios, skipped steps, and critic warmup."""

from __future__ import annotations

import pytest
import torch
from host_reads import HostReads
from small import experience_of, open_trainer

from ippo_cli.agents.learner import Learner
from ippo_cli.models import prefixes
from ippo_cli.models.layout import build_sequences
from ippo_cli.training.minibatches import iterate_steps
from ippo_cli.training.team_update import PlacedUpdates, update_team
from ippo_cli.training.update import update_learner
from ippo_cli.types import StepContext

CONTEXT = StepContext(seed=3, iteration=1, num_iterations=4)
RAGGED = ["rollout.max_new_tokens=6", "rollout.temperature=2.0", "evaluation.every=0"]


def one_iteration(root, *overrides):
    with open_trainer(root, *RAGGED, *overrides) as trainer:
        trainer.step()
        row = trainer.state.progress.row
        weights = {
            f"{learner.name}/{learner.stage}/{key}": value.clone()
            for learner in trainer.state.team.learners
            for key, value in learner.engine.module.state_dict().items()
        }
    return {key: value for key, value in row.items() if not key.startswith(("time/", "perf/"))}, weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "critic"),
    [
        ("token-mean", "separate"),
        ("token-mean", "value_head"),
        ("seq-mean-token-sum", "value_head"),
        ("seq-mean-token-mean", "separate"),
        ("seq-mean-token-sum-norm", "value_head"),
    ],
)
def test_micro_batches_and_padding_do_not_change_gradients(tmp_path, mode, critic):
    keys = [f"algorithm.loss_aggregation={mode}", f"critic={critic}", "algorithm.entropy_coef=0.01"]
    whole, _ = one_iteration(tmp_path, *keys)
    split, _ = one_iteration(tmp_path, *keys, "deepspeed.micro_batch_tokens=24", "deepspeed.logit_chunk_tokens=5")
    padded, _ = one_iteration(tmp_path, *keys, "deepspeed.micro_batch_tokens=40", "deepspeed.pack_sequences=false")
    assert whole.keys() == split.keys() == padded.keys()
    norms = [key for key in whole if key.endswith("grad_norm")]
    assert norms
    assert all(whole[key] > 1e-4 for key in norms)
    for key, value in whole.items():
        assert split[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
        assert padded[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


@pytest.mark.slow
def test_ratio_is_one_before_first_step(tmp_path):
    row, _ = one_iteration(
        tmp_path,
        "algorithm=ppo",
        "algorithm.mini_batch_size=8",
        "rollout.temperature=0.7",
        "rollout.top_p=0.9",
        "actor.learning_rate=0.01",
    )
    for agent in ("low", "high"):
        assert row[f"{agent}/policy/ratio_first_step_deviation"] < 1e-4
        assert row[f"{agent}/policy/ratio_max_deviation"] > 1e-3  # later steps of the epoch changed the policy
        assert row[f"{agent}/rollout/logprob_diff/filter"] > 0.0


@pytest.mark.slow
def test_only_critic_changes_in_warmup(tmp_path):
    with open_trainer(tmp_path, *RAGGED, "algorithm.critic_warmup=1") as trainer:
        agent = trainer.state.team["low"]
        before = {name: value.clone() for name, value in agent.policy.engine.module.state_dict().items()}
        trainer.step()
        after = agent.policy.engine.module.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert trainer.state.progress.row["low/value/steps"] == 8
        assert "low/policy/steps" not in trainer.state.progress.row
        trainer.step()
        assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "dtype"),
    [("zero0", "fp32"), ("zero1", "fp32"), ("zero2", "fp32"), ("zero3", "fp32"), ("zero1", "bf16"), ("zero3", "bf16")],
)
def test_warmup_trains_value_head_only(tmp_path, stage, dtype):
    keys = ("critic=value_head", "algorithm.mini_batch_size=16", "algorithm.ppo_epochs=1", "algorithm.critic_warmup=2")
    keys += (
        "actor.learning_rate=0.01",
        "actor.weight_decay=0.1",
        "actor.warmup_iterations=0",
        f"actor.dtype={dtype}",
        f"deepspeed={stage}",
    )
    with open_trainer(tmp_path, *RAGGED, *keys) as trainer:

        def weights():
            return {name: value.float() for name, value in engine.full_state_dict().items()}

        engine = trainer.state.team["low"].policy.engine
        before = weights()
        for _ in range(2):
            trainer.step()
        after = weights()
        moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
        assert moved == {"value_head.out.weight", "value_head.out.bias"}
        assert trainer.state.progress.row["low/joint/steps"] >= 1
        trainer.step()
        change = {name: (value - after[name]).abs().max().item() for name, value in weights().items()}
        largest = max(value for name, value in change.items() if not name.startswith("value_head"))
        # Adam's first step is the learning rate for any gradient; decay adds a tenth of it times the weight.
        rate = trainer.state.progress.row["low/joint/learning_rate"]
        assert largest == pytest.approx(rate, rel=0.02 if dtype == "fp32" else 0.3)


@pytest.mark.slow
def test_target_kl_stops_epochs_early(tmp_path):
    row, _ = one_iteration(
        tmp_path,
        "algorithm=ppo",
        "algorithm.mini_batch_size=4",
        "algorithm.ppo_epochs=4",
        "actor.learning_rate=0.05",
        "algorithm.target_kl=0.0001",
    )
    assert row["low/policy/stopped_early"] == 1
    assert 2 <= row["low/policy/steps"] < 16
    assert row["low/value/steps"] == 16


def test_ratio_is_of_the_first_epoch_and_grad_norm_of_applied_steps(tmp_path):
    keys = ("algorithm=ppo", "task=sorting_solo", "algorithm.mini_batch_size=16", "algorithm.ppo_epochs=3")
    with open_trainer(tmp_path, *RAGGED, *keys) as trainer:
        team, experience = trainer.state.team, experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        learner = team["solo"].policy
        stats = update_learner(learner, iterate_steps(learner, experience.rollouts, targets, CONTEXT), CONTEXT)
        assert stats["solo/policy/steps"] == 3
        assert stats["solo/policy/ratio"] == pytest.approx(1.0, abs=1e-4)
        learner.mini_batch_size, learner.ppo_epochs = 8, 1
        targets["solo"].advantages[0] = float("nan")
        stats = update_learner(learner, iterate_steps(learner, experience.rollouts, targets, CONTEXT), CONTEXT)
        assert (stats["solo/policy/steps"], stats["solo/policy/skipped_steps"]) == (2, 1)
        assert stats["solo/policy/grad_norm"] == learner.grad_norms.recent[-1] > 0


@pytest.mark.slow
def test_critic_has_its_own_mini_batches_and_epochs(tmp_path):
    row, _ = one_iteration(tmp_path, "critic.mini_batch_size=4", "critic.ppo_epochs=3")
    assert row["low/policy/steps"] == 1
    assert row["low/value/steps"] == 12


@pytest.mark.slow
def test_non_finite_gradients_are_skipped_and_end_the_run(tmp_path):
    from ippo_cli.config.errors import NonFiniteError

    with open_trainer(tmp_path, *RAGGED, "critic.mini_batch_size=16") as trainer:  # one step of it per iteration
        agent = trainer.state.team["low"]
        head = agent.critic.engine.module.value_head.out.weight
        with torch.no_grad():
            head.fill_(float("nan"))
        policy = {name: value.clone() for name, value in agent.policy.engine.module.state_dict().items()}
        trainer.step()
        row = trainer.state.progress.row
        assert row["low/value/skipped_steps"] == 1
        assert row["low/policy/skipped_steps"] == 1
        assert row["high/value/skipped_steps"] == 0
        after = agent.policy.engine.module.state_dict()
        assert all(torch.equal(policy[name], after[name]) for name in policy)
        for _ in range(1, 4):
            trainer.step()
        with pytest.raises(NonFiniteError, match="low: 5 consecutive optimizer steps"):
            trainer.step()


@pytest.mark.slow
def test_reward_streaming_and_scoring_batches_change_nothing(tmp_path):
    common = ("algorithm=ppo", "algorithm.mini_batch_size=16", "algorithm.kl.reward.coef=0.1")
    plain, *others = (
        one_iteration(tmp_path, *common, *keys)[0]
        for keys in ((), ("reward.reward_batch_rows=3",), ("deepspeed.forward_batch_tokens=20",))
    )
    for other in others:
        assert other.keys() == plain.keys()
        for name, value in plain.items():
            assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head", "centralized"])
def test_shared_prefixes_change_only_rounding(tmp_path, monkeypatch, critic):
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 2)
    build, tokens = build_sequences, [0]

    def built(*given, **options):
        made = build(*given, **options)
        tokens[-1] += made.input_ids.numel()
        return made

    monkeypatch.setattr("ippo_cli.agents.learner.build_sequences", built)
    common = ("algorithm=mappo" if critic == "centralized" else "algorithm=ppo", f"critic={critic}")
    common += ("rollout.num_generations=4", "algorithm.mini_batch_size=16", "algorithm.kl.reward.coef=0.1")
    (shared, weights), *others = (
        (one_iteration(tmp_path, *common, *keys), tokens.append(0))[0]
        for keys in ((), ("deepspeed.micro_batch_tokens=60",), ("deepspeed.share_prefixes=false",))
    )
    assert tokens[0] < 0.9 * tokens[2]
    for row, other in others:
        for name, value in shared.items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
        for name, value in weights.items():
            torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_recomputed_logprobs_are_the_training_models(tmp_path):
    """The ratio is exactly 1 before the first step; the sampler's own log-probabilities differ slightly."""
    row, _ = one_iteration(
        tmp_path,
        "algorithm=ppo",
        "algorithm.mini_batch_size=8",
        "rollout.recompute_logprobs=true",
        "algorithm.behavior_correction.level=token",
    )
    for agent in ("low", "high"):
        assert row[f"{agent}/policy/ratio_first_step_deviation"] == 0.0
        assert 0.0 < row[f"{agent}/rollout/prob_diff/sampler"] <= row[f"{agent}/rollout/prob_diff/sampler_max"] < 1e-5
        assert row[f"{agent}/rollout/ess_ratio"] == pytest.approx(1.0, abs=1e-4)


def test_host_reads_do_not_grow_with_micro_batches(tmp_path, monkeypatch):
    """Micro-batches are built on the host; what follows on the device is never read."""
    build = Learner.iterate_micro_batches

    def reads(rows, *keys):
        built = []

        def iterate_micro_batches(*given):
            micro_batches = build(*given)
            while True:
                before = found.count
                micro_batch = next(micro_batches, None)
                built.append(found.count - before)
                if micro_batch is None:
                    return
                yield micro_batch

        monkeypatch.setattr(Learner, "iterate_micro_batches", iterate_micro_batches)
        keys = [f"rollout.buffer_size={rows}", f"algorithm.mini_batch_size={rows // 2}", "evaluation.every=0", *keys]
        with open_trainer(tmp_path, "algorithm=ppo", "task.train_size=128", *keys) as trainer:
            team, experience = trainer.state.team, experience_of(trainer)
            targets, _ = trainer.state.algorithm.compute_targets(team, experience)
            with HostReads() as found:
                update_team(PlacedUpdates(team, experience, CONTEXT), targets, trainer.config)
        return found.count - sum(built), len(built)

    few, steps = reads(16)
    assert reads(64) == (few, steps)
    assert reads(16, "actor.num_layers=3") == (few, steps)
    many, micro_batches = reads(64, "deepspeed.micro_batch_tokens=64")
    assert micro_batches > 3 * steps
    assert many == few

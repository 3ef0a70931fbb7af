"""Evaluation of critics on held-out rows, with policies that do not change: `mode=critic`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ippo_cli.config.critic_fitting import CRITIC_METRIC
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.reporting.iteration_metrics import explained_variance
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.runs.random_streams import seeded_generators
from ippo_cli.tasks.eval_rows import select_eval_rows
from ippo_cli.tasks.task import Task
from ippo_cli.training.checkpoint import TrainingState
from ippo_cli.training.evaluate import Evaluation, evaluation_batch
from ippo_cli.training.experience import ExperienceCollector, HeldOutEpisodes
from ippo_cli.training.methods.reward_to_go import use_reward_to_go


@dataclass(kw_only=True)
class CriticEvaluator:
    """Measures how well values predict the returns of held-out episodes, which are sampled once."""

    config: Config
    task: Task
    collector: ExperienceCollector
    held_out: HeldOutEpisodes | None = None

    def evaluate(self, state: TrainingState) -> Evaluation:
        """Each agent's explained variance, root mean squared error and score. Collective.

        The values are compared with sums of later rewards, which hold no values: with `truncation=bootstrap` truncated
        rows are left out, since their returns contain one. `CRITIC_METRIC` is the mean over the agents with values and
        with returns that differ; NaN without any.
        """
        settings = self.config.evaluation
        if self.held_out is None:
            rows = select_eval_rows(len(self.task.held_out), settings)
            batch = evaluation_batch(self.task.held_out, rows, settings.num_generations)
            draws = SamplingStream(seed=settings.seed, purpose="evaluation")
            with seeded_generators(settings.seed):  # a resumed run collects again, and continues with its own numbers
                self.held_out = self.collector.collect_held_out(batch, draws)
        experience = self.collector.score_held_out(self.held_out, state.moments)
        algorithm = use_reward_to_go(state.algorithm, self.config.algorithm.credit).without_bootstrap()
        targets, _ = algorithm.compute_targets(state.team, experience)
        metrics: dict[str, float] = {}
        for name, agent in state.team.items():
            scores, own = experience.scores[name], targets[name]
            score, _ = distributed.masked_moments(scores.raw.sum(dim=1), scores.valid)
            metrics[f"sampled/{name}/score"] = float(score)
            if agent.has_values:
                square, _ = distributed.masked_moments((own.returns - own.values).square(), own.value_mask)
                metrics[f"sampled/{name}/value_error"] = float(square) ** 0.5
                metrics[f"sampled/{name}/explained_variance"] = explained_variance(own, self.config.algorithm.gamma)
        explained = torch.tensor([value for key, value in metrics.items() if key.endswith("/explained_variance")])
        metrics[CRITIC_METRIC] = float(explained.nanmean()) if len(explained) else math.nan
        return Evaluation(metrics=metrics, samples=[], episode_values={}, generations={}, failed_counts={})

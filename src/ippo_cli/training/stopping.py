"""Rules that end a run before its last planned iteration; it is saved, and a resume with other values continues it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.forecast.forecast import RISK
from ippo_cli.reporting.run_log import RunLog


def find_stop_reason(config: Config, run: RunLog, rows: Sequence[Mapping[str, float]], iteration: int) -> str | None:
    """Why a run ends after this iteration; None if it does not. `rows`: its last rows, on rank 0. Collective."""
    reason = _patience_reason(config, run, iteration)
    if reason is None and config.evaluation.stop_at_risk is not None:
        reason = distributed.run_on_main(lambda: _risk_reason(config, rows))
    return reason


def _patience_reason(config: Config, run: RunLog, iteration: int) -> str | None:
    """`evaluation.patience` evaluations in a row up to this iteration have not been the best so far."""
    patience, every, best = config.evaluation.patience, config.evaluation.every, run.best_evaluation
    if patience is None or not every:
        return None
    if iteration // every - (0 if best is None else best["iteration"]) // every < patience:
        return None
    why = "no evaluation has a score"
    if best is not None:
        why = f"no better score than {best['score']:.3f} after iteration {best['iteration']}"
    return f"ended by evaluation.patience={patience}: {why}; a higher value continues the run"


def _risk_reason(config: Config, rows: Sequence[Mapping[str, float]]) -> str | None:
    """The newest row's risk is at least `evaluation.stop_at_risk`."""
    limit, risk = config.evaluation.stop_at_risk, rows[-1].get(RISK) if rows else None
    if limit is None or risk is None or not risk >= limit:
        return None
    return (
        f"ended by evaluation.stop_at_risk={limit:g}: {RISK} is {risk:.2f}; a higher value or null continues the run, "
        "with a lower actor.learning_rate for example"
    )

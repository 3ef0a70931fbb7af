"""Rules of methods of training: each has a file, and one line here."""

from __future__ import annotations

from ippo_cli.config.curriculum import check_curriculum
from ippo_cli.config.dynamic_sampling import check_refill
from ippo_cli.config.needs import check_needs
from ippo_cli.config.role_gradients import check_role_gradients
from ippo_cli.config.shared_rollouts import check_shared_rollouts
from ippo_cli.config.vllm import check_ahead

METHOD_RULES = (
    check_ahead,
    check_refill,
    check_curriculum,
    check_shared_rollouts,
    check_role_gradients,
    check_needs,
)
"""Each rule yields all errors, or raises the first; evaluations skip them."""

"""Where each method says what it adds to a plan. Imported when a plan is made: they need torch."""

from __future__ import annotations

METHODS = "ippo_cli.training.methods"
METHOD_PLANS = (
    f"{METHODS}.refill:RefillPlan",
    f"{METHODS}.credit:CreditPlan",
    f"{METHODS}.shared_rows:SharedRowsPlan",
    f"{METHODS}.opponents:OpponentPlan",
    f"{METHODS}.role_gradients:RoleGradientsPlan",
)
"""In the order of their lines."""

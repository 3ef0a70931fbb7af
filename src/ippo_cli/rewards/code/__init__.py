"""Rewards that run generated programs: a sandbox, and a judge outside of it."""

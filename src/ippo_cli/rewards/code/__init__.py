"""Rewards that run generated programs in a sandbox and evaluate their tests outside of it."""

"""Rewards: the contract of a reward function, and one module per kind of reward."""

"""Rewards: the contract of a reward function, and one file per reward."""

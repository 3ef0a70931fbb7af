"""Environments of Gymnasium, PettingZoo, reasoning_gym and of users, as text."""

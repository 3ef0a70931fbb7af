"""Text environments of Gymnasium, PettingZoo, reasoning_gym and users."""

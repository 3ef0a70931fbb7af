"""Text environments of Gymnasium, PettingZoo, reasoning_gym, OpenEnv servers and users."""

"""Text environments of Gymnasium, PettingZoo, TextArena, reasoning_gym, OpenEnv servers and users."""

"""Tasks: where examples come from, how agents are prompted, and what an episode is."""

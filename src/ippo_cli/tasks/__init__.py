"""Layer 2: where examples come from and how agents are asked about them."""

"""Layer 4: the corridor. The loop, and what it calls once per iteration."""

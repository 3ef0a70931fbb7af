"""Layer 5: what is done with trained weights: scored, compared, played against each other, exported, talked to."""

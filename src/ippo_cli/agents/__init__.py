"""Layer 3: who plays. An agent owns its actor, critic, reference and learners."""

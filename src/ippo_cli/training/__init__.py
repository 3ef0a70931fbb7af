"""The training loop and its steps: experience, targets, mini-batches, updates, checkpoints."""

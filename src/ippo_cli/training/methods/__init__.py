"""Methods of training: each has one file with its formula, its stages, its metrics and its state."""

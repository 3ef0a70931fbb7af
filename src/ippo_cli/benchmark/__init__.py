"""The benchmark: tasks with known bounds, and results of this and other trainers in one schema."""

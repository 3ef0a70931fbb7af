"""Programs that models write: run in a sandbox, judged outside of it."""

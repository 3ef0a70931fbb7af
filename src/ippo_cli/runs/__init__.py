"""The files and processes of a run: its folder, checkpoints, signals, watchdog, launch and injected faults."""

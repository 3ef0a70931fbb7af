"""What `--help` prints: written by `scripts/docs.py`, read without importing anything heavy."""

from pathlib import Path

HELP_FLAGS = ("-h", "--help")
TRAIN_HELP = (Path(__file__).parent / "help.txt").read_text()

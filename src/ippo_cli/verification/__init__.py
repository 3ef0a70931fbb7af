"""Verifies runs: compares their files with recorded hashes, and with iterations that are executed again."""

"""Asking agents: batched decoding, sampling, collecting what every agent says."""

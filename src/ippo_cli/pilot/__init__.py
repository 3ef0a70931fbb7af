"""`mode=pilot`: measures on a small sample, before a run, whether it can learn, and which key to change if not."""

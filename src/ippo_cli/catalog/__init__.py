"""Lists, compares and removes run folders. Does not import torch."""

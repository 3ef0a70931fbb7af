"""Layer 2: what responses are worth. The contract, and one file per reward."""

"""Language models with policy, value and reward heads: loading, adapters, packing."""

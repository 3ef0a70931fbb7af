"""Layer 0, the plan: schemas, loading, checks and the names that other projects use. Imports no torch."""

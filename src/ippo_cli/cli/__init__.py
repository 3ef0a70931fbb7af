"""Layer 6, the doors: compose, check, launch. No logic, and no torch at import."""

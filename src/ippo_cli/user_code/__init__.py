"""The user's own Python functions and templates: loading them, calling them, and locating their errors."""

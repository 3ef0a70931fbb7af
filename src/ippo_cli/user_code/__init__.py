"""Load and call the user's Python functions and templates, and locate their errors."""

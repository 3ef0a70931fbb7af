"""The commands: each parses its arguments and calls the code that does the work. Imports no torch."""

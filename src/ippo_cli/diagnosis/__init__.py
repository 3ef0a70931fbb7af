"""Diagnoses: conditions of runs, from their metrics and samples, and problems of machines. Imports torch on demand."""

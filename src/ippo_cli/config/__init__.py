"""The configuration: schemas, rules between values, errors, and batch sizes. Imports no torch and no Hydra."""

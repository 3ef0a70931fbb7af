"""What a run would do and need, before a weight is loaded: `mode=plan`, and the checks that training makes as well."""

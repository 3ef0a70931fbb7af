"""Child processes and sandboxes, in which functions of users and programs of models run."""

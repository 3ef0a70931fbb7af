"""Facts about a machine and problems in them, for `ippo-doctor` and bug reports."""

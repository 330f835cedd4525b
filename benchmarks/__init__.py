"""Benchmarks: a script, a table. Run them from the repository, ``python -m benchmarks.encode --help``."""

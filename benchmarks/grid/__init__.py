"""What benchmarks/downstream.py is made of: tasks, arms, the process of a run, and the report."""

"""What is measured in a process of its own, in its own environment: a file each, with jobs that are told to run."""

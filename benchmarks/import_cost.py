"""What does the package cost those who have it installed and do not use it? Time of `spacy.blank("en")`.

python benchmarks/import_cost.py --runs 11

spaCy imports every `spacy_factories` entry point when a pipeline is made. Each run is a process of its own; runs with
and without our entry points alternate, so that both meet the same state of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

PROGRAM = """
import sys, time
start = time.perf_counter()
import catalogue
# The registries ask here for entry points. Both kinds go through the filter, so its own cost cancels out.
hidden = "spacy_elmo" if sys.argv[1] == "without" else "nothing"
found = catalogue.Registry._get_entry_points
catalogue.Registry._get_entry_points = lambda self: [e for e in found(self) if not e.value.startswith(hidden)]
import spacy
spacy.blank("en")
seconds = time.perf_counter() - start
present = any(name.split(".")[0] == "spacy_elmo" for name in sys.modules)
assert present == (sys.argv[1] == "with"), "the entry points are not as expected"
print(seconds)
"""


def measure(kind: str) -> float:
    """Seconds from before `import spacy` to after `spacy.blank("en")`, in a new process; kind: "with" or "without"."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print the medians, their difference and their ratio."""
    parser = argparse.ArgumentParser(description="Time of spacy.blank with and without our entry points.")
    parser.add_argument("--runs", type=int, default=11, help="processes of each kind")
    runs = parser.parse_args().runs
    kinds = ("without", "with")
    for kind in kinds:  # files into the page cache, bytecode written
        measure(kind)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(runs):
        for kind in kinds:
            seconds[kind].append(measure(kind))
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    for kind in kinds:
        low, high = min(seconds[kind]), max(seconds[kind])
        print(f"{kind:<10} {median[kind]:.3f} s  (min {low:.3f}, max {high:.3f}, {runs} runs)")
    print(f"difference {median['with'] - median['without']:+.3f} s")
    print(f"ratio      {median['with'] / median['without']:.3f}")


if __name__ == "__main__":
    main()

"""How long does it take to load an original-size biLM, and how much memory? 93.6M parameters, random, in each format.

python -m benchmarks.load
python -m benchmarks.load --formats hdf5 --size small
python -m benchmarks.load --model en

Files are written into a temporary folder (TMPDIR chooses where; 0.4 to 2.4 GB at the original size), read once so that
they lie in the operating system's cache, and loaded in a fresh process each time. "Memory" is the peak of what that
process holds itself, beyond what it holds after its imports; files that are mapped into memory count from the time
they are touched. The time is that of `load_bilm` alone.

``--model`` is the way to a first vector instead: with built-in weights, or those at a path, in fresh processes of three
kinds that alternate. spaCy's own start is that without our entry points; `load_bilm` is timed after the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from spacy_elmo import BiLM, ElmoError, load_bilm
from spacy_elmo.weights import save_bilm, save_bilm_hdf5

from .common import SIZES, machine, positive, set_threads, table
from .peers.protocol import ROOT, THREAD_VARIABLES

# Prints a JSON list of [step, seconds, resident MB after it]. argv: kind of process, name or path of the weights.
PROGRAM = """
import json, os, resource, sys, time
kind, model = sys.argv[1:]
lang = model if model.isalpha() else "en"
steps = []

def done(step, start):
    seconds = time.perf_counter() - start
    try:
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:  # no Linux: the peak so far
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    steps.append([step, seconds, resident])
    return time.perf_counter()

start = time.perf_counter()
if kind == "load":
    import spacy_elmo
    start = done("import spacy_elmo", start)
    spacy_elmo.load_bilm(model)
    done("load_bilm", start)
else:
    import catalogue
    if kind == "spaCy":
        found = catalogue.Registry._get_entry_points
        ours = lambda entry: entry.value.startswith("spacy_elmo")
        catalogue.Registry._get_entry_points = lambda self: [one for one in found(self) if not ours(one)]
    import spacy
    nlp = spacy.blank(lang)
    start = done("spaCy's own start" if kind == "spaCy" else "start with spacy-elmo", start)
    if kind == "elmo":
        elmo = nlp.add_pipe("elmo")
        start = done("add_pipe", start)
        if model != lang:  # else they are the ones that its first use takes
            elmo.load_weights(model)
        nlp("The river bank was muddy.")[2]._.elmo.sum()
        done("first vector", start)
print(json.dumps(steps))
"""


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB (10**6 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux getrusage starts from the peak of the process that started this one.
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def load(path: Path) -> None:
    """Load in this process, and print what it took as JSON."""
    import h5py  # noqa: F401  # its own memory is no part of the weights

    before, start = peak_mb(), time.perf_counter()
    bilm = load_bilm(path)
    seconds = time.perf_counter() - start
    parameters = sum(parameter.numel() for parameter in bilm.parameters())
    print(json.dumps({"seconds": seconds, "mb": peak_mb() - before, "parameters": parameters}))


def hdf5(bilm: BiLM, folder: Path) -> Path:
    """`options.json` and `weights.hdf5`."""
    save_bilm_hdf5(bilm, folder)
    return folder


def native(bilm: BiLM, folder: Path) -> Path:
    """Our own folder."""
    save_bilm(bilm, folder)
    return folder


def zipped(bilm: BiLM, folder: Path) -> Path:
    """The HDF5 files in a .zip, as the NLPL repository has them."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in hdf5(bilm, folder).iterdir():
            archive.write(file, file.name)
            file.unlink()
    return path


def tar_gz(bilm: BiLM, folder: Path) -> Path:
    """The same in a .tar.gz."""
    path = folder.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for file in hdf5(bilm, folder).iterdir():
            archive.add(file, file.name)
            file.unlink()
    return path


FORMATS: dict[str, Callable[[BiLM, Path], Path]] = {"hdf5": hdf5, "native": native, "zip": zipped, "tar.gz": tar_gz}


def first_vector(model: str, times: int, threads: int) -> None:
    """Run each kind of process so many times, in turn, after a first one that counts not, and print the medians."""
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(times + 1):
        for kind in ("spaCy", "elmo", "load"):
            command = [sys.executable, "-c", PROGRAM, kind, model]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            for step, seconds, mb in json.loads(done.stdout.splitlines()[-1]) if number else ():
                found.setdefault(step, []).append((seconds, mb))
    median = {step: [statistics.median(column) for column in zip(*runs, strict=True)] for step, runs in found.items()}
    rows = [
        [step, f"{median[step][0]:.3f}", *(f"{pick(runs)[0]:.3f}" for pick in (min, max)), f"{median[step][1]:.0f}"]
        for step, runs in found.items()
    ]
    ours = ("start with spacy-elmo", "add_pipe", "first vector")
    own = median["spaCy's own start"]
    seconds, mb = sum(median[step][0] for step in ours) - own[0], median[ours[-1]][1] - own[1]
    rows.append(["to the first vector, over spaCy's own start", f"{seconds:.3f}", "", "", f"+{mb:.0f}"])
    rows.append(["`load_bilm`'s share", "", "", "", f"+{median['load_bilm'][1] - median['import spacy_elmo'][1]:.0f}"])
    table(["step", "median s", "least", "most", "resident MB after it"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files, load each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="original")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--model", help="name or path of weights: measure the way to a first vector")
    parser.add_argument(
        "--times", type=positive, default=3, help="loads of each: of formats the fastest counts, else the median"
    )
    parser.add_argument("--threads", type=positive, default=2, help="(default: %(default)s)")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.load:
        load(args.load)
        return
    set_threads(args.threads)
    print(f"{machine(args.threads)}\n")
    if args.model is not None:
        try:
            load_bilm(args.model)
        except ElmoError as error:
            parser.error(str(error))
        first_vector(args.model, args.times, args.threads)
        return
    bilm = BiLM(SIZES[args.size]).initialize(0)
    print(f"{args.size}: {sum(parameter.numel() for parameter in bilm.parameters()):,} parameters")
    print(f"{'format':<8} {'file MB':>8} {'seconds':>8} {'memory MB':>10} {'memory / file':>14}")
    for name in args.formats:
        with tempfile.TemporaryDirectory() as temporary:
            path = FORMATS[name](bilm, Path(temporary, "model"))
            files = [path] if path.is_file() else list(path.iterdir())
            for file in files:
                file.read_bytes()
            size = sum(file.stat().st_size for file in files) / 1e6
            runs = []
            for _ in range(args.times):
                command = [sys.executable, "-m", "benchmarks.load", "--load", str(path)]
                runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout))
        seconds, mb = min(run["seconds"] for run in runs), max(run["mb"] for run in runs)
        print(f"{name:<8} {size:8.0f} {seconds:8.2f} {mb:10.0f} {mb / size:14.2f}", flush=True)


if __name__ == "__main__":
    main()

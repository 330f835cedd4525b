"""How long does it take to load an original-size biLM, and how much memory? 93.6M parameters, random, in each format.

python benchmarks/load.py
python benchmarks/load.py --formats hdf5 --size small

Files are written into a temporary folder (TMPDIR chooses where; 0.4 to 2.4 GB at the original size), read once so that
they lie in the operating system's cache, and loaded in a fresh process each time. "Memory" is the peak of what that
process holds itself, beyond what it holds after its imports; files that are mapped into memory count from the time
they are touched. The time is that of `load_bilm` alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from spacy_elmo import BiLM, BiLMConfig, load_bilm
from spacy_elmo.weights import save_bilm, save_bilm_hdf5

SIZES = {
    "original": BiLMConfig(lstm_dim=4096, projection_dim=512, n_highway=2),
    "medium": BiLMConfig(lstm_dim=2048, projection_dim=256, n_highway=1),
    "small": BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
}


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


def main() -> None:
    """Write the files, load each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description="Time and memory of loading a biLM.")
    parser.add_argument("--size", choices=SIZES, default="original")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--times", type=int, default=3, help="loads of each, of which the fastest counts")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        load(args.load)
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
                command = [sys.executable, __file__, "--load", str(path)]
                runs.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
        seconds, mb = min(run["seconds"] for run in runs), max(run["mb"] for run in runs)
        print(f"{name:<8} {size:8.0f} {seconds:8.2f} {mb:10.0f} {mb / size:14.2f}", flush=True)


if __name__ == "__main__":
    main()

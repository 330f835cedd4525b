"""Damages the files of each format, seeded, and loads them: what comes out is a biLM or a WeightsError.

    python -m tests.weights.fuzz COUNT [--seed SEED] [--formats FORMAT ...]

Prints for each format one line of JSON: its name, and how many loads ended well, how many with a WeightsError, what
else came out (the number of the try, the file, and the exception), the longest time of one load in CPU seconds, and by
how many MB the memory of the process grew. To be run in a process of its own, because a reader that crashes, or runs in
circles, ends it.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import bilm_from_bytes, bilm_to_bytes, load_bilm, load_softmax, save_bilm, save_softmax

from .many_langs_folder import write_model as write_many_langs_model
from .writers import Model, files_of, write_checkpoint_model, write_hdf5, write_hdf5_model, write_tar, write_zip

LONGEST = 10  # CPU seconds of one load; then the process ends
SPECIAL = (0x00, 0x01, 0x7F, 0x80, 0xFF)  # what means something in counts, sizes and marks


def hdf5(folder: Path) -> Path:
    return write_hdf5_model(folder, Model())


def words(folder: Path) -> Path:
    return write_hdf5_model(folder, Model("words"))


def token_embeddings(folder: Path) -> Path:
    model = Model("one_layer")
    write_hdf5_model(folder, model)
    width = model.options["lstm"]["projection_dim"]
    write_hdf5(folder / "tokens.hdf5", {"embedding": np.ones((3, width), dtype=np.float32)})
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    return folder / "tokens.hdf5"


def checkpoint(folder: Path) -> Path:
    return write_checkpoint_model(folder, Model(), n_shards=2)


def native(folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as other:
        save_bilm(load_bilm(words(Path(other))), folder)
    save_softmax(FullSoftmax(4, 3), folder)
    return folder


def in_bytes(folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as other:
        (folder / "bytes").write_bytes(bilm_to_bytes(load_bilm(words(Path(other)))))
    return folder / "bytes"


def many_langs(folder: Path, *, legacy: bool = False) -> Path:
    write_many_langs_model(folder, legacy=legacy)
    return folder


def many_langs_legacy(folder: Path) -> Path:
    return many_langs(folder, legacy=True)


def archive(suffix: str, write: Callable[[Path, dict[str, bytes]], Path]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        with tempfile.TemporaryDirectory() as other:
            return write(folder / f"model{suffix}", files_of(hdf5(Path(other)), "elmo"))

    return written


# Writes the files of a model into an empty folder. RETURNS: the path to load.
FORMATS: dict[str, Callable[[Path], Path]] = {
    "hdf5": hdf5,
    "hdf5 with a word table": words,
    "token embeddings": token_embeddings,
    "checkpoint": checkpoint,
    "native": native,
    "bytes": in_bytes,
    "many langs": many_langs,
    "many langs, old torch": many_langs_legacy,
    "zip": archive(".zip", write_zip),
    "tar": archive(".tar", write_tar),
    "tar.gz": archive(".tar.gz", lambda path, files: write_tar(path, files, "w:gz")),
    "tar.bz2": archive(".tar.bz2", lambda path, files: write_tar(path, files, "w:bz2")),
}


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The data cut short, or with up to three bytes changed; half of these near one of its ends, where heads lie."""
    if rng.random() < 0.25:
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data))
        if rng.random() < 0.5:
            place = rng.choice((place % min(2048, len(data)), -1 - place % min(512, len(data))))
        changed[place] = rng.choice((*SPECIAL, rng.randrange(256), changed[place] ^ 1 << rng.randrange(8)))
    return bytes(changed)


def load(format: str, path: Path) -> None:
    if format == "bytes":
        bilm_from_bytes(path.read_bytes())
        return
    load_bilm(path)
    if format in ("checkpoint", "native"):
        load_softmax(path)


def fuzz(format: str, count: int, seed: int) -> dict[str, Any]:
    """Damage one file of a model at a time, load, and mend it."""
    rng = random.Random(f"{format} {seed}")
    report: dict[str, Any] = {"loaded": 0, "refused": 0, "other": [], "longest": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        path = FORMATS[format](Path(folder))
        files = {file: file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()}
        load(format, path)
        before = peak_mb()
        for number in range(count):
            file = rng.choice(list(files))
            file.write_bytes(damaged(files[file], rng))
            start = time.process_time()
            limit(LONGEST)
            try:
                load(format, path)
                report["loaded"] += 1
            except WeightsError:
                report["refused"] += 1
            except Exception as error:
                report["other"].append(f"{number}, {file.name}: {error!r:.300}")
            limit(0)
            report["longest"] = max(report["longest"], time.process_time() - start)
            file.write_bytes(files[file])
    return {**report, "grown_mb": peak_mb() - before}


def limit(seconds: int) -> None:
    """End the process after so many CPU seconds from now; 0: do not."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB (10**6 bytes); 0 where it cannot be told."""
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Load damaged files of weights.")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=list(FORMATS))
    args = parser.parse_args()
    for format in args.formats:
        print(json.dumps([format, fuzz(format, args.count, args.seed)]), flush=True)


if __name__ == "__main__":
    main()

"""Does ELMo help a named entity recognizer that has little training data? configs/ner_elmo.cfg against configs/ner.cfg.

python benchmarks/ner.py --train train.conll --dev dev.conll --test test.conll --elmo training/bilm/model-best \
    --output ner-runs --share 0.1 --seeds 3 --steps 3000

The data are CoNLL columns: the word first, its IOB tag last. A Doc is a sentence. The training sentences are one random
sample (--sample-seed), the same for all runs; both configs get the same steps, evaluated on dev, and the best model on
dev is scored on test. Runs that are done are not run again, so it can be stopped and started. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import spacy
import srsly
from spacy.tokens import Doc, DocBin
from spacy.training import biluo_tags_to_spans, iob_to_biluo

CONFIGS = {"without": "configs/ner.cfg", "with ELMo": "configs/ner_elmo.cfg"}
ROOT = Path(__file__).resolve().parents[1]


def sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """(word, IOB tag) pairs of each sentence."""
    rows: list[tuple[str, str]] = []
    for line in [*path.read_text(encoding="utf8").splitlines(), ""]:
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            rows.append((columns[0], columns[-1]))
        elif rows:
            yield rows
            rows = []


def convert(source: Path, target: Path, *, share: float = 1.0, seed: int = 0) -> None:
    """Write a random share of a file's sentences as a DocBin."""
    vocab = spacy.blank("en").vocab
    docs = []
    for rows in sentences(source):
        doc = Doc(vocab, words=[word for word, _ in rows])
        doc.ents = biluo_tags_to_spans(doc, iob_to_biluo([tag for _, tag in rows]))
        docs.append(doc)
    if share < 1.0:
        docs = random.Random(seed).sample(docs, round(share * len(docs)))
    DocBin(docs=docs).to_disk(target)


def run(kind: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Train and score one pipeline, unless that was done before."""
    folder: Path = args.output / f"{kind.replace(' ', '-')}-{seed}"
    result = folder / "result.json"
    if result.exists():
        return dict(srsly.read_json(result))
    folder.mkdir(parents=True, exist_ok=True)
    data = {name: str(args.output / f"{name}.spacy") for name in ("train", "dev", "test")}
    command = [sys.executable, "-m", "spacy", "train", str(ROOT / CONFIGS[kind]), "--output", str(folder)]
    command += ["--paths.train", data["train"], "--paths.dev", data["dev"], "--system.seed", str(seed)]
    command += ["--training.max_steps", str(args.steps), "--training.patience", "0"]
    if kind == "with ELMo":
        command += ["--paths.elmo", str(args.elmo.resolve())]
    # One thread a run: the runs go side by side.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    start = time.perf_counter()
    with (folder / "train.log").open("w", encoding="utf8") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=ROOT)
    seconds = time.perf_counter() - start
    scores = folder / "test.json"
    evaluate = ["evaluate", str(folder / "model-best"), data["test"], "--output", str(scores)]
    subprocess.run([sys.executable, "-m", "spacy", *evaluate], check=True, capture_output=True, env=env, cwd=ROOT)
    dev = srsly.read_json(folder / "model-best" / "meta.json")["performance"]["ents_f"]
    test = srsly.read_json(scores)["ents_f"]
    figures = {"dev": 100 * dev, "test": 100 * test, "seconds": seconds}
    srsly.write_json(result, figures)
    return figures


def main() -> None:
    """Convert, train, score, print."""
    parser = argparse.ArgumentParser(description="Named entities with and without ELMo on a share of the data.")
    for name in ("train", "dev", "test", "elmo", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--sample-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev", "test"):
        target = args.output / f"{name}.spacy"
        if not target.exists():
            convert(getattr(args, name), target, share=args.share if name == "train" else 1.0, seed=args.sample_seed)
    jobs = [(kind, seed) for seed in range(args.seeds) for kind in CONFIGS]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = dict(zip(jobs, pool.map(lambda job: run(job[0], job[1], args), jobs), strict=True))
    print(f"| {args.share:.0%} of the training data, {args.steps} steps | dev F | test F | minutes |")
    print("| --- | --- | --- | --- |")
    for kind in CONFIGS:
        of_kind = [results[kind, seed] for seed in range(args.seeds)]
        cells = []
        for figure in ("dev", "test"):
            values = [one[figure] for one in of_kind]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f} ({', '.join(f'{v:.1f}' for v in values)})")
        minutes = statistics.mean(one["seconds"] for one in of_kind) / 60
        print(f"| {kind} | {' | '.join(cells)} | {minutes:.1f} |")


if __name__ == "__main__":
    main()

"""How much memory does a long Doc take beyond its own vectors? Peak resident memory of annotating one Doc.

python benchmarks/memory.py --tokens 50000 --size original

The Doc has no punctuation, so it is one sequence to the biLM. Weights are random: memory does not depend on them.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time

import spacy
import torch
from spacy.tokens import Doc

from spacy_elmo import BiLM, BiLMConfig

SIZES = {
    "original": BiLMConfig(lstm_dim=4096, projection_dim=512, n_highway=2),
    "small": BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
}


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB (10**6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def main() -> None:
    """Annotate one Doc and print what it took."""
    parser = argparse.ArgumentParser(description="Peak memory of annotating one long Doc.")
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--size", choices=SIZES, default="original")
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--white-space", action="store_true", help="a white-space token every 20 words")
    args = parser.parse_args()
    generator = random.Random(0)
    types = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 12))) for _ in range(8_000)]
    words = generator.choices(types, k=args.tokens)
    if args.white_space:
        words[::20] = [" "] * len(words[::20])
    nlp = spacy.blank("en")
    elmo = nlp.add_pipe("elmo", config={"max_length": args.max_length})
    elmo.load_weights(BiLM(SIZES[args.size]).initialize(0))  # type: ignore[attr-defined]
    nlp("A short text warms up what is made once .")
    doc = Doc(nlp.vocab, words=words)
    before, start = peak_mb(), time.perf_counter()
    elmo(doc)
    seconds = time.perf_counter() - start
    output = doc._.elmo.layers.nbytes / 1e6
    print(f"{args.size}, {len(doc)} tokens, {torch.get_num_threads()} threads, windows of {args.max_length}")
    print(f"before    {before:8.0f} MB")
    print(f"peak      {peak_mb():8.0f} MB")
    print(f"vectors   {output:8.0f} MB")
    print(f"beyond    {peak_mb() - before - output:8.0f} MB")
    print(f"{seconds:.0f} s, {len(doc) / seconds:.0f} words/s")


if __name__ == "__main__":
    main()

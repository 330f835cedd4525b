"""What a start state is worth: perplexity by position in the sentence, from zero and from what text before leaves.

python -m benchmarks.start_state --model training/bilm/model-best --text text.txt

Of the text's documents every other one gives the state, and the rest are measured. A position counts words from where a
direction starts to read. Models that were trained with reset = "sentence" know the state of zero alone. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from spacy_elmo.errors import ElmoError
from spacy_elmo.pretraining.config import load_config, nlp_settings, resolve
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.perplexity import Perplexity, perplexity_by_position
from spacy_elmo.pretraining.prepare import dev_sentences
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.pretraining.texts import pipeline
from spacy_elmo.pretraining.vocabulary import Vocabulary
from spacy_elmo.pretraining.warm import N_STARTS, with_warm_state
from spacy_elmo.weights import load_bilm, load_softmax, load_vocabulary

from .common import existing, machine, positive, set_threads, table


def halves(text: Path, config: Path, folder: Path, words: int) -> list[EncodedCorpus]:
    """A text as pretraining encodes it, in two parts of about as many words: every other document."""
    nlp = pipeline(nlp_settings(load_config(config).get("nlp", {})))
    reader = raw_text(str(text), limit_words=words)
    return [encode_corpus(islice(reader(nlp), part, None, 2), folder / str(part), key=str(part)) for part in range(2)]


def compare(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, Perplexity]]:
    """Perplexity by position from each start state."""
    settings, _ = resolve(load_config(args.model / "pretrain.cfg"))
    training = settings.training
    bilm, softmax = load_bilm(args.model), load_softmax(args.model)
    words = load_vocabulary(args.model / "vocabulary.txt")
    source, measured = halves(args.text, args.model / "pretrain.cfg", folder, args.words)
    stream = Stream(source, Vocabulary(words), rows=args.rows, unroll_steps=training.unroll_steps, seed=0)
    reset: Literal["document"] | None = None if training.reset is None else "document"
    warm = with_warm_state(bilm, stream, source.types, reset=reset, n_starts=args.starts)
    sentences = dev_sentences(measured, measured.n_words)
    return {
        state: perplexity_by_position(warm, softmax, words, sentences, first=args.first, state=state)
        for state in ("zero", "warm")
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Compute the state, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=existing, required=True, help="a folder of `elmo pretrain`")
    parser.add_argument("--text", type=existing, required=True, help="text that the model was not trained on")
    parser.add_argument("--words", type=positive, default=400_000, help="words to read of it (default: %(default)s)")
    parser.add_argument("--first", type=positive, default=5, help="positions by themselves (default: %(default)s)")
    parser.add_argument("--starts", type=positive, default=N_STARTS, help="states to average (default: %(default)s)")
    parser.add_argument("--rows", type=positive, default=32, help="rows of text read at once (default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=2, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(f"{machine(args.threads)}; {args.model}\n")
    try:
        with TemporaryDirectory() as folder:
            found = compare(args, Path(folder))
    except ElmoError as error:
        parser.error(str(error))
    rows = []
    for name, zero in found["zero"].items():
        warm = found["warm"][name]
        pairs = [(getattr(zero, which), getattr(warm, which)) for which in ("joint", "forward", "backward")]
        gains = [f"{before:,.2f} → {after:,.2f} ({after / before - 1:+.1%})" for before, after in pairs]
        rows.append([name, f"{zero.n_targets:,}", *gains])
    table(["position", "targets", "joint, zero → warm", "forward", "backward"], rows)


if __name__ == "__main__":
    main()

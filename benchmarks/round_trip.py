"""Do other programs read what we write? Their vectors against ours, layer by layer.

python -m benchmarks.round_trip --allennlp VENV/bin/python --bilm VENV/bin/python
python -m benchmarks.round_trip --allennlp VENV/bin/python --weights training/bilm/model-best

Random biLMs of the published sizes, and any others that are given, are saved as bilm-tf's HDF5 with the token
embeddings of the text's words; AllenNLP and bilm-tf load the files and embed a batch of sentences from the zero state.
Every weight is drawn, biases too, and large enough for vectors like those of trained models. AllenNLP has no reader of
token embeddings; bilm-tf's runs on them what it runs on characters. How each peer's environment is made is said in
benchmarks/peers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spacy_elmo import BiLM, load_bilm, save_bilm
from spacy_elmo.weights import save_token_embeddings

from .common import (
    SIZES,
    Peers,
    Sentences,
    add_sizes,
    add_text_options,
    described,
    machine,
    parser_for,
    progress,
    sentences_for,
    set_threads,
    table,
)
from .peers.protocol import PeerError
from .peers.texts import write_text

# program, what it reads, arguments of its job
READERS: list[tuple[str, str, dict[str, Any]]] = [
    ("allennlp", "AllenNLP", {}),
    ("bilm", "bilm-tf", {}),
    ("bilm", "bilm-tf, token embeddings", {"token_embeddings": True}),
]


def drawn(size: str, seed: int) -> BiLM:
    """A biLM of a published size, with every weight drawn."""
    bilm = BiLM(SIZES[size]).initialize(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in bilm.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.2, generator=generator))
            elif name.endswith("kernel"):
                # What is read counts; what was said before less, or rounding would grow from step to step.
                parameter[: bilm.config.projection_dim].mul_(3.0)
            elif "conv_weights" in name or name.endswith("projection"):
                parameter.mul_(3.0)
    bilm.invalidate()
    return bilm


def cells(name: str, label: str, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[list[str]]:
    """A row for each layer: the largest difference, and the largest value of ours."""
    rows = []
    for layer in range(len(ours[0])):
        difference = max(np.abs(one[layer] - other[layer]).max() for one, other in zip(ours, theirs, strict=True))
        largest = max(np.abs(one[layer]).max() for one in ours)
        figures = (difference, largest, difference / largest)
        rows.append([name, label, str(layer), *(f"{figure:.1e}" for figure in figures)])
    return rows


def rows_of(name: str, folder: str, sentences: Sentences, peers: Peers) -> list[list[str]]:
    """The table's rows for one biLM, which lies in a folder as it was written for the peers."""
    bilm = load_bilm(folder)
    ours = [layers.numpy() for layers in bilm.encode(sentences, "zero")]
    with torch.no_grad():
        exact = [layers.numpy() for layers in bilm.double()(sentences, "zero")]
    rows = cells(name, "ours, in float64", ours, exact)
    for peer, label, arguments in READERS:
        if bilm.config.filters is None and "token_embeddings" not in arguments:
            continue  # a word table: bilm-tf alone reads it, as it reads token embeddings
        if peer == "bilm":
            arguments = {**arguments, "columns": bilm.config.max_characters_per_token}
        path = Path(folder, "vectors.npz")
        progress(f"{name}: {label}")
        try:
            peers.call(peer, "vectors", size=name, text="text", path=str(path), **arguments)
        except PeerError as error:
            rows.append([name, label, f"missing: {error}"])
            continue
        with np.load(path) as file:
            theirs = [file[array] for array in file.files]
        rows += cells(name, label, ours, theirs)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Save, let the others read, print a table."""
    parser = parser_for(__doc__, rounds=0)
    add_text_options(parser, 32)
    add_sizes(parser)
    parser.add_argument("--weights", type=Path, nargs="*", default=[], help="further biLMs, of any format")
    parser.add_argument("--allennlp", type=Path, help="Python of an environment with AllenNLP")
    parser.add_argument("--bilm", type=Path, help="Python of an environment with bilm-tf")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    print(machine(args.threads))
    sentences = sentences_for(args)
    print(f"{described(sentences)}\n")
    words = sorted({word for sentence in sentences for word in sentence})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts = {"text": str(write_text(sentences, folder / "text.txt"))}
        folders = {name: str(folder / str(i)) for i, name in enumerate([*args.size, *map(str, args.weights)])}
        peers = Peers(stack, args.threads)
        peers.add("allennlp", args.allennlp, "allennlp_worker", folders=folders, texts=texts)
        peers.add("bilm", args.bilm, "bilm_reader_worker", folders=folders, texts=texts)
        for name, target in folders.items():
            bilm = drawn(name, args.seed) if name in args.size else load_bilm(name)
            save_bilm(bilm, target, "bilm-hdf5")
            if bilm.config.filters is not None:
                save_token_embeddings(bilm, words, target)
        rows = [row for name, target in folders.items() for row in rows_of(name, target, sentences, peers)]
        table(["biLM", "read by", "layer", "largest difference", "largest value", "their ratio"], rows)
        print()
        peers.print_facts()


if __name__ == "__main__":
    main()

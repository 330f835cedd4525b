"""AllenNLP's ELMo (allennlp 2.10.1) as its users call it: character ids of a batch, then the module.

Environment, beside torch: ``pip install --no-deps allennlp==2.10.1 fairscale==0.4.13`` and ``pip install spacy h5py
nltk "transformers<5" "huggingface_hub<1" cached-path dill base58 tensorboardX termcolor more-itertools jsonnet
scikit-learn scipy lmdb``.
"""

from __future__ import annotations

import importlib.machinery
import sys
import time
import types
from pathlib import Path
from typing import Any

from .protocol import Job, serve
from .texts import batches, read_texts

# AllenNLP imports torchvision, which none of ELMo needs and which must fit the torch version: empty modules do.
for _name in ("torchvision", "torchvision.ops", "torchvision.ops.boxes", "torchvision.transforms"):
    _module = types.ModuleType(_name)
    _module.__spec__ = importlib.machinery.ModuleSpec(_name, None)
    _module.__path__ = []
    sys.modules[_name] = _module
sys.modules["torchvision.transforms.functional"] = types.ModuleType("torchvision.transforms.functional")


def load(*, threads: int, folders: dict[str, str], texts: dict[str, str]) -> tuple[dict[str, Job], dict[str, Any]]:
    """folders: with options.json and weights.hdf5 of each size. texts: files of sentences by name."""
    import allennlp.version  # type: ignore[import-not-found]
    import numpy as np
    import torch
    from allennlp.modules.elmo import Elmo, batch_to_ids  # type: ignore[import-not-found]
    from allennlp.nn.util import remove_sentence_boundaries  # type: ignore[import-not-found]

    torch.set_num_threads(threads)
    elmos = {}
    for size, folder in folders.items():
        files = [str(Path(folder) / name) for name in ("options.json", "weights.hdf5")]
        elmos[size] = Elmo(*files, num_output_representations=1, dropout=0.0).eval()
    sentences = read_texts(texts)

    def reset(size: str) -> None:
        # Its module carries the state of a batch on to the next one.
        elmos[size]._elmo_lstm._elmo_lstm.reset_states()

    def encode(size: str, text: str, batch_size: int, *, by_length: bool) -> dict[str, Any]:
        chosen = sentences[text]
        start = time.perf_counter()
        with torch.no_grad():
            for batch in batches(chosen, batch_size, by_length=by_length):
                reset(size)
                elmos[size](batch_to_ids(batch))
        return {"seconds": time.perf_counter() - start, "amount": sum(map(len, chosen))}

    def vectors(size: str, text: str, path: str) -> dict[str, Any]:
        """Write the layers of each sentence to a file."""
        reset(size)
        with torch.no_grad():
            output = elmos[size]._elmo_lstm(batch_to_ids(sentences[text]))
            layers = [remove_sentence_boundaries(layer, output["mask"])[0] for layer in output["activations"]]
        stacked = torch.stack(layers, dim=1).numpy()
        np.savez(path, *[array[:, : len(words)] for array, words in zip(stacked, sentences[text], strict=True)])
        return {}

    versions = f"allennlp {allennlp.version.VERSION}, torch {torch.__version__}"
    return {"encode": encode, "vectors": vectors}, {"facts": versions}


if __name__ == "__main__":
    serve(load)

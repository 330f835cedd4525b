"""spacy-transformers' component ``transformer``, of known sizes, with random weights: nothing is downloaded.

Environment: ``pip install spacy transformers spacy-transformers``. The tokenizer is a WordPiece trained on the
benchmark's own text, with as many pieces as make 1.25 of a word.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import spacy
import torch
import transformers  # type: ignore[import-not-found]
from spacy.language import Language
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers  # type: ignore[import-not-found]

from .protocol import Job, serve
from .texts import read_texts
from .transformer_worker import PIECES_PER_WORD, config_of

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def trained_tokenizer(texts: list[str], n_pieces: int) -> Tokenizer:
    """A WordPiece tokenizer of at most n_pieces pieces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=n_pieces, special_tokens=MARKS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in MARKS[2:]]
    )
    return tokenizer


def pieces_per_word(tokenizer: Tokenizer, texts: list[str]) -> float:
    """How many pieces a word becomes, the two marks of a text left out."""
    pieces = sum(len(encoding.ids) - 2 for encoding in tokenizer.encode_batch(texts))
    return pieces / sum(len(text.split(" ")) for text in texts)


def fitting_tokenizer(texts: list[str]) -> Tokenizer:
    """The tokenizer whose pieces a word come nearest to 1.25."""
    candidates = [trained_tokenizer(texts, round(500 * 1.4**i)) for i in range(12)]
    return min(candidates, key=lambda one: abs(pieces_per_word(one, texts) - PIECES_PER_WORD))


def load(
    *, threads: int, sizes: list[str], texts: dict[str, str], folder: str
) -> tuple[dict[str, Job], dict[str, Any]]:
    """sizes: names of transformer_worker. texts: files of texts by name, "all" among them. folder: to write into."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    lines = {name: [" ".join(words) for words in text] for name, text in read_texts(texts).items()}
    tokenizer = fitting_tokenizer(lines["all"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    pipelines: dict[str, Language] = {}
    for size in sizes:
        path = Path(folder) / size
        transformers.AutoModel.from_config(config_of(size)).save_pretrained(path)
        fast.save_pretrained(path)
        pipelines[size] = spacy.blank("en")
        model = {"@architectures": "spacy-transformers.TransformerModel.v3", "name": str(path)}
        pipelines[size].add_pipe("transformer", config={"model": model})
        pipelines[size].initialize()

    def pipe(size: str, text: str) -> dict[str, Any]:
        start = time.perf_counter()
        words = sum(len(doc) for doc in pipelines[size].pipe(lines[text]))
        return {"seconds": time.perf_counter() - start, "amount": words}

    def one_by_one(size: str, text: str) -> dict[str, Any]:
        start = time.perf_counter()
        words = sum(len(pipelines[size](line)) for line in lines[text])
        return {"seconds": time.perf_counter() - start, "amount": words}

    facts = (
        f"spacy-transformers {version('spacy-transformers')}, transformers {transformers.__version__}, "
        f"torch {torch.__version__}; {pieces_per_word(tokenizer, lines['all']):.2f} pieces a word"
    )
    return {"pipe": pipe, "one_by_one": one_by_one}, {"facts": facts}


if __name__ == "__main__":
    serve(load)

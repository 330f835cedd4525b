"""The start state that lies with the weights: what text before a sentence leaves behind, on average."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import torch
import torch.nn.functional as F
from thinc.api import Config
from torch import Tensor

from ..bilm.model import DIRECTIONS, BiLM
from ..errors import PretrainingError
from ..weights.native import load_native, load_native_softmax, save_native
from ..weights.vocabulary import load_vocabulary
from .card import save_card
from .checkpoint import replaced_folder
from .config import Settings
from .corpus import EncodedCorpus
from .perplexity import perplexity, perplexity_by_position
from .streams import Stream
from .vocabulary import N_SPECIAL

State = Literal["zero", "warm"]

# Beginnings of sentences whose states are averaged: the mean is then known to 2% of what one differs from another.
N_STARTS = 2000


def check_warm(corpus: EncodedCorpus) -> None:
    """Raises PretrainingError if no sentence of a corpus has another one before it in its document."""
    if corpus.n_sentences == corpus.n_documents:
        raise PretrainingError(
            'training.start_state = "warm" is what sentences leave behind for the next one of their document, but each '
            f"of the {corpus.n_documents} documents has one sentence only: give whole texts, or set it to "
            '"zero"'
        )


@torch.no_grad()
def with_warm_state(
    bilm: BiLM,
    stream: Stream,
    types: Sequence[str],
    *,
    reset: Literal["document"] | None,
    n_starts: int = N_STARTS,
) -> BiLM:
    """The same weights with a start state, and the policy to start from it.

    The state of each layer, hidden and cell, and of each direction is its mean over the beginnings of sentences in
    running text. It is taken just before a sentence's first step, from text that is read as in training but without
    dropout. Beginnings of documents do not count, nor those that come in a row before a whole sentence was read.

    stream: text to read, from its first window to the end of an epoch at most. types: the corpus's, by number.
    reset: whether documents begin with a state of zero. n_starts: beginnings after which it is enough.
    Raises PretrainingError if there is not one.
    """
    device = bilm.device
    if bilm.config.is_many_langs:
        types = [*bilm.config.marks, *types[N_SPECIAL:]]
    stacks = dict(zip(DIRECTIONS, (bilm.forward_lstm, bilm.backward_lstm), strict=True))
    states = bilm.zero_state(stream.rows).tensors()
    sums = {name: torch.zeros(len(state), state.shape[2], dtype=torch.float64) for name, state in states.items()}
    count = 0
    seen = torch.zeros(stream.rows, dtype=torch.bool)  # rows in which a sentence has begun
    for number in range(stream.steps_per_epoch):
        window = stream.window(number)
        table = bilm.token_encoder(bilm.token_ids([types[row] for row in window.type_rows.tolist()]))
        starts, documents = torch.from_numpy(window.starts), torch.from_numpy(window.document_starts)
        steps = {name: torch.from_numpy(getattr(window, name)).to(device) for name in DIRECTIONS}
        for t in range(stream.unroll_steps):
            counted = (starts[:, t] & ~documents[:, t] & seen).nonzero()[:, 0]
            if len(counted):
                rows = counted.to(device)
                for name, state in states.items():
                    sums[name] += state[:, rows].sum(dim=1).double().cpu()
                count += len(counted)
            seen |= starts[:, t]
            keep = (~documents[:, t]).to(device, table.dtype)[None, :, None] if reset == "document" else None
            for direction, stack in stacks.items():
                hidden, cell = states[f"{direction}_hidden"], states[f"{direction}_cell"]
                inputs = F.embedding(steps[direction][:, t][None], table)
                _, states[f"{direction}_hidden"], states[f"{direction}_cell"] = stack(inputs, hidden, cell, 0.0, keep)
        if count >= n_starts:
            break
    if not count:
        raise PretrainingError("no sentence of the text begins after another one: there is no warm start state")
    return with_start_state(bilm, {name: (total / count).float() for name, total in sums.items()})


def store_start_states(
    folders: Sequence[Path],
    stream: Stream,
    types: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    settings: Settings,
    device: torch.device,
    stdout: IO[str],
) -> None:
    """Give saved models a start state, and say what it is worth on the dev text. Those that have one stay as they are.

    folders: of models of one run; those that are not there are passed over. Their figures become those from the new
    state. sentences: of the dev text. Raises PretrainingError or WeightsError.
    """
    reset = settings.training.reset
    assert reset != "sentence"  # the config has seen to it
    done: dict[int, BiLM] = {}  # model-best and model-last are often one
    for folder in folders:
        if not folder.is_dir():
            continue
        bilm = load_native(folder)
        if bilm.config.state == "warm":
            continue
        meta = _meta_of(folder)
        warm = done.get(meta["step"])
        if warm is None:
            warm = done[meta["step"]] = with_warm_state(bilm.to(device), stream, types, reset=reset)
        softmax, words = load_native_softmax(folder), load_vocabulary(folder / "vocabulary.txt")
        if softmax.has_perplexity:
            softmax.to(device)
            found = {
                state: perplexity_by_position(warm, softmax, words, sentences, state=state) for state in get_args(State)
            }
            meta["start_state"] = {
                state: {name: part.joint for name, part in parts.items()} for state, parts in found.items()
            }
            now = perplexity(warm, softmax, words, sentences)
            meta["metrics"] |= now.scores()
            zero, own = meta["start_state"]["zero"], meta["start_state"]["warm"]
            print(
                f"{folder.name}: with the start state the dev perplexity of the first five words is "
                f"{own['1-5']:.2f} (from zero {zero['1-5']:.2f}), of all {own['all']:.2f} ({zero['all']:.2f})",
                file=stdout,
                flush=True,
            )
        config = Config().from_disk(folder / "pretrain.cfg")
        with replaced_folder(folder) as new:
            shutil.copytree(folder, new, dirs_exist_ok=True)
            save_native(warm, new)
            save_card(new, meta, config)


def with_start_state(bilm: BiLM, state: dict[str, Tensor]) -> BiLM:
    """The same weights with a start state, by the names of `BiLMState`: hidden (L, P), cell (L, H)."""
    config = replace(bilm.config, state="warm")
    warm = BiLM(config, vocabulary=bilm.vocabulary, characters=bilm.characters).to(bilm.device)
    warm.load_state_dict({**bilm.state_dict(), **{f"start_{name}": value for name, value in state.items()}})
    return warm


def _meta_of(folder: Path) -> dict[str, Any]:
    """The ``meta.json`` of a model that a run wrote. Raises PretrainingError if it is another one, or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
        if isinstance(meta["step"], int) and isinstance(meta["metrics"], dict):
            return dict(meta)
        wrong = "step or metrics are not what they should be"
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        wrong = f"{type(error).__name__}: {error}"
    raise PretrainingError(f"{folder / 'meta.json'} is damaged ({wrong}): move the folder away, and resume")

"""What lies beside weights about where they come from, for `elmo embed`, `info`, `perplexity` and who copies them."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import WeightsError
from .files import clear_errors, read_json

META_NAME = "meta.json"
# The first tells whether all are ours.
CARD_NAMES = (META_NAME, "pretrain.cfg", "README.md", "LICENSE")


def is_card(folder: Path) -> bool:
    """Whether what lies in a folder under `CARD_NAMES` is what pretraining wrote."""
    try:
        meta = read_json(folder / META_NAME)
    except WeightsError:
        return False
    return isinstance(meta, dict) and "spacy_elmo" in meta


def read_card(folder: Path) -> dict[str, bytes]:
    """What the files hold, by their names; nothing where pretraining did not write them.

    Raises WeightsError for one that cannot be read.
    """
    card = {}
    for path in (folder / name for name in (CARD_NAMES if is_card(folder) else ())):
        if os.path.isfile(path):
            with clear_errors(path, "cannot be read"):
                card[path.name] = path.read_bytes()
    return card

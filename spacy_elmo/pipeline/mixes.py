"""What a task has learned about the layers: s_j and γ of every listener (Peters et al., 2018, equation 1)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import spacy
from spacy.language import Language
from spacy.util import load_config
from thinc.api import Model

from ..errors import ElmoError
from ..layers.scalar_mix import MIX_SETTINGS, weights_of
from .saved_bilm import folder_of

# Architectures with a mix, by the beginning of their names.
_READERS = ("spacy-elmo.ElmoListener.", "spacy-elmo.ElmoTok2Vec.")
# Arguments of Tok2VecWithElmo, in the order in which its model has their mixes.
_INPUT, _OUTPUT = "elmo", "elmo_output"

_NOTES = re.compile(r"\n*<!-- spacy-elmo: mixes -->.*?<!-- spacy-elmo: end -->\n*", re.DOTALL)
_NOTES_TEXT = """<!-- spacy-elmo: mixes -->
### ELMo

What the layers of the biLM weigh in each component that reads them: weights `s_j` after the softmax, layer 0 being the
token encoder's, and the scale `γ` of their sum.

{table}
<!-- spacy-elmo: end -->"""


@dataclass(frozen=True, kw_only=True)
class Mix:
    """How one listener mixes the layers.

    component: whose model it is in. number: which of the component's listeners, from 1, in the order of its model.
    place: where it stands in the component's config, such as "model.tok2vec.elmo"; None where that is not at hand.
    weights: s_j of each layer, after the softmax, the token encoder's first. gamma: γ, the scale of the sum.
    learned: whether the task has learned them; else they are fixed by the config.
    """

    component: str
    number: int
    place: str | None
    weights: tuple[float, ...]
    gamma: float
    learned: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, which has no number that is not finite: None in its place."""
        gamma, *weights = (value if math.isfinite(value) else None for value in (self.gamma, *self.weights))
        return {**self.__dict__, "weights": weights, "gamma": gamma}


def mixes_in(component: str, models: Iterable[Model[Any, Any]], places: Sequence[str] = ()) -> list[Mix]:
    """The mixes in a component's model, or in parts of it; those without values, not yet initialized, are left out.

    places: of all these mixes, in their order, if they are known.
    """
    nodes = [node for model in models for node in model.walk(order="dfs_pre") if node.name == "scalar_mix"]
    known = places if len(places) == len(nodes) else [None] * len(nodes)
    return [
        _mix(component, number, place, node)
        for number, (place, node) in enumerate(zip(known, nodes, strict=True), start=1)
        if node.has_param("scalars")
    ]


def _mix(component: str, number: int, place: str | None, node: Model[Any, Any]) -> Mix:
    raw, gamma = (node.ops.to_numpy(values).astype(np.float64) for values in weights_of(node))
    powers = np.exp(raw - raw.max())
    return Mix(
        component=component,
        number=number,
        place=place,
        weights=tuple((powers / powers.sum()).tolist()),
        gamma=float(gamma[0]),
        learned=node.attrs[MIX_SETTINGS].weights is None,
    )


def mixes_of(nlp: Language) -> list[Mix]:
    """The mixes of all components, in the order of the pipeline, those with a biLM of their own too.

    Components that are disabled count. Nothing is computed: the biLM's weights need not be there.
    """
    blocks = nlp.config["components"]
    return [
        mix
        for name, pipe in nlp.components
        if isinstance(model := getattr(pipe, "model", None), Model)
        for mix in mixes_in(name, [model], list(_places(blocks.get(name, {}))))
    ]


def mixes_of_pipeline(source: Path | str) -> list[Mix]:
    """The mixes of a saved pipeline. Components without one, and the biLM, are not loaded.

    source: a folder that ``nlp.to_disk`` wrote, or the name of an installed pipeline package.
    Raises ElmoError if there is no such pipeline, if it cannot be loaded, or if no component of it mixes layers.
    """
    folder = folder_of(source)
    try:
        config = load_config(folder / "config.cfg")
        names = list(config["nlp"]["pipeline"])
        reading = [name for name in names if any(_places(config["components"][name]))]
    except Exception as error:
        raise ElmoError(f"{folder / 'config.cfg'}: is not the config of a pipeline: {error}") from error
    if not reading:
        raise ElmoError(f"{source}: no component of this pipeline listens to ELMo ({', '.join(names) or 'empty'})")
    exclude = [name for name in names if name not in reading]
    try:
        nlp = spacy.load(folder, exclude=[*exclude, "vocab", "tokenizer"])
    except Exception as error:
        raise ElmoError(f"{source}: {', '.join(reading)} cannot be loaded: {error}") from error
    found = mixes_of(nlp)
    if not found:
        raise ElmoError(f"{source}: {', '.join(reading)}: saved before it was initialized, so there are no weights")
    return found


def _places(block: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Where a component's config has something with a mix, in the order of its model."""
    if not isinstance(block, Mapping):
        return
    if str(block.get("@architectures", "")).startswith(_READERS):
        yield ".".join(path)
        return
    # A config may have its sections in any order.
    for key in sorted(block, key=lambda key: key == _OUTPUT):
        yield from _places(block[key], (*path, str(key)))


def labels(mixes: Sequence[Mix]) -> list[str]:
    """A short name for each of some mixes: the component's, and where it has several, which."""
    several = {mix.component for mix in mixes if mix.number > 1}
    return [f"{mix.component}, {_which(mix)}" if mix.component in several else mix.component for mix in mixes]


def _which(mix: Mix) -> str:
    argument = (mix.place or "").rpartition(".")[2]
    return {_INPUT: "input", _OUTPUT: "output"}.get(argument, str(mix.number))


def table(mixes: Sequence[Mix]) -> list[list[str]]:
    """The mixes as rows of text, a header first: listener, a column for each layer, γ, and how they came about."""
    n_layers = max(len(mix.weights) for mix in mixes)
    header = ["listener", *(f"layer {number}" for number in range(n_layers)), "γ", ""]
    rows = [
        [
            label,
            *(f"{weight:.3f}" for weight in mix.weights),
            *[""] * (n_layers - len(mix.weights)),
            f"{mix.gamma:.3f}",
            "learned" if mix.learned else "fixed",
        ]
        for label, mix in zip(labels(mixes), mixes, strict=True)
    ]
    return [header, *rows]


# -------------------------------------------------------------------------------------------------- the model card


@spacy.registry.callbacks("spacy-elmo.mix_notes.v1")
def mix_notes() -> Callable[[Language], Language]:
    """For `[training.before_to_disk]`: what is saved has its mixes in its meta's notes, see ``write_mix_notes``."""
    return write_mix_notes


def write_mix_notes(nlp: Language) -> Language:
    """Put the mixes into `nlp.meta["notes"]`, which `spacy package` and `spacy info --markdown` print.

    Earlier ones are replaced; other notes stay. RETURNS: the same pipeline.
    """
    notes = _NOTES.sub("\n\n", nlp.meta.get("notes") or "").strip()
    mixes = mixes_of(nlp)
    if mixes:
        header, *rows = table(mixes)
        lines = [header, ["---"] * len(header), *rows]
        text = _NOTES_TEXT.format(table="\n".join(f"| {' | '.join(cells)} |" for cells in lines))
        notes = f"{notes}\n\n{text}" if notes else text
    if notes or "notes" in nlp.meta:
        nlp.meta["notes"] = notes
    return nlp

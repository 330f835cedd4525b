"""A config for `spacy train`, of any pipeline that spaCy makes one for, in which the components read ELMo."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import spacy
from spacy.cli.init_config import init_config
from spacy.util import load_model_from_config
from thinc.api import Config

from ..errors import ElmoError, shown
from ..weights.builtin import is_name
from ..weights.files import as_path, exists, made_folder, replacing
from ..weights.recognise import recognised

Optimize = Literal["accuracy", "speed"]

# Ours, or put in by spaCy and by us as needed: spaCy takes no notice of its own two either.
_IMPLIED = ("elmo", "tok2vec", "transformer")
_SHARED = "components.tok2vec.model"
_LISTENER = {"@architectures": "spacy.Tok2VecListener.v1", "width": f"${{{_SHARED}.encode.width}}", "upstream": "*"}


def training_config(
    *,
    lang: str = "en",
    pipeline: Sequence[str] = ("tagger", "parser", "ner"),
    optimize: Optimize = "speed",
    weights: str | Path | None = None,
) -> Config:
    """The config that spaCy's `init config` makes, with ELMo in it; complete, but for the paths of the data.

    The component `elmo` comes first. Every tok2vec is a spacy-elmo.Tok2VecWithElmo.v1 of spaCy's own embedding and
    encoder, without static vectors; a textcat that would read words alone is put beside one (spacy.TextCatEnsemble.v2).
    Components without a tok2vec stay as they are. What the layers weigh goes into the meta of what is saved
    (spacy-elmo.mix_notes.v1).

    lang: code of the language. pipeline: factories of the components; "elmo" and "tok2vec" are implied.
    optimize: "speed": one tok2vec for all components, and so one mix, of the sizes of spaCy's "efficiency"; the biLM
        computes in bfloat16, and its vectors are kept in float16. "accuracy": a tok2vec for each component, with a mix
        of its own as in the paper, of the sizes of spaCy's "accuracy"; all in float32.
    weights: `paths.elmo`, as ``load_bilm`` takes it. None: the built-in ones of the language, or given in training.
    Raises ElmoError for a language or component that spaCy does not know, and if no component reads vectors;
        WeightsError for weights that are none.
    """
    if optimize not in get_args(Optimize):
        raise ElmoError(f"optimize is one of {', '.join(get_args(Optimize))}, not {shown(optimize)}")
    names = _checked_pipeline(lang, pipeline)
    if weights is not None:
        with recognised(weights):
            pass
    from_spacy = "efficiency" if optimize == "speed" else "accuracy"
    # A tagger more: whatever the pipeline, this has spaCy's tok2vec in it.
    embedding = _from_spacy(lang, ["tagger"], from_spacy)["components"]["tok2vec"]["model"]
    config = _from_spacy(lang, names, from_spacy)
    components = {name: _component(config["components"][name]) for name in names}
    listening = [name for name in names if "tok2vec" in (components[name].get("model") or {})]
    if not listening:
        raise ElmoError(f"none of the components {', '.join(names)} reads vectors: there is no use for ELMo")
    with_elmo = {
        "@architectures": "spacy-elmo.Tok2VecWithElmo.v1",
        "embed": {**embedding["embed"], "include_static_vectors": False},
        # Best on the dev set of an entity recognizer, the one task that was looked at: docs/downstream.md.
        "elmo": {
            "@architectures": "spacy-elmo.ElmoListener.v1",
            "elmo_dropout": 0.1,
            "mix": {"@architectures": "spacy-elmo.ScalarMix.v1", "layer_norm": True},
        },
        "encode": embedding["encode"],
    }
    # Listeners need nothing on the Doc, and an evaluation keeps all its Docs.
    elmo: dict[str, Any] = {"factory": "elmo", "store": "none"}
    before = {"elmo": elmo}
    if optimize == "speed":
        elmo |= {"precision": "bfloat16", "dtype": "float16"}
        before["tok2vec"] = {"factory": "tok2vec", "model": with_elmo}
        for name in listening:
            components[name]["model"]["tok2vec"] = dict(_LISTENER)
    else:
        for name in listening:
            components[name]["model"]["tok2vec"] = _moved(with_elmo, f"components.{name}.model.tok2vec")
    config["components"] = {**before, **components}
    config["nlp"]["pipeline"] = list(config["components"])
    # Docs whose layers are in memory at once.
    config["nlp"]["batch_size"] = 256
    config["paths"] |= {"vectors": None, "elmo": None if weights is None else _as_string(weights)}
    config["training"]["before_to_disk"] = {"@callbacks": "spacy-elmo.mix_notes.v1"}
    config["initialize"]["components"]["elmo"] = {"weights": "${paths.elmo}"}
    return load_model_from_config(config, auto_fill=True).config


def _as_string(weights: str | Path) -> str:
    """A path for a config, where only strings stand: one word would be the name of built-in weights."""
    text = os.fspath(weights)
    return os.path.join(os.curdir, text) if isinstance(weights, Path) and is_name(text) else text


def write_config(config: Config, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a config to a file, at once. Raises ElmoError if it exists, or cannot be written."""
    path = checked_output(path, overwrite=overwrite)
    made_folder(path.parent)
    with replacing(path.resolve()) as new:  # a link stays
        config.to_disk(new, interpolate=False)


def checked_output(path: str | Path, *, overwrite: bool = False) -> Path:
    """A path to write to. Raises ElmoError if something is there that is not to be replaced."""
    path = as_path(path)
    if not overwrite and exists(path):
        raise ElmoError(f"{path} exists: give another name, or --force to replace it")
    return path


def _checked_pipeline(lang: str, pipeline: Sequence[str]) -> list[str]:
    try:
        nlp = spacy.blank(lang)
    except Exception as error:  # what a language needs, and raises without it, is its own matter
        raise ElmoError(f"spaCy does not know the language {shown(lang)}: {error}") from error
    names = [name for name in pipeline if name and name not in _IMPLIED]
    if not names:
        raise ElmoError("the pipeline is empty: name the components that are to be trained, such as ner,parser")
    for name in names:
        if not nlp.has_factory(name):
            raise ElmoError(f"spaCy knows no component {shown(name)} (is the package that brings it installed?)")
        if names.count(name) > 1:
            raise ElmoError(f"the component {shown(name)} is there twice")
    return names


def _from_spacy(lang: str, names: list[str], optimize: str) -> Config:
    try:
        # As one for the CPU: on GPUs spaCy would have a transformer in the place of ELMo.
        return init_config(lang=lang, pipeline=names, optimize=optimize, gpu=False, silent=True)
    except (Exception, SystemExit) as error:  # what a component's factory raises; spaCy ends the process over some
        raise ElmoError(f"spaCy cannot make a config of {', '.join(names)} for {lang!r}: {error}") from error


def _component(block: dict[str, Any]) -> dict[str, Any]:
    """A component as spaCy has it, but a textcat always with a tok2vec."""
    block = copy.deepcopy(block)
    model = block.get("model") or {}
    if str(model.get("@architectures", "")).startswith("spacy.TextCatBOW."):
        bag = {key: value for key, value in model.items() if key != "nO"}
        block["model"] = {"@architectures": "spacy.TextCatEnsemble.v2", "linear_model": bag, "tok2vec": None}
    return block


def _moved(block: Any, place: str) -> Any:
    """A copy of the shared tok2vec's block whose references point into another place."""
    if isinstance(block, dict):
        return {key: _moved(value, place) for key, value in block.items()}
    return block.replace(_SHARED, place) if isinstance(block, str) else copy.deepcopy(block)

"""The biLM of a saved pipeline, taken out without running it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import spacy
from spacy.util import get_model_meta, get_package_path, is_package, load_config

from ..bilm import BiLM
from ..errors import WeightsError
from ..layers.bilm_model import BiLMShim
from ..text_forms import TextForm
from ..weights import builtin_model

_FACTORY = "elmo"
# What nlp.replace_listeners leaves: a biLM inside the component that reads it.
_STANDALONE = "spacy-elmo.ElmoTok2Vec."


def is_pipeline(source: Path | str) -> bool:
    """Whether something is a folder that ``nlp.to_disk`` wrote, or the name of an installed pipeline package.

    A name of built-in weights is none, though a package may be called so too: as a rule the one that offers them.
    Raises WeightsError where several packages offer them.
    """
    path = Path(source)
    if os.path.exists(path):  # Path.exists raises for names that are too long
        return (path / "config.cfg").is_file() and (path / "meta.json").is_file()
    return is_package(str(source)) and builtin_model(source) is None


@dataclass(frozen=True)
class SavedBiLM:
    """The biLM of a saved pipeline.

    text: the form of the words that it reads there. state: where its LSTMs start, None for the weights' own policy.
    lang: the pipeline's language.
    """

    bilm: BiLM
    text: TextForm
    state: Literal["zero", "warm"] | None
    lang: str


def bilm_of_pipeline(source: Path | str, component: str | None = None) -> BiLM:
    """The biLM of a pipeline, see ``saved_bilm``."""
    return saved_bilm(source, component).bilm


def saved_bilm(source: Path | str, component: str | None = None) -> SavedBiLM:
    """The biLM of a pipeline's `elmo` component, as training left it. Other components are not loaded.

    source: a folder that ``nlp.to_disk`` wrote, or the name of an installed pipeline package.
    component: whose biLM; needed where there are several. A component into which ``nlp.replace_listeners`` has put the
        biLM has one too.
    Raises WeightsError if there is no such pipeline, no such component, or several and none is named; if it holds no
    weights; or if it cannot be loaded.
    """
    folder = folder_of(source)
    try:
        config = load_config(folder / "config.cfg")
        components = {name: config["components"][name] for name in config["nlp"]["pipeline"]}
    except Exception as error:
        raise WeightsError(f"{folder / 'config.cfg'}: is not the config of a pipeline: {error}") from error
    name = _chosen(components, component, source)
    # Vocabulary and vectors may be large, and a factory of another component may not be installed here.
    exclude = [other for other in components if other != name]
    try:
        nlp = spacy.load(folder, exclude=[*exclude, "vocab", "tokenizer"])
        pipe: Any = nlp.get_pipe(name)
    except Exception as error:
        raise WeightsError(f"{source}: component '{name}' cannot be loaded: {error}") from error
    nodes = list(pipe.model.walk())
    shims = [shim for node in nodes for shim in node.shims if isinstance(shim, BiLMShim)]
    bilms = [shim.bilm for shim in shims if shim.bilm is not None]
    if not bilms:
        raise WeightsError(
            f"{source}: component '{name}' has no ELMo weights: it was saved before it got any "
            "(built-in ones come at the first text: save it after that, or after load_weights)"
        )
    if len(bilms) > 1:
        raise WeightsError(f"{source}: component '{name}' holds {len(bilms)} biLMs: which one is meant cannot be said")
    standalone = [node.attrs["elmo_doc_layers"] for node in nodes if "elmo_doc_layers" in node.attrs]
    doc_layers = standalone[0] if standalone else pipe.doc_layers
    return SavedBiLM(bilms[0], doc_layers.text, doc_layers.state, str(nlp.lang))


def folder_of(source: Path | str) -> Path:
    """Where the files of a pipeline lie. Raises WeightsError where there is nothing."""
    if os.path.exists(source):
        return Path(source)
    if not is_package(str(source)):
        raise WeightsError(f"{source}: there is no such folder of a pipeline, nor an installed package of that name")
    try:
        package = get_package_path(str(source))
        meta = get_model_meta(package)
    except Exception as error:
        raise WeightsError(f"{source}: the package cannot be loaded: {error}") from error
    return package / f"{meta['lang']}_{meta['name']}-{meta['version']}"


def _chosen(components: dict[str, Any], component: str | None, source: Path | str) -> str:
    """The name of the component whose biLM is meant."""
    pipes = [name for name, config in components.items() if config.get("factory") == _FACTORY]
    inside = [name for name, config in components.items() if any(map(_is_standalone, _architectures(config)))]
    if component is not None:
        if component not in pipes + inside:
            holders = ", ".join(pipes + inside) or "none"
            raise WeightsError(f"{source}: has no component '{component}' with a biLM (those with one: {holders})")
        return component
    candidates = pipes or inside
    if not candidates:
        raise WeightsError(f"{source}: no component of this pipeline has a biLM ({', '.join(components) or 'empty'})")
    if len(candidates) > 1:
        raise WeightsError(f"{source}: several components have a biLM ({', '.join(candidates)}): name one of them")
    return candidates[0]


def _is_standalone(architecture: str) -> bool:
    return architecture.startswith(_STANDALONE)


def _architectures(config: Any) -> Iterator[str]:
    """Names of all architectures in a component's config, at any depth."""
    if isinstance(config, dict):
        if "@architectures" in config:
            yield str(config["@architectures"])
        for value in config.values():
            yield from _architectures(value)

"""Letting the biLM learn with its components from some step of the training on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import spacy
from spacy.language import Language

from ..errors import ElmoError
from ..layers.listener import standalone_in
from .elmo import Elmo


@spacy.registry.callbacks("spacy-elmo.unfreeze_at.v1")
def unfreeze_at(*, step: int, component: str = "elmo") -> Callable[[Language, dict[str, Any]], None]:
    """A callback for ``[training.before_update]``: the biLM stays as it is before a step and learns from it on.

    For as long as a training calls it, this overrides the component's ``frozen``, whose value in the config, and so in
    the saved pipeline, stays what it is. Until the step, training costs no more than with a frozen biLM.

    step: the first step at which the biLM learns. spaCy counts from 0, batches and not evaluations.
    component: the `elmo` pipe, or a component into which ``nlp.replace_listeners`` has put the biLM.
    Raises ElmoError for a negative step; the callback, for a component that is not in the pipeline, has no biLM or is
    in ``frozen_components``, which spaCy never updates.
    """
    if not isinstance(step, int) or step < 0:
        raise ElmoError(f"unfreeze_at: step is at least 0, not {step!r}")

    def before_update(nlp: Language, progress: dict[str, Any]) -> None:
        setters = _freezing(nlp, component)
        if progress["step"] == 0 and component in nlp.config["training"].get("frozen_components", []):
            raise ElmoError(
                f"unfreeze_at: component '{component}' is in frozen_components, so spaCy would never update it: take "
                "it out there"
            )
        for set_frozen in setters:
            set_frozen(progress["step"] < step)

    return before_update


def _freezing(nlp: Language, component: str) -> list[Callable[[bool], None]]:
    """What freezes the biLMs of a component, or lets them learn."""
    if not nlp.has_pipe(component):
        raise ElmoError(f"unfreeze_at: no component '{component}' in the pipeline ({', '.join(nlp.pipe_names)})")
    pipe: Any = nlp.get_pipe(component)
    if isinstance(pipe, Elmo):
        return [pipe.set_frozen]
    standalone = standalone_in(getattr(pipe, "model", None))
    if not standalone:
        raise ElmoError(
            f"unfreeze_at: component '{component}' has no biLM. Name the `elmo` pipe, or a component into which "
            "nlp.replace_listeners has put one."
        )
    return [partial(doc_layers.set_frozen, bilm) for doc_layers, bilm in standalone]

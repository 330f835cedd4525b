"""The spaCy component `elmo`: contextual vectors on the Doc, and layers for whoever listens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from spacy.util import logger
from spacy.vocab import Vocab
from thinc.api import Config, Model, Optimizer, use_ops

from ..bilm import BiLM
from ..bilm.encode import CACHE_WORDS
from ..bilm.matmul import PRECISIONS, Precision
from ..errors import ElmoError, WeightsError
from ..layers.bilm_model import find_bilm, on_gpu, set_bilm, set_lr_factor
from ..layers.config_error import ElmoConfigError, config_errors
from ..layers.doc_layers import CACHE_DISK_MB, Backprop, DocLayers, ignore_gradient, prepare_child_process
from ..layers.listener import SETTINGS, allow_replacing, connect, is_initialized, listeners_in, set_widths
from ..layers.span_getters import SpanGetter
from ..text_forms import TextForm
from ..weights import builtin_model, load_bilm
from ..weights.builtin import not_offered
from .doc_elmo import drop, register_extensions, set_vector_hooks, stored
from .doc_elmo import store as store_layers
from .mixes import Mix, mixes_in

Store = Literal["layers", "mean", "none"]
Dtype = Literal["float32", "float16"]

# Held while built-in weights are loaded: threads that use a pipeline for the first time together load them once, and
# weights that one of them brings meanwhile stay. One for all components, since a lock cannot be copied or pickled with
# one.
_LOADING = threading.RLock()


def _after_fork() -> None:
    # Another thread of the parent may hold it, and there is none in the child that would let go of it.
    global _LOADING
    _LOADING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

DEFAULT_CONFIG = Config().from_str(
    """
[model]
@architectures = "spacy-elmo.BiLM.v1"

[span_getter]
@misc = "spacy-elmo.rule_spans.v1"
"""
)


@Language.factory(
    "elmo",
    assigns=["doc._.elmo", "token._.elmo", "span._.elmo"],
    default_config={
        "model": DEFAULT_CONFIG["model"],
        "span_getter": DEFAULT_CONFIG["span_getter"],
        "store": "layers",
        "dtype": "float32",
        "precision": "float32",
        "state": None,
        "frozen": True,
        "lr_factor": 1.0,
        "max_length": 512,
        "cache_mb": 512,
        "cache_words": CACHE_WORDS,
        "text": "orth",
        "vectors": False,
        "cache_dir": None,
        "cache_disk_mb": CACHE_DISK_MB,
    },
)
def make_elmo(
    nlp: Language,
    name: str,
    model: Model[list[list[str]], list[Any]],
    span_getter: SpanGetter,
    store: str,
    dtype: str,
    precision: str,
    state: str | None,
    frozen: bool,
    lr_factor: float,
    max_length: int,
    cache_mb: int,
    cache_words: int,
    text: TextForm,
    vectors: bool,
    cache_dir: str | None,
    cache_disk_mb: int,
) -> Elmo:
    """Make the component `elmo`: see ``Elmo`` for the arguments."""
    return Elmo(
        nlp.vocab,
        model,
        name,
        span_getter=span_getter,
        store=store,  # type: ignore[arg-type]
        dtype=dtype,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        state=state,  # type: ignore[arg-type]
        frozen=frozen,
        lr_factor=lr_factor,
        max_length=max_length,
        cache_mb=cache_mb,
        cache_words=cache_words,
        text=text,
        vectors=vectors,
        cache_dir=cache_dir,
        cache_disk_mb=cache_disk_mb,
        lang=nlp.lang,
    )


class Elmo(TrainablePipe):
    """Runs a biLM over Docs, keeps the layers on them, and serves the listeners of later components.

    vocab: the pipeline's. model: a spacy-elmo.BiLM.v1. name: of the pipe.
    span_getter: what the biLM reads as one sentence.
    store: what is kept on a Doc: all "layers" (L + 1, n_tokens, 2P), their "mean" (n_tokens, 2P), or "none".
    dtype: "float32" or "float16", of what is kept on Docs and in the memo.
    precision: of the biLM's matrix products, "float32" (exact) or "bfloat16" (faster and smaller where the processor
        has it). A biLM that trains (frozen = false) uses float32 while it does.
    state: where the LSTMs start, "zero" or "warm"; None: the weights' own policy.
    frozen: whether the biLM stays as it is in training. False: it learns through all its listeners.
    lr_factor: the learning rate of a biLM that trains, as a multiple of the optimizer's; its weight decay too.
    max_length: steps of a window inside the biLM: bounds memory, changes no result by more than rounding.
    cache_mb: bound in MB of the memo that keeps training texts' layers from step to step.
    cache_words: how many word types' token vectors are kept from text to text (P floats each); 0: none.
    text: what the biLM reads of a token: its "orth" (as it is written), "lower" or "norm", or what a function makes of
        a Doc's words (spacy-elmo.ptb_brackets.v1): what the weights were trained on.
    vectors: let doc.vector, token.vector, span.vector and similarity come from here.
    cache_dir: a folder in which training keeps texts' layers too, for later epochs and runs; None: it does not.
    cache_disk_mb: bound in MB of what lies there.
    lang: whose built-in weights are taken at the first use without weights. None: the vocab's.

    These options live in the config alone: ``spacy.load(path, config={"components": {"elmo": {...}}})`` changes them.
    Raises ElmoError for a value out of range.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[list[str]], list[Any]],
        name: str = "elmo",
        *,
        span_getter: SpanGetter,
        store: Store = "layers",
        dtype: Dtype = "float32",
        precision: Precision = "float32",
        state: Literal["zero", "warm"] | None = None,
        frozen: bool = True,
        lr_factor: float = 1.0,
        max_length: int = 512,
        cache_mb: int = 512,
        cache_words: int = CACHE_WORDS,
        text: TextForm = "orth",
        vectors: bool = False,
        cache_dir: str | Path | None = None,
        cache_disk_mb: int = CACHE_DISK_MB,
        lang: str | None = None,
    ) -> None:
        for option, value, allowed in (
            ("store", store, get_args(Store)),
            ("dtype", dtype, get_args(Dtype)),
            ("precision", precision, PRECISIONS),
            ("state", state, ("zero", "warm", None)),
        ):
            if value not in allowed:
                raise ElmoError(f"component '{name}': {option} is one of {allowed}, not {value!r}")
        if vectors and store == "none":
            raise ElmoError(f"component '{name}': vectors = true needs something on the Doc: set store to 'mean'")
        find_bilm(model)  # says so if it is another model
        register_extensions()
        self.vocab = vocab
        self.model = model
        self.name = name
        self.cfg: dict[str, Any] = {}
        self.lang: str = lang or vocab.lang or ""
        self.store = store
        self.vectors = vectors
        self.doc_layers = DocLayers(
            span_getter=span_getter,
            state=state,
            max_length=max_length,
            precision=precision,
            dtype=dtype,
            frozen=frozen,
            cache_mb=cache_mb,
            cache_words=cache_words,
            text=text,
            cache_dir=cache_dir,
            cache_disk_mb=cache_disk_mb,
        )
        set_lr_factor(model, lr_factor)
        allow_replacing(model, self.doc_layers, lr_factor)
        self.listener_map: dict[str, list[Model[Any, Any]]] = {}
        # Listeners that have asked for layers to train since the last update; None: this pipe is not being updated.
        self._asked: set[int] | None = None
        # What `finish_update` has passed back since the last update, which tells of it.
        self._passed_back = 0.0

    # Weights

    @property
    def bilm(self) -> BiLM | None:
        """The biLM, or None while there are no weights: the built-in ones come with the first use."""
        return find_bilm(self.model)

    @property
    def loaded_bilm(self) -> BiLM:
        """The biLM. While there is none, the built-in one of the pipeline's language is taken.

        Raises ElmoConfigError where there is none, naming the ways to bring weights; for a built-in one that is broken,
        offered by several packages, or of another shape than a listening component was initialized for; and in a child
        process that would take it to a GPU.
        """
        bilm = self.bilm
        if bilm is None:
            with _LOADING:
                if self.bilm is None:
                    # thinc's device is each thread's own: that of the pipeline counts. Weights may be trained later.
                    with config_errors(), use_ops(self.model.ops.name), torch.inference_mode(False):
                        self._take_builtin()
                bilm = self.bilm
            assert bilm is not None
        return bilm

    def _take_builtin(self) -> None:
        offered = builtin_model(self.lang)
        if offered is None:
            language = f"the language '{self.lang}'" if self.lang else "a pipeline without a language"
            raise ElmoConfigError(
                f"component '{self.name}' has no ELMo weights, and none are built in for {language} "
                f"({not_offered(self.lang)}). Load some with "
                f"nlp.get_pipe('{self.name}').load_weights(path), or set `weights` in "
                f"[initialize.components.{self.name}] of the config and call nlp.initialize(). (A component in "
                "frozen_components is not initialized: source it from a pipeline that has weights.)"
            )
        # Loading computes: torch has to be ready for it in a child process that has not computed yet.
        prepare_child_process(on_gpu=on_gpu())
        path = offered.path()
        logger.info(
            "Component '%s' takes the built-in weights '%s' of %s %s (%s)",
            self.name,
            offered.name,
            offered.package,
            offered.version,
            path,
        )
        with offered.named_in_errors():
            bilm = load_bilm(path)
        self.load_weights(bilm)

    @property
    def frozen(self) -> bool:
        """Whether the biLM stays as it is in training."""
        return self.doc_layers.frozen

    def set_frozen(self, frozen: bool) -> None:
        """Freeze the biLM, or let it learn, from the next update on. The component's config stays as it is."""
        self.doc_layers.set_frozen(self.bilm, frozen)
        if frozen:
            self._asked = None

    def load_weights(self, weights: str | Path | BiLM) -> None:
        """Take weights from what ``spacy_elmo.load_bilm`` reads (a path, a name of built-in ones), or a biLM.

        Raises WeightsError for what cannot be read, ElmoError where a listening component was initialized for another
        shape; the weights are then as before.
        """
        if not isinstance(weights, (str, Path, BiLM)):
            raise ElmoError(f"component '{self.name}': weights are a path or a BiLM, not {type(weights).__name__}")
        bilm = weights if isinstance(weights, BiLM) else load_bilm(weights)
        with _LOADING:
            for component, listener in self._listeners_by_component():
                set_widths(listener, bilm, component)
            self.doc_layers.discard()
            set_bilm(self.model, bilm)

    # spaCy's protocol of a component that others listen to

    @property
    def listeners(self) -> list[Model[Any, Any]]:
        """The listeners of all components."""
        return [listener for _, listener in self._listeners_by_component()]

    @property
    def listening_components(self) -> list[str]:
        """Names of the components that listen."""
        return list(self.listener_map)

    @property
    def mixes(self) -> list[Mix]:
        """What the layers weigh in each listener that is initialized: s_j and γ. ``mixes_of`` gives a pipeline's."""
        return [mix for component, several in self.listener_map.items() for mix in mixes_in(component, several)]

    def _listeners_by_component(self) -> list[tuple[str, Model[Any, Any]]]:
        return [(component, one) for component, several in self.listener_map.items() for one in several]

    def add_listener(self, listener: Model[Any, Any], component_name: str) -> None:
        """Add a listener of a later component."""
        listeners = self.listener_map.setdefault(component_name, [])
        if not any(listener is known for known in listeners):
            listeners.append(listener)

    def remove_listener(self, listener: Model[Any, Any], component_name: str) -> bool:
        """Remove a listener. RETURNS: whether it was there."""
        listeners = self.listener_map.get(component_name, [])
        kept = [known for known in listeners if known is not listener]
        if kept:
            self.listener_map[component_name] = kept
        else:
            self.listener_map.pop(component_name, None)
        return len(kept) < len(listeners)

    def find_listeners(self, component: Any) -> None:
        """Link the listeners in a later component's model that want this pipe, and tell them the widths."""
        model = getattr(component, "model", None)
        if not isinstance(model, Model):
            return
        for listener in listeners_in(model):
            if listener.attrs[SETTINGS].upstream not in ("*", self.name):
                continue
            before = connect(listener, self, component.name)
            if isinstance(before, Elmo) and before is not self:
                # "*" is the nearest pipe before: pipes are linked in order, so the last one keeps the listener.
                before.remove_listener(listener, component.name)
            self.add_listener(listener, component.name)
            # A listener that is set up keeps its widths: whether they fit is seen when it runs, because a pipe that
            # comes later may take it over now.
            if self.bilm is not None and not is_initialized(listener):
                set_widths(listener, self.bilm, component.name)

    def layers_for(
        self, docs: Sequence[Doc], *, is_train: bool, listener: Model[Any, Any] | None = None
    ) -> tuple[list[Any], Backprop]:
        """What a listener asks: the layers of Docs.

        listener: who asks, in training.
        RETURNS: (L + 1, n_tokens, 2P) of each Doc, from the Doc where it has them, else from what is kept, else
            computed; and a callback that takes a gradient of the same shape for each.
        """
        bilm = self.loaded_bilm
        if is_train:
            self.doc_layers.begin_training()
            if self._takes_gradients(listener):
                return self.doc_layers.begin_update(bilm, docs)
        version = bilm.version
        layers = [self.doc_layers.given(version, doc, stored(doc, self.name)) for doc in docs]
        missing = [i for i, array in enumerate(layers) if array is None]
        if missing:
            hold = self.store != "layers"
            computed = self.doc_layers.predict(bilm, [docs[i] for i in missing], hold=hold)
            for i, array in zip(missing, computed, strict=True):
                layers[i] = array
        return layers, ignore_gradient

    def _takes_gradients(self, listener: Model[Any, Any] | None) -> bool:
        """Whether the biLM learns in this update.

        It does from its own ``update`` on. A listener that asks again with no ``update`` of ours in between is in an
        update from which this pipe is excluded (frozen_components): nothing more is collected.
        """
        if self.frozen or self._asked is None:
            return False
        if id(listener) in self._asked:
            self._asked = None
            self._passed_back += self.doc_layers.flush()
            return False
        self._asked.add(id(listener))
        return True

    # Annotating

    def predict(self, docs: Iterable[Doc]) -> list[np.ndarray]:
        """The layers (L + 1, n_tokens, 2P) of each Doc, on the CPU."""
        docs = list(docs)
        # What is not kept on the Doc as layers, a listener will ask for.
        hold = self.store != "layers" and bool(self.listener_map)
        return self.doc_layers.predict(self.loaded_bilm, docs, hold=hold)

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[np.ndarray]) -> None:
        """Keep on each Doc what ``store`` says."""
        version = self.loaded_bilm.version
        given: set[int] = set()
        for doc, layers in zip(docs, scores, strict=True):
            if self.store == "none":
                drop(doc, self.name)
                continue
            if self.store == "mean":
                kept = layers.mean(axis=0, dtype=np.float32).astype(layers.dtype, copy=False)
            else:
                # What is on a Doc is its own: not the memo's, nor that of the same text elsewhere in the batch.
                kept = layers.copy() if self.doc_layers.keeps or id(layers) in given else layers
                given.add(id(layers))
                self.doc_layers.give(version, doc, kept)
            store_layers(doc, self.name, kept)
            if self.vectors:
                set_vector_hooks(doc, self.name)

    # Training

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        weights: Any = None,  # spaCy builds a schema from this signature, in which our types are unknown
    ) -> None:
        """Take weights before the components that listen are initialized.

        weights: ``[initialize.components.elmo] weights``: a path, or a block that makes a biLM
            (spacy-elmo.random_bilm.v1). None or "": keep those that are there, or take the built-in ones.
        Raises ElmoConfigError when there are none at all, or these cannot be taken.
        """
        if weights:
            with config_errors(f"[initialize.components.{self.name}] weights: "):
                self.load_weights(weights)
        bilm = self.loaded_bilm
        with config_errors():
            for component, listener in self._listeners_by_component():
                set_widths(listener, bilm, component)
        # The components that listen are initialized with the first training texts, which come again in every epoch.
        self.doc_layers.begin_training()

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Nothing of its own to learn: with ``frozen = false``, pass back what the listeners have sent since.

        Its loss is the sum of squares of all that was passed back since the last update.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        validate_examples(examples, "Elmo.update")
        self.doc_layers.begin_training()
        if not self.frozen:
            losses[self.name] += self._passed_back + self.doc_layers.flush()
            self._passed_back = 0.0
            self._asked = set()
            if sgd is not None:
                self.finish_update(sgd)
        return losses

    def get_loss(self, examples: Any, scores: Any) -> None:
        """There is none: gradients come from the listeners."""

    def finish_update(self, sgd: Optimizer) -> None:
        """Apply the gradients of all listeners; a frozen biLM stays as it is."""
        if not self.frozen:
            self._passed_back += self.doc_layers.flush()
            self.model.finish_update(sgd)

    def add_label(self, label: str) -> int:
        """There are no labels. Raises ElmoError."""
        raise ElmoError(f"component '{self.name}' has no labels")

    # Serialisation

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Elmo:
        """Load weights from ``to_bytes``. Listeners are told the widths when the pipeline is linked next.

        Raises WeightsError for bytes that are not those of a component `elmo`.
        """
        with self._loading("bytes"):
            super().from_bytes(bytes_data, exclude=exclude)
        return self

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Elmo:
        """Load weights from ``to_disk``. Raises WeightsError for a folder that is not that of a component `elmo`."""
        with self._loading(str(path)):
            super().from_disk(path, exclude=exclude)
        return self

    @contextmanager
    def _loading(self, source: str) -> Iterator[None]:
        self.doc_layers.discard()
        try:
            yield
        except Exception as error:
            # A broken file shows in msgpack, in thinc or in the file system: one error for them all.
            raise WeightsError(f"component '{self.name}' cannot be loaded from {source}: {error}") from error

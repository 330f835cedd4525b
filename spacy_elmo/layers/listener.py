"""The layer by which a component reads ELMo vectors: it pulls layers from its `elmo` pipe and mixes them itself.

Nothing is pushed and no batch is numbered: a listener asks for the layers of the Docs that it was given, so it works in
initialisation, training, evaluation and prediction alike, annotated Docs or not.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import spacy
from spacy.tokens import Doc
from thinc.api import Linear, Model, with_array
from thinc.types import Floats2d

from ..bilm import BiLM
from ..bilm.encode import CACHE_WORDS
from ..errors import ElmoError, NoSentencesError
from ..text_forms import TextForm
from .bilm_model import find_bilm, set_bilm, set_lr_factor
from .config_error import ElmoConfigError, config_errors, is_number
from .doc_layers import CACHE_DISK_MB, Backprop, DocLayers, ignore_gradient
from .scalar_mix import MIX_SETTINGS, ScalarMix_v1
from .span_getters import SpanGetter, rule_spans

LINK = "elmo_link"
SETTINGS = "elmo_settings"
PROJECTION = "elmo_projection"
DOC_LAYERS = "elmo_doc_layers"
# What a listener's config block says that the biLM's standalone form needs too.
KEPT_OPTIONS = ("mix", "elmo_dropout", "projection")


class Upstream(Protocol):
    """What a listener needs of its `elmo` pipe."""

    name: str

    @property
    def loaded_bilm(self) -> BiLM:
        """The biLM, or the built-in one; an error where there is none."""

    def layers_for(
        self, docs: Sequence[Doc], *, is_train: bool, listener: Model[Any, Any] | None = None
    ) -> tuple[list[Any], Backprop]:
        """Layers (L + 1, n_tokens, 2P) of each Doc, and a callback for their gradients."""


class Link:
    """A listener's way to its `elmo` pipe. It is set when the pipeline is put together and is in no file.

    It does not keep the pipe alive: a listener whose pipe was removed, or left behind in another pipeline, is connected
    to nothing, as it will be when it is loaded. A pickle does keep it: of the listening component alone too.
    A copy of a pipeline is linked to the copy's own `elmo`; a copy of the listener alone (spaCy makes one to rehearse)
    stays linked to the same one.

    fresh: set up, but not used since: what runs now may be the first pass that infers shapes.
    """

    def __init__(self, upstream: Upstream | None = None, component: str = "") -> None:
        self._upstream = None if upstream is None else weakref.ref(upstream)
        self._pickled: Upstream | None = None
        self.component = component
        self.fresh = False

    @property
    def upstream(self) -> Upstream | None:
        """The `elmo` pipe, if there is one."""
        return None if self._upstream is None else self._upstream()

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        upstream = self.upstream
        return Link(memo.get(id(upstream), upstream), self.component)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_upstream": None, "_pickled": self.upstream}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._upstream = None if self._pickled is None else weakref.ref(self._pickled)


@dataclass(frozen=True, kw_only=True)
class ListenerSettings:
    """What the config says of a listener, or of its standalone form.

    One object of no kind that thinc writes: a model's file would go over what ``spacy.load(path, config={...})`` says.
    """

    elmo_dropout: float
    upstream: str = "*"
    grad_factor: float = 1.0


@spacy.registry.architectures("spacy-elmo.ElmoListener.v1")
def ElmoListener_v1(
    *,
    upstream: str = "*",
    grad_factor: float = 1.0,
    mix: Model[list[Any], list[Floats2d]] | None = None,
    elmo_dropout: float = 0.5,
    projection: int | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Contextual vectors of an `elmo` pipe earlier in the pipeline, mixed by weights of its own: (n_tokens, 2P), or
    (n_tokens, projection).

    upstream (str): the name of the `elmo` pipe, or "*": the nearest one before.
    grad_factor (float): weighs this listener's gradient for the biLM against the other listeners'. 0: none.
    mix: a spacy-elmo.ScalarMix.v1. None: one with its defaults.
    elmo_dropout (float): share of the mixed vector's elements dropped in training (AllenNLP's place and default, 0.5).
        The rate is this one always: spaCy's own dropout schedule does not touch it.
    projection (int | None): width of a learned linear map of the mixed vector, after the dropout (AllenNLP's place).
        It has a bias, which is also what it makes of a white-space token's zeros. None: no map, width 2P.
    Raises ElmoError for a value out of range.
    """
    if not is_number(grad_factor):
        raise ElmoError(f"ElmoListener: grad_factor is at least 0, not {grad_factor!r}")
    return Model(
        "elmo_listener",
        forward,
        init=init,
        layers=[_checked_mix(mix, elmo_dropout), *_projection_layers(projection)],
        dims={"nO": projection},
        attrs={
            LINK: Link(),
            SETTINGS: ListenerSettings(elmo_dropout=elmo_dropout, upstream=upstream, grad_factor=grad_factor),
        },
    )


def _checked_mix(mix: Model[Any, Any] | None, elmo_dropout: float) -> Model[Any, Any]:
    if not is_number(elmo_dropout, below=1.0):
        raise ElmoError(f"elmo_dropout is at least 0 and below 1, not {elmo_dropout!r}")
    if mix is not None and mix.name != "scalar_mix":
        raise ElmoError(f"mix is a spacy-elmo.ScalarMix.v1, not the model '{mix.name}'")
    return ScalarMix_v1() if mix is None else mix


def _projection_layers(width: int | None) -> list[Model[Any, Any]]:
    if width is None:
        return []
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ElmoError(f"projection is a width of at least 1, or null for none, not {width!r}")
    projection: Model[Any, Any] = with_array(Linear(nO=width))
    projection.name = PROJECTION
    return [projection]


def _projection_of(listener: Model[Any, Any]) -> Model[Any, Any] | None:
    """The projection of a listener or its standalone form. (By name: thinc's copies of models lose references.)"""
    return next((layer for layer in listener.layers if layer.name == PROJECTION), None)


def listeners_in(model: Model[Any, Any]) -> Iterable[Model[list[Doc], list[Floats2d]]]:
    """The listeners in a model, however deep, in the order in which it runs them."""
    return [node for node in model.walk(order="dfs_pre") if LINK in node.attrs]


def standalone_in(model: object) -> list[tuple[DocLayers, BiLM | None]]:
    """The biLMs that a model has of its own (ElmoTok2Vec), however deep, each with what runs it; none for no model."""
    nodes = model.walk() if isinstance(model, Model) else []
    return [(node.attrs[DOC_LAYERS], find_bilm(node.layers[1])) for node in nodes if DOC_LAYERS in node.attrs]


def connect(listener: Model[Any, Any], upstream: Upstream, component: str) -> Upstream | None:
    """Link a component's listener to an `elmo` pipe. RETURNS: the pipe to which it was linked before, if any."""
    before = cast("Link", listener.attrs[LINK]).upstream
    listener.attrs[LINK] = Link(upstream, component)
    return before


def is_initialized(listener: Model[Any, Any]) -> bool:
    """Whether a listener has its mix, and so cannot change its widths."""
    return bool(listener.layers[0].has_param("scalars"))


def set_widths(listener: Model[Any, Any], bilm: BiLM, component: str) -> None:
    """Tell a listener the number of layers and the width. Raises ElmoError where it was initialized for others."""
    n_layers, width = bilm.config.n_layers + 1, bilm.config.width
    mix = listener.layers[0]
    fixed = mix.attrs[MIX_SETTINGS].weights
    if fixed is not None and len(fixed) != n_layers:
        raise ElmoError(
            f"component '{component}' mixes {len(fixed)} layers by fixed weights, the ELMo weights have {n_layers}: "
            "give the ScalarMix one weight a layer"
        )
    known = (mix.maybe_get_dim("nL"), mix.maybe_get_dim("nO"))
    if is_initialized(listener) and known != (n_layers, width):
        raise ElmoError(
            f"component '{component}' was initialized for ELMo weights with {known[0]} layers of width {known[1]}; "
            f"these have {n_layers} layers of width {width}. Use weights of that shape, or take '{component}' out of "
            "the pipeline, add it again and initialize it."
        )
    mix.set_dim("nL", n_layers, force=True)
    projection = _projection_of(listener)
    ends = [(listener, "nO")] if projection is None else [(projection, "nI"), (projection.layers[0], "nI")]
    for node, dim in ((mix, "nI"), (mix, "nO"), *ends):
        node.set_dim(dim, width, force=True)


def init(model: Model[list[Doc], list[Floats2d]], X: list[Doc] | None = None, Y: Any = None) -> None:
    """Take the widths from the biLM and allocate mix and projection."""
    link = cast("Link", model.attrs[LINK])
    with config_errors():
        set_widths(model, _upstream(model).loaded_bilm, link.component)
    _allocate(model)
    link.fresh = True


def _allocate(listener: Model[Any, Any]) -> None:
    listener.layers[0].initialize()
    projection = _projection_of(listener)
    if projection is not None:
        projection.initialize()


def forward(
    model: Model[list[Doc], list[Floats2d]], docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    """Pull the Docs' layers, mix, drop out, project."""
    upstream = _upstream(model)
    component = model.attrs[LINK].component
    # The weights may have changed since the pipeline was linked.
    set_widths(model, upstream.loaded_bilm, component)
    if not is_initialized(model):
        raise ElmoError(
            f"component '{component}' is not initialized: call nlp.initialize() before it runs or is updated"
        )
    try:
        layers, backprop_layers = upstream.layers_for(docs, is_train=is_train, listener=model)
    except NoSentencesError:
        # Components infer their shapes from Docs that no earlier component has run on. Only the shapes count then.
        if is_train or not model.attrs[LINK].fresh:
            raise
        return [model.ops.alloc2f(len(doc), model.get_dim("nO")) for doc in docs], lambda d_outputs: []
    model.attrs[LINK].fresh = False
    return mix_layers(model, layers, backprop_layers, is_train)


def mix_layers(
    model: Model[Any, Any], layers: Sequence[Any], backprop_layers: Backprop, is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    """What a listener and its standalone form share: the mix, then dropout, then the projection."""
    ops = model.ops
    settings = cast("ListenerSettings", model.attrs[SETTINGS])
    layers = [ops.asarray3f(x, dtype="f") for x in layers]
    outputs, backprop_mix = model.layers[0](layers, is_train)
    rate = settings.elmo_dropout if is_train else 0.0
    masks = [ops.get_dropout_mask(y.shape, rate) for y in outputs] if rate else None
    if masks is not None:
        outputs = [y * mask for y, mask in zip(outputs, masks, strict=True)]
    projection = _projection_of(model) if outputs else None
    if projection is not None:
        outputs, backprop_projection = projection(outputs, is_train)

    def backprop(d_outputs: list[Floats2d]) -> list[Doc]:
        if projection is not None:
            d_outputs = backprop_projection(d_outputs)
        if masks is not None:
            d_outputs = [d * mask for d, mask in zip(d_outputs, masks, strict=True)]
        factor = settings.grad_factor
        wanted = bool(factor) and backprop_layers is not ignore_gradient
        d_layers = backprop_mix(d_outputs, to_layers=wanted)
        if wanted:
            backprop_layers(d_layers if factor == 1.0 else [d * factor for d in d_layers])
        return []

    return outputs, backprop


def _upstream(model: Model[Any, Any]) -> Upstream:
    upstream = cast("Link", model.attrs[LINK]).upstream
    wanted = model.attrs[SETTINGS].upstream
    if upstream is None or wanted not in ("*", upstream.name):  # it may have got another name since
        which = "no `elmo` component" if wanted == "*" else f"no `elmo` component named '{wanted}'"
        raise ElmoError(
            f"an ElmoListener is connected to nothing: there is {which} before its component in the pipeline. "
            "Add one (nlp.add_pipe('elmo', first=True)), or set the listener's `upstream` to its name."
        )
    return upstream


# A listener cut loose from its pipe (nlp.replace_listeners): the biLM inside the component that reads it.


@spacy.registry.architectures("spacy-elmo.ElmoTok2Vec.v1")
def ElmoTok2Vec_v1(
    *,
    bilm: Model[list[list[str]], list[Any]],
    mix: Model[list[Any], list[Floats2d]] | None = None,
    elmo_dropout: float = 0.5,
    projection: int | None = None,
    span_getter: SpanGetter | None = None,
    state: Literal["zero", "warm"] | None = None,
    max_length: int = 512,
    precision: Literal["float32", "bfloat16"] = "float32",
    dtype: Literal["float32", "float16"] = "float32",
    frozen: bool = True,
    lr_factor: float = 1.0,
    cache_mb: int = 512,
    cache_words: int = CACHE_WORDS,
    text: TextForm = "orth",
    cache_dir: str | None = None,
    cache_disk_mb: int = CACHE_DISK_MB,
) -> Model[list[Doc], list[Floats2d]]:
    """The same vectors as ElmoListener.v1, from a biLM of its own inside the component: no `elmo` pipe is needed.

    This is what nlp.replace_listeners puts in a listener's place. bilm: a spacy-elmo.BiLM.v1. mix, elmo_dropout,
    projection: as in ElmoListener.v1; the others: as in the `elmo` component.
    """
    doc_layers = DocLayers(
        span_getter=span_getter or rule_spans(),
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
    set_lr_factor(bilm, lr_factor)
    mixing = [_checked_mix(mix, elmo_dropout), *_projection_layers(projection)]
    return _standalone_model(bilm, mixing, elmo_dropout, doc_layers)


def allow_replacing(bilm: Model[Any, Any], doc_layers: DocLayers, lr_factor: float) -> None:
    """Give an `elmo` pipe's model the two callbacks by which nlp.replace_listeners asks for the standalone form."""
    replacing = _Replacing(doc_layers, lr_factor)
    bilm.attrs["replace_listener"] = replacing.model
    bilm.attrs["replace_listener_cfg"] = replacing.config


class _Replacing:
    """Answers nlp.replace_listeners: first with a config block for each listener of a component, then with the models.

    spaCy does not say for which listener it wants a block, so the listener's own settings are added once the blocks
    stand in their places.
    """

    def __init__(self, doc_layers: DocLayers, lr_factor: float) -> None:
        self.doc_layers = doc_layers
        self.lr_factor = lr_factor
        # (the tok2vec's config, a copy of it with the listener still in place, the new block)
        self._unfinished: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []

    def config(self, elmo_model_cfg: dict[str, Any], listening_cfg: dict[str, Any]) -> dict[str, Any]:
        """The block of a standalone form: the biLM's, the pipe's options and, later, the listener's."""
        options = {**self.doc_layers.config(), "lr_factor": self.lr_factor}
        block = {"@architectures": "spacy-elmo.ElmoTok2Vec.v1", "bilm": elmo_model_cfg, **options}
        self._unfinished.append((listening_cfg, copy.deepcopy(listening_cfg), block))
        return block

    def model(self, bilm: Model[Any, Any], listener: Model[Any, Any], elmo: Any) -> Model[Any, Any]:
        """The standalone form of a listener, as learned so far. Raises ElmoError without any weights."""
        for now, before, block in self._unfinished:
            replaced = before if _is_listener(before) else _in_place_of(block, now, before)
            block.update({name: replaced[name] for name in KEPT_OPTIONS if name in replaced})
        self._unfinished = []
        loaded = elmo.loaded_bilm
        if find_bilm(bilm) is None:  # copied before the built-in one came
            set_bilm(bilm, copy.deepcopy(loaded))
        for name in ("replace_listener", "replace_listener_cfg"):
            bilm.attrs.pop(name, None)
        mixing = [layer.copy() for layer in listener.layers]
        elmo_dropout = listener.attrs[SETTINGS].elmo_dropout
        model = _standalone_model(bilm, mixing, elmo_dropout, copy.deepcopy(elmo.doc_layers))
        if _projection_of(model) is None:
            model.set_dim("nO", loaded.config.width)
        return model


def _is_listener(config: dict[str, Any]) -> bool:
    return str(config.get("@architectures", "")).startswith("spacy-elmo.ElmoListener.")


def _in_place_of(block: dict[str, Any], now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The part of `before` in whose place `block` stands now; empty where it stands nowhere."""
    for name, part in before.items():
        if isinstance(part, dict) and isinstance(now.get(name), dict):
            found = part if now[name] is block else _in_place_of(block, now[name], part)
            if found:
                return found
    return {}


def _standalone_model(
    bilm: Model[Any, Any], mixing: list[Model[Any, Any]], elmo_dropout: float, doc_layers: DocLayers
) -> Model[list[Doc], list[Floats2d]]:
    """mixing: a listener's layers, the mix and perhaps the projection."""
    find_bilm(bilm)  # says so if it is another model
    mix, *projection = mixing
    return Model(
        "elmo_tok2vec",
        _standalone_forward,
        init=_standalone_init,
        layers=[mix, bilm, *projection],
        dims={"nO": projection[0].get_dim("nO") if projection else None},
        attrs={DOC_LAYERS: doc_layers, SETTINGS: ListenerSettings(elmo_dropout=elmo_dropout)},
    )


def _own_bilm(model: Model[Any, Any]) -> BiLM:
    """The biLM inside. Raises ElmoConfigError while it has no weights, which only a saved pipeline brings."""
    bilm = find_bilm(model.layers[1])
    if bilm is None:
        raise ElmoConfigError(
            "a component with a biLM of its own (spacy-elmo.ElmoTok2Vec.v1, what nlp.replace_listeners leaves) has no "
            "ELMo weights, and a config cannot name any for it. Put `source = <the saved pipeline>` in the place of "
            "the component's block, which takes it with its weights; or put a component `elmo` before it, and "
            "spacy-elmo.ElmoListener.v1 in the place of spacy-elmo.ElmoTok2Vec.v1."
        )
    return bilm


def _standalone_init(model: Model[list[Doc], list[Floats2d]], X: Any = None, Y: Any = None) -> None:
    with config_errors():
        set_widths(model, _own_bilm(model), "elmo_tok2vec")
    if not is_initialized(model):
        _allocate(model)


def _standalone_forward(
    model: Model[list[Doc], list[Floats2d]], docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    doc_layers = cast("DocLayers", model.attrs[DOC_LAYERS])
    bilm = _own_bilm(model)
    if not is_train:
        return mix_layers(model, doc_layers.predict(bilm, docs), ignore_gradient, is_train)
    layers, backprop_layers = doc_layers.begin_update(bilm, docs)
    if backprop_layers is ignore_gradient:
        return mix_layers(model, layers, ignore_gradient, is_train)

    def backprop_through(d_layers: Sequence[Any]) -> None:
        backprop_layers(d_layers)
        doc_layers.flush()

    return mix_layers(model, layers, backprop_through, is_train)

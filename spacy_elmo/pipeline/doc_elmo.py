"""What `doc._.elmo`, `token._.elmo` and `span._.elmo` give, and where it is kept.

Each `elmo` pipe leaves one plain array in `doc.user_data[("elmo", pipe_name)]`: (L+1, n_tokens, 2P) with
`store = "layers"`, (n_tokens, 2P) with `store = "mean"`, in float32 or float16, and nothing with `store = "none"`.
A plain array needs no code of ours to be serialised: it is in `Doc.to_bytes`, `DocBin(store_user_data=True)`, pickle
and `doc.copy()`. It is not in `span.as_doc()`, `Doc.from_docs` (spaCy drops it with warning W102) and a DocBin with its
defaults. One row belongs to one token, so a Doc that is retokenised afterwards has rows of other tokens: reading them
is an error wherever the counts differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from spacy.tokens import Doc, Span, Token

from spacy_elmo.errors import ElmoError

EXTENSION = "elmo"
_KEY = "elmo"


class DocElmo:
    """The vectors that one `elmo` pipe left on a Doc: what `doc._.elmo` gives. A view, made anew at each access.

    name (str): Name of the pipe.
    """

    __slots__ = ("_doc", "name")

    def __init__(self, doc: Doc, name: str) -> None:
        self._doc = doc
        self.name = name

    @property
    def layers(self) -> np.ndarray:
        """All layers, the token encoder's first: (L+1, n_tokens, 2P), float32 or float16 as stored, not a copy.

        RAISES (ElmoError): If only the mean is stored, or the Doc was retokenised.
        """
        array = _checked_array(self._doc, self.name)
        if array.ndim == 2:
            raise ElmoError(
                f"doc._.elmo: pipe '{self.name}' keeps only the mean of the layers. Set `store = \"layers\"` in "
                f"[components.{self.name}], or load the pipeline with "
                f'spacy.load(path, config={{"components.{self.name}.store": "layers"}}).'
            )
        return array

    @property
    def mean(self) -> np.ndarray:
        """Mean over the layers: (n_tokens, 2P), float32, zeros for white-space tokens.

        RAISES (ElmoError): If the Doc was retokenised.
        """
        return _mean_over_layers(_checked_array(self._doc, self.name))

    def of(self, name: str) -> DocElmo:
        """The same for another `elmo` pipe.

        name (str): Name of that pipe.
        RETURNS (DocElmo): Its vectors.
        RAISES (ElmoError): If the Doc has none from a pipe of that name.
        """
        if (_KEY, name) not in self._doc.user_data:
            there = ", ".join(f"'{other}'" for other in stored_names(self._doc))
            raise ElmoError(f"doc._.elmo: nothing from a pipe named '{name}' on this Doc. There is: {there or 'none'}.")
        return DocElmo(self._doc, name)

    def __repr__(self) -> str:
        array = _data(self._doc).get((_KEY, self.name))
        stored = "nothing stored" if array is None else f"{array.shape}, {array.dtype}"
        return f"DocElmo('{self.name}': {stored})"


def store(doc: Doc, pipe_name: str, array: np.ndarray) -> None:
    """Keep a pipe's vectors on a Doc. From now on it is the Doc's last `elmo` pipe.

    doc (Doc): The Doc.
    pipe_name (str): The pipe's name.
    array (ndarray): (L+1, n_tokens, 2P) or (n_tokens, 2P), float32 or float16. Kept as it is: give each Doc an array
        of its own, as a view would hold the memory of all it was cut from.
    RAISES (ElmoError): For another shape or dtype.
    """
    if array.dtype not in (np.float32, np.float16):
        raise ElmoError(f"'{pipe_name}': vectors to store must be float32 or float16, not {array.dtype}")
    if array.ndim not in (2, 3) or array.shape[-2] != len(doc):
        raise ElmoError(f"'{pipe_name}': vectors of shape {array.shape} do not fit a Doc of {len(doc)} tokens")
    # The order of keys says which pipe came last, so a Doc that is run again needs its key moved to the end.
    drop(doc, pipe_name)
    _data(doc)[(_KEY, pipe_name)] = array


def stored(doc: Doc, pipe_name: str) -> np.ndarray | None:
    """What a pipe left on a Doc, as it is: None where there is nothing.

    doc (Doc): The Doc.
    pipe_name (str): The pipe's name.
    RETURNS (ndarray | None): (L+1, n, 2P) or (n, 2P). n may be another number than the Doc's tokens by now.
    """
    return _data(doc).get((_KEY, pipe_name))


def drop(doc: Doc, pipe_name: str) -> None:
    """Remove what one pipe left on a Doc.

    doc (Doc): The Doc.
    pipe_name (str): The pipe's name.
    """
    _data(doc).pop((_KEY, pipe_name), None)


def clear(doc: Doc) -> None:
    """Remove from a Doc all vectors of `elmo` pipes, and the vector hooks that read them.

    doc (Doc): The Doc.
    """
    for name in stored_names(doc):
        drop(doc, name)
    # New dicts: `span.as_doc()` shares them with the Doc it came from.
    doc.user_hooks = _without_ours(doc.user_hooks)
    doc.user_token_hooks = _without_ours(doc.user_token_hooks)
    doc.user_span_hooks = _without_ours(doc.user_span_hooks)


def stored_names(doc: Doc) -> list[str]:
    """Names of the `elmo` pipes with vectors on a Doc, in the order in which they ran.

    doc (Doc): The Doc.
    RETURNS (list[str]): The names.
    """
    return [key[1] for key in doc.user_data if _is_ours(key)]


def register_extensions() -> None:
    """Make `doc._.elmo`, `token._.elmo` and `span._.elmo` available. To call it again does nothing.

    Every `elmo` component calls it when it is made. Call it yourself to read vectors from a DocBin without one.

    RAISES (ElmoError): If an extension of that name exists that is not from this package.
    """
    extensions: list[tuple[Any, Callable[..., Any], Callable[..., None]]] = [
        (Doc, _get_doc, _set_doc),
        (Token, _get_token, _refuse_set),
        (Span, _get_span, _refuse_set),
    ]
    for owner, getter, _ in extensions:
        if owner.has_extension(EXTENSION):
            existing = owner.get_extension(EXTENSION)[2]
            # By module, not identity: a module that was reloaded has new functions.
            if getattr(existing, "__module__", None) != getter.__module__:
                kind = owner.__name__
                raise ElmoError(
                    f"{kind}._.{EXTENSION} is an extension from elsewhere, and `elmo` components need the name. "
                    f'Name that one otherwise, or drop it with {kind}.remove_extension("{EXTENSION}").'
                )
    for owner, getter, setter in extensions:
        owner.set_extension(EXTENSION, getter=getter, setter=setter, force=True)


def set_vector_hooks(doc: Doc, pipe_name: str) -> None:
    """Let `vector`, `vector_norm`, `has_vector` and `similarity` of a Doc, its spans and tokens use a pipe's vectors.

    A token's vector is its mean over the layers, a span's and a Doc's the mean of their tokens': float32 (2P,).
    Similarity is the cosine; 0.0 if a vector is zero.

    spaCy carries hooks over in `doc.copy()` and pickle, but not in `to_bytes` or DocBin, and so not back from the
    processes of `nlp.pipe(n_process=2)`. Call this function on such Docs: the vectors themselves are there.

    doc (Doc): The Doc.
    pipe_name (str): Name of the pipe whose vectors they use.
    RAISES (ElmoError): If the Doc has no vectors from it.
    """
    if (_KEY, pipe_name) not in doc.user_data:
        raise ElmoError(_nothing_stored(pipe_name))
    hooks: dict[str, Callable[..., Any]] = {
        "vector": partial(_vector, pipe_name),
        "has_vector": partial(_has_vector, pipe_name),
        "similarity": partial(_similarity, pipe_name),
    }
    norm = {"vector_norm": partial(_vector_norm, pipe_name)}
    doc.user_hooks = {**doc.user_hooks, **hooks, **norm}
    doc.user_token_hooks = {**doc.user_token_hooks, **hooks, **norm}
    # None for a span's norm: spaCy 3 calls the "vector" hook in its place. Without one it takes the norm of `vector`.
    doc.user_span_hooks = {**doc.user_span_hooks, **hooks}


def _data(doc: Doc) -> dict[Any, Any]:
    return doc.user_data  # spaCy's stub knows only str as keys; its own extensions use tuples


def _is_ours(key: object) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and key[0] == _KEY


def _last_name(doc: Doc) -> str | None:
    return next((key[1] for key in reversed(doc.user_data) if _is_ours(key)), None)


def _checked_array(doc: Doc, name: str) -> np.ndarray:
    # Checked here and not when the view is made: `doc_cleaner` makes a view before it clears.
    array = stored(doc, name)
    if array is None:
        raise ElmoError(_nothing_stored(name))
    if array.shape[-2] != len(doc):
        raise ElmoError(
            f"'{name}' left {array.shape[-2]} rows on a Doc that now has {len(doc)} tokens: it was retokenised, or "
            f"copied in part by span.as_doc(copy_user_data=True). Put components that merge or split tokens before "
            f"'{name}', or run '{name}' on the Doc again."
        )
    return array


def _nothing_stored(name: str) -> str:
    return (
        f"no vectors from the pipe '{name}' on this Doc. Run the pipe on it, with `store = \"layers\"` or "
        f'`store = "mean"` in [components.{name}]; they are not in span.as_doc(), Doc.from_docs or a DocBin without '
        "store_user_data=True."
    )


def _mean_over_layers(array: np.ndarray) -> np.ndarray:
    if array.ndim == 3:
        return array.mean(axis=0, dtype=np.float32)  # dtype: float16 sums would lose digits
    return array.astype(np.float32, copy=False)


def _token_vector(token: Token, name: str) -> np.ndarray:
    return _mean_over_layers(_checked_array(token.doc, name)[..., token.i, None, :])[0]


def _span_vector(doc: Doc, start: int, end: int, name: str) -> np.ndarray:
    rows = _mean_over_layers(_checked_array(doc, name)[..., start:end, :])
    if len(rows) == 0:
        return np.zeros(rows.shape[1], dtype=np.float32)
    return rows.mean(axis=0)


def _get_doc(doc: Doc) -> DocElmo | None:
    """`doc._.elmo`: the vectors of the Doc's last `elmo` pipe; None where there are none.

    doc (Doc): The Doc.
    RETURNS (DocElmo | None): Its vectors.
    """
    name = _last_name(doc)
    return None if name is None else DocElmo(doc, name)


def _set_doc(doc: Doc, value: None) -> None:
    """`doc._.elmo = None` removes the vectors of all `elmo` pipes.

    doc (Doc): The Doc.
    value (None): None.
    RAISES (ElmoError): For any other value.
    """
    if value is not None:
        raise ElmoError("doc._.elmo can only be set to None, which removes the vectors; the `elmo` component sets them")
    clear(doc)


def _get_token(token: Token) -> np.ndarray | None:
    """`token._.elmo`: mean over the layers of the last `elmo` pipe.

    token (Token): The token.
    RETURNS (ndarray | None): (2P,) float32, zeros for a white-space token; None where nothing is stored.
    RAISES (ElmoError): If the Doc was retokenised.
    """
    name = _last_name(token.doc)
    return None if name is None else _token_vector(token, name)


def _get_span(span: Span) -> np.ndarray | None:
    """`span._.elmo`: mean over the layers of the last `elmo` pipe, then over the span's tokens.

    The plain mean of `token._.elmo`, as `span.vector` is of `token.vector` in spaCy: white-space tokens count as zeros.

    span (Span): The span.
    RETURNS (ndarray | None): (2P,) float32, zeros for an empty span; None where nothing is stored.
    RAISES (ElmoError): If the Doc was retokenised.
    """
    name = _last_name(span.doc)
    return None if name is None else _span_vector(span.doc, span.start, span.end, name)


def _refuse_set(obj: Token | Span, value: object) -> None:
    # Without a setter spaCy would take the value and never give it back.
    raise ElmoError(f"{type(obj).__name__.lower()}._.elmo cannot be set: it is read from the vectors of the Doc")


def _without_ours(hooks: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    ours = (_vector, _vector_norm, _has_vector, _similarity)
    return {name: hook for name, hook in hooks.items() if not (isinstance(hook, partial) and hook.func in ours)}


# The hooks are partials of functions of this module, so that a Doc with hooks can be pickled.


def _vector(name: str, obj: Doc | Span | Token) -> np.ndarray:
    if isinstance(obj, Token):
        return _token_vector(obj, name)
    if isinstance(obj, Span):
        return _span_vector(obj.doc, obj.start, obj.end, name)
    return _span_vector(obj, 0, len(obj), name)


def _vector_norm(name: str, obj: Doc | Token) -> float:
    return float(np.linalg.norm(_vector(name, obj)))


def _has_vector(name: str, obj: Doc | Span | Token) -> bool:
    doc = obj.doc
    return (_KEY, name) in doc.user_data and bool(_vector(name, obj).any())


def _similarity(name: str, obj: Doc | Span | Token, other: Any) -> float:
    # What `other` is compared by: this pipe's vectors if it has some (with or without hooks), else what spaCy gives.
    there = (_KEY, name) in getattr(getattr(other, "doc", None), "user_data", {})
    mine, theirs = _vector(name, obj), _vector(name, other) if there else other.vector
    if mine.shape != theirs.shape:
        raise ElmoError(
            f"similarity: vectors of '{name}' have width {mine.shape[0]}, those of the other {type(other).__name__} "
            f"{theirs.shape[0]}. Run the same pipeline on both."
        )
    norms = float(np.linalg.norm(mine)) * float(np.linalg.norm(theirs))
    return float(np.dot(mine, theirs)) / norms if norms > 0 else 0.0

"""ELMo in a task's own tok2vec, as the paper uses it: beside the embedding, beside the encoder's output, or both."""

from __future__ import annotations

from collections.abc import Callable

import spacy
from spacy.tokens import Doc
from thinc.api import Maxout, Model, chain, concatenate, with_array
from thinc.layers.chain import forward as forward_chain
from thinc.layers.chain import init as init_chain
from thinc.types import Floats2d

from ..errors import ElmoError

Tok2Vec = Model[list[Doc], list[Floats2d]]


@spacy.registry.architectures("spacy-elmo.Tok2VecWithElmo.v1")
def Tok2VecWithElmo_v1(
    *,
    embed: Model[list[Doc], list[Floats2d]],
    elmo: Model[list[Doc], list[Floats2d]] | None,
    encode: Model[list[Floats2d], list[Floats2d]],
    elmo_output: Model[list[Doc], list[Floats2d]] | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """[x_k; ELMo_k] into the task's encoder, and [h_k; ELMo_k] after it (Peters et al., 2018, section 3.3).

    embed: any of spaCy's embeddings, e.g. spacy.MultiHashEmbed.v2. encode: any of spaCy's encoders, e.g.
        spacy.MaxoutWindowEncoder.v2; its width is the width of the result.
    elmo: a spacy-elmo.ElmoListener.v1, whose vector stands beside the embedding's x_k. None: the embedding goes to the
        encoder alone and has its width.
    elmo_output: another one, with a mix of its own, whose vector stands beside the encoder's h_k. None: the result is
        the encoder's.
    Each pair is reduced to the encoder's width by a Maxout (3 pieces) with layer normalisation, so its halves go on on
    one scale.

    The model maps Docs to (n_tokens, width) each. Raises ElmoError for an encoder that does not tell its width or has
    none, and where there is no listener at all.
    """
    if not encode.has_dim("nO"):
        raise ElmoError(
            f"Tok2VecWithElmo: the encoder '{encode.name}' does not tell its width (a spacy.TorchBiLSTMEncoder.v1 of "
            "depth 0 has none)"
        )
    if elmo is None and elmo_output is None:
        raise ElmoError("Tok2VecWithElmo: neither `elmo` nor `elmo_output`: without ELMo, take spacy.Tok2Vec.v2")
    width = encode.get_dim("nO")
    if width < 1:
        raise ElmoError(f"Tok2VecWithElmo: the encoder's width is at least 1, not {width}")
    read = embed if elmo is None else _reduced(embed, elmo, width)
    model = _safe_chain(read, encode, width)
    if elmo_output is not None:
        model = _safe_chain(concatenate(model, elmo_output), _reduction(width), width)
    # The names of spaCy's Tok2Vec.
    model.set_ref("embed", read)
    model.set_ref("encode", encode)
    return model


def _reduction(width: int) -> Model[list[Floats2d], list[Floats2d]]:
    reduce: Model[Floats2d, Floats2d] = Maxout(nO=width, nI=None, nP=3, dropout=0.0, normalize=True)
    return with_array(reduce)


def _reduced(embed: Tok2Vec, elmo: Tok2Vec, width: int) -> Tok2Vec:
    """Two tok2vecs side by side, reduced to one width."""
    both: Tok2Vec = chain(concatenate(embed, elmo), _reduction(width))
    both.set_dim("nO", width)
    return both


def _safe_chain(first: Tok2Vec, second: Model[list[Floats2d], list[Floats2d]], width: int) -> Tok2Vec:
    """thinc's chain of two, also for Docs without any token."""
    return Model(f"{first.name}>>{second.name}", forward, init=init_chain, layers=[first, second], dims={"nO": width})


def forward(
    model: Tok2Vec, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    """Embed, encode. Without any token there is nothing to do, and thinc's layers could not do it."""
    if not any(len(doc) for doc in docs):
        return [model.ops.alloc2f(0, model.get_dim("nO")) for _ in docs], lambda d_outputs: []
    return forward_chain(model, docs, is_train)

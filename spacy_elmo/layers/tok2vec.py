"""ELMo beside a task's own embedding, as the paper uses it: [x_k ; ELMo_k] into the task's encoder (section 3.3)."""

from __future__ import annotations

import spacy
from spacy.ml.models.tok2vec import build_Tok2Vec_model
from spacy.tokens import Doc
from thinc.api import Maxout, Model, chain, concatenate, with_array
from thinc.types import Floats2d


@spacy.registry.architectures("spacy-elmo.Tok2VecWithElmo.v1")
def Tok2VecWithElmo_v1(
    *,
    embed: Model[list[Doc], list[Floats2d]],
    elmo: Model[list[Doc], list[Floats2d]],
    encode: Model[list[Floats2d], list[Floats2d]],
) -> Model[list[Doc], list[Floats2d]]:
    """Concatenate a word's own embedding and its ELMo vector, reduce to the encoder's width, encode.

    embed: any of spaCy's embeddings, e.g. spacy.MultiHashEmbed.v2. elmo: a spacy-elmo.ElmoListener.v1.
    encode: any of spaCy's encoders, e.g. spacy.MaxoutWindowEncoder.v2; its width is the width of the result.
    The reduction is a Maxout (3 pieces) with layer normalisation, so both halves enter the encoder on one scale.
    """
    width = encode.get_dim("nO")
    reduce: Model[Floats2d, Floats2d] = Maxout(nO=width, nI=None, nP=3, dropout=0.0, normalize=True)
    both: Model[list[Doc], list[Floats2d]] = chain(concatenate(embed, elmo), with_array(reduce))
    both.set_dim("nO", width)
    return build_Tok2Vec_model(embed=both, encode=encode)

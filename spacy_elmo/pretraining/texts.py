"""Documents as plain data, which can be sent to another process, and the pipeline that tokenises them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import get_package_path, is_package, load_config

from ..blank_pipeline import blank_pipeline
from ..errors import CorpusError, ElmoError, PretrainingError
from .config import NlpSettings

# A document as text; or as tokens (white space among them) that are kept as they are; or, under the key "sentences", as
# sentences of either kind, which are not split any further. A Doc never leaves its process.
Text = str | list[str] | dict[str, list[str | list[str]]] | Doc
SENTENCES = "sentences"

# Lexemes. What a pipeline has met stays in its memory, about 300 bytes each: past so many another one goes on.
_MOST_LEXEMES = 200_000
_QUOTED = 60


def pipeline(settings: NlpSettings) -> Language:
    """The pipeline that [nlp] of a config describes. Raises PretrainingError if it does not work."""
    if settings.pipeline is None:
        try:
            return blank_pipeline(settings.lang, settings.tokenizer)
        except ElmoError as error:
            raise PretrainingError(str(error)) from error
    if settings.tokenizer is not None:
        raise PretrainingError("[nlp] has both a pipeline and a tokenizer: a pipeline brings its own. Remove one")
    nlp = _saved_pipeline(settings.pipeline)
    if nlp.lang != settings.lang:
        raise PretrainingError(
            f"nlp.lang is {settings.lang!r}, but the pipeline {settings.pipeline!r} is of {nlp.lang!r}: "
            f"set nlp.lang to {nlp.lang!r}"
        )
    return nlp


def _saved_pipeline(name: str) -> Language:
    """A pipeline's tokenizer and vocab: its components and word vectors are left on the disk."""
    try:
        if is_package(name):
            package = get_package_path(name)
            configs = sorted(package.glob("*/config.cfg"))
            if not configs:
                raise OSError(f"no config.cfg in {package}")
            components = load_config(configs[0]).get("components", {})
        else:
            components = load_config(f"{name}/config.cfg").get("components", {})
        nlp = spacy.load(name, exclude=[*components, "vectors"])
        nlp.make_doc("a")
    except Exception as error:  # anybody's pipeline
        raise PretrainingError(f"nlp.pipeline: {name!r} cannot be loaded: {error}") from error
    return nlp


def texts_of(reader: Callable[[Language], Iterator[Doc]], nlp: Language) -> Iterator[Text]:
    """What a reader reads, untokenised where it can: a reader with a method ``texts(nlp) -> Iterator[Text]``.

    Text and tokens are cheap to read and can be tokenised by other processes; Docs of other readers cannot.
    """
    texts = getattr(reader, "texts", None)
    return reader(nlp) if texts is None else texts(nlp)


def made_doc(text: Text, nlp: Language) -> Doc:
    """The Doc of a document. Raises CorpusError, quoting the text, if the tokenizer fails."""
    if isinstance(text, Doc):
        return text
    if isinstance(text, list):
        return Doc(nlp.vocab, words=[token for token in text if token])
    if isinstance(text, dict):
        sentences = [[token.text for token in made_doc(sentence, nlp)] for sentence in text[SENTENCES]]
        starts: list[bool | int | None] = [index == 0 for words in sentences for index in range(len(words))]
        return Doc(nlp.vocab, words=[word for words in sentences for word in words], sent_starts=starts)
    try:
        return nlp.make_doc(text)
    except Exception as error:  # tokenizers may be anybody's
        raise CorpusError(f"the tokenizer failed on the text that begins {text[:_QUOTED]!r}: {error!r}") from error


def full_text(text: Text) -> str:
    """The text of a document; of tokens, with a space after each."""
    if isinstance(text, Doc):
        return text.text
    if isinstance(text, dict):
        return "\n".join(map(full_text, text[SENTENCES]))
    return text if isinstance(text, str) else "".join(f"{token} " for token in text if token)


class Tokenizing:
    """Makes Docs with pipelines whose memory stays small: one that has met many words gives way to a new one."""

    def __init__(self, make_nlp: Callable[[], Language]) -> None:
        self._make_nlp = make_nlp
        self._nlp: Language | None = None

    def docs(self, texts: Sequence[Text]) -> Iterator[Doc]:
        """The Docs of some documents, in order. RAISES: CorpusError if the tokenizer fails."""
        for text in texts:
            if isinstance(text, Doc):
                yield text
                continue
            if self._nlp is None or len(self._nlp.vocab) > _MOST_LEXEMES:
                self._nlp = self._make_nlp()
            yield made_doc(text, self._nlp)

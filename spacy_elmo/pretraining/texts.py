"""Documents as plain data, which can be sent to another process, and the pipeline that tokenises them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import spacy
from spacy.language import Language
from spacy.tokens import Doc

from ..errors import CorpusError, PretrainingError
from .config import NlpSettings

# A document as text, or as tokens (white space among them) that are kept as they are; a Doc never leaves its process.
Text = str | list[str] | Doc

# Lexemes. What a pipeline has met stays in its memory, about 300 bytes each: past so many another one goes on.
_MOST_LEXEMES = 200_000
_QUOTED = 60


def blank_pipeline(lang: str) -> Language:
    """The pipeline whose tokenizer cuts text into words. Raises PretrainingError for a language that does not work."""
    try:
        return spacy.blank(lang)
    except Exception as error:  # what a language needs, and raises without it, is its own matter
        raise PretrainingError(f"spaCy has no tokenizer for the language {lang!r} here: {error}") from error


def pipeline(settings: NlpSettings) -> Language:
    """The pipeline that [nlp] of a config describes. Raises PretrainingError if it does not work."""
    return blank_pipeline(settings.lang)


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
    try:
        return nlp.make_doc(text)
    except Exception as error:  # tokenizers may be anybody's
        raise CorpusError(f"the tokenizer failed on the text that begins {text[:_QUOTED]!r}: {error!r}") from error


def full_text(text: Text) -> str:
    """The text of a document; of tokens, with a space after each."""
    if isinstance(text, Doc):
        return text.text
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

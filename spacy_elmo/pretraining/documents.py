"""Kinds of text files, each as documents. No step holds a file's text (but for ``.spacy``, which spaCy loads whole)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spacy.language import Language
from spacy.tokens import DocBin
from spacy.vocab import Vocab

from .notes import Damage
from .text_files import LONGEST_LINE, LongLines, cut, records, takes_long, text_lines
from .texts import SENTENCES, Text

Format = Literal["txt", "jsonl", "conllu", "spacy"]
Line = Literal["paragraph", "document", "sentence"]

# Characters. A document ends at the first line end past this size, so that a file without blank lines streams.
DOCUMENT_SIZE = 100_000
# Characters. SudachiPy takes texts of 49,149 bytes, and four bytes is the longest character.
_LONGEST_JAPANESE = 12_000
_CONLLU_ID = re.compile(r"(\d+)(-\d+|\.\d+)?")
_FORM = 1  # column
_COLUMNS = 10


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How documents lie in files: see `spacy_elmo.pretraining.raw_text.raw_text`."""

    line: Line = "paragraph"
    pretokenized: bool = False
    field: str = "text"
    long_lines: LongLines = "cut"


def read_documents(path: Path, kind: Format, nlp: Language, layout: Layout, damage: Damage) -> Iterator[Text]:
    """Yield the documents of a file. RAISES: CorpusError for what is damaged, unless it is skipped."""
    if kind == "spacy":
        return _read_docbin(path, damage)
    if kind == "conllu":
        return _read_conllu(path, damage)
    return (_read_jsonl if kind == "jsonl" else _read_txt)(path, nlp, layout, damage)


def longest_text(nlp: Language) -> int:
    """How many characters the tokenizer takes at once."""
    return min(LONGEST_LINE, nlp.max_length, _LONGEST_JAPANESE if nlp.lang == "ja" else LONGEST_LINE)


def _read_txt(path: Path, nlp: Language, layout: Layout, damage: Damage) -> Iterator[Text]:
    longest = longest_text(nlp)
    enough = min(DOCUMENT_SIZE, longest)
    lines: list[str] = []
    size = 0  # of the lines and the line breaks between them
    for line, ends in text_lines(path, longest, layout.long_lines, damage):
        blank = not line or line.isspace()
        if lines and (blank or size + len(line) > longest):
            yield _document(lines, layout)
            lines, size = [], 0
        if blank:
            continue
        lines.append(line)
        size += len(line) + 1
        if size > enough or not ends or layout.line == "document":
            yield _document(lines, layout)
            lines, size = [], 0
    if lines:
        yield _document(lines, layout)


def _document(lines: list[str], layout: Layout) -> Text:
    if layout.line == "sentence":
        return {SENTENCES: [line.split() if layout.pretokenized else line for line in lines]}
    if layout.pretokenized:
        return [word for line in lines for word in (*line.split(), "\n")]
    return "\n".join(lines)


def _read_jsonl(path: Path, nlp: Language, layout: Layout, damage: Damage) -> Iterator[Text]:
    longest = longest_text(nlp)
    for number, line in records(path, damage):
        if not line or line.isspace():
            continue
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
            if "\\u" in line:  # JSON can spell half a surrogate pair, which no tokenizer takes
                json.dumps(entry, ensure_ascii=False).encode("utf8")
        except (ValueError, RecursionError) as error:
            damage.met(
                "lines skipped: not valid JSON",
                where,
                f"{where}: not valid JSON ({error}). Mend or remove this line, or set errors = 'skip'",
                error,
            )
            continue
        document = entry_text(entry, layout.field)
        if document is None:
            damage.met(
                f"lines skipped: neither '{layout.field}' nor 'tokens'",
                where,
                f'{where}: neither {{"{layout.field}": "..."}} nor {{"tokens": ["...", ...]}}. Give each document as a '
                "JSON object with one of them, name the one with the text in 'field', or set errors = 'skip'",
            )
        elif has_nul(document):
            advice = "Remove it, or set errors = 'skip'"
            damage.met("lines skipped: NUL characters", where, f"{where}: a NUL character, which no text has. {advice}")
        elif not isinstance(document, str):
            yield document
        elif takes_long(document, longest, layout.long_lines, path, number, damage):
            yield from cut(document, longest)


def has_nul(text: str | list[str]) -> bool:
    """Whether a NUL character is in it."""
    return "\0" in text if isinstance(text, str) else any("\0" in word for word in text)


def entry_text(entry: object, field: str) -> str | list[str] | None:
    """The document of an entry: its tokens if it has them, or else its text; None if it has neither."""
    if not isinstance(entry, dict):
        return None
    tokens, text = entry.get("tokens"), entry.get(field)
    if tokens is None and isinstance(text, list):
        tokens = text
    if tokens is None:
        return text if isinstance(text, str) else None
    whole = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    return [token for token in tokens if token] if whole else None


def _read_docbin(path: Path, damage: Damage) -> Iterator[Text]:
    # What a broken file raises depends on where it breaks (zlib, msgpack, numpy, spaCy): all of it means the same.
    try:
        docs = DocBin().from_disk(path).get_docs(Vocab())
    except Exception as error:
        _broken_docbin(path, error, damage)
        return
    while True:
        try:
            doc = next(docs, None)
        except Exception as error:
            _broken_docbin(path, error, damage)
            return
        if doc is None:
            return
        if doc.has_annotation("SENT_START"):
            yield {SENTENCES: [[token.text for token in sentence] for sentence in doc.sents]}
        else:
            yield [token.text for token in doc]


def _broken_docbin(path: Path, error: Exception, damage: Damage) -> None:
    damage.met(
        "files skipped, or their rest: not a readable .spacy file",
        str(path),
        f"{path}: not a readable .spacy file ({error!r}). Write it again with spaCy's DocBin.to_disk",
        error,
    )


def _read_conllu(path: Path, damage: Damage) -> Iterator[Text]:
    """Sentences as annotated. A document begins at ``# newdoc``, or past 100,000 characters at a sentence's end."""
    sentences: list[str | list[str]] = []
    size = 0
    for sentence in _conllu_sentences(path, damage):
        if sentences and (sentence is None or size > DOCUMENT_SIZE):
            yield {SENTENCES: sentences}
            sentences, size = [], 0
        if sentence is not None:
            sentences.append(sentence)
            size += sum(map(len, sentence)) + len(sentence)
    if sentences:
        yield {SENTENCES: sentences}


def _conllu_sentences(path: Path, damage: Damage) -> Iterator[list[str] | None]:
    """Yield the words of each sentence, and None where a document begins.

    Words are the syntactic ones: rows of multiword tokens (1-2) and of empty nodes (1.1) are skipped.
    """
    words: list[str] = []
    broken = False
    for number, line in records(path, damage):
        if not line or line.isspace() or line.startswith("#"):
            if words and not broken:
                yield words
            words, broken = [], False
            if line[1:].split(maxsplit=1)[:1] == ["newdoc"]:
                yield None
            continue
        columns = line.split("\t")
        found = _CONLLU_ID.fullmatch(columns[0])
        if found and found[2] and len(columns) == _COLUMNS:
            continue
        if found and int(found[1]) == len(words) + 1 and len(columns) == _COLUMNS and columns[_FORM]:
            words.append(columns[_FORM])
        elif not broken:
            broken = True
            where = f"{path}, line {number}"
            damage.met(
                "sentences skipped: not CoNLL-U",
                where,
                f"{where}: not CoNLL-U, which is ten columns with tabs between them, in the first the number "
                "of the word "
                "(1, 2, 3, ...), in the second the word. Mend or remove this sentence, or set errors = 'skip'",
            )
    if words and not broken:
        yield words

"""What to do about a text, by its figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ...bilm.config import BiLMConfig
from ..config import Settings
from .figures import TextFigures
from .report import DataReport, ascii_safe, shown_bytes

_UNSEGMENTED = ("CJK", "THAI", "LAO", "KHMER", "MYANMAR")


def advice_on(report: DataReport, settings: Settings, config: BiLMConfig) -> Iterator[str]:
    """One paragraph a thing to do, none for a text as it should be. config: of the biLM that is to read it."""
    train, dev = report.train, report.dev
    if train.words < 1_000_000:
        yield (
            f"{train.words:,} words are little: vectors of use take some millions. Add text of the same language, or "
            "go on from weights that exist."
        )
    if report.epochs > 20:
        yield (
            f"Train is read {report.epochs:,.0f} times: watch the dev perplexity, it will rise. Fewer "
            "training.max_steps, or more text."
        )
    if dev.words < 10_000:
        yield f"Dev has {dev.words:,} words: too few for a perplexity. Set training.holdout lower, or paths.dev."
    if train.documents < 10:
        yield (
            f"Train has {train.documents:,} documents: the text is shuffled by documents. In .txt files a blank line "
            "ends one; if each line is one, set line = 'document' in the reader."
        )
    if report.sentences_of_dev_in_train > 0.05 or report.documents_of_dev_in_train > 0.01:
        yield (
            f"{report.sentences_of_dev_in_train:.1%} of dev's sentences and "
            f"{report.documents_of_dev_in_train:.1%} of its documents are in train too: the dev perplexity flatters. "
            "Remove duplicates before the text is split."
        )
    if train.duplicate_sentences > 0.2 or train.duplicate_documents > 0.02:
        yield (
            f"{train.duplicate_sentences:.1%} of train's sentences and {train.duplicate_documents:.1%} of its "
            "documents repeat others: the model learns them by heart. Remove duplicates (menus, licences and footers "
            "of web pages)."
        )
    if train.truncated / train.words > 0.001:
        unit = "characters: long words" if config.is_many_langs else "bytes: a script of two or three bytes a letter"
        yield (
            f"{train.truncated / train.words:.2%} of the words are cut at {config.max_characters_per_token - 2} {unit}"
            ", or no words at all (links, base64). Set model.max_characters_per_token higher, or remove them."
        )
    yield from _advice_on_vocabulary(report)
    yield from _advice_on_language(train, settings)


def _advice_on_vocabulary(report: DataReport) -> Iterator[str]:
    share = report.oov["dev"]
    if share > 0.05:
        better = next((size for size, oov in report.dev.oov.items() if oov <= 0.03 and size > report.vocabulary), None)
        how = (
            f"With vocabulary.max_words = {better} it were {report.dev.oov[better]:.1%}."
            if better
            else "More or other text is needed: no size of the vocabulary helps."
        )
        yield f"{share:.1%} of dev's words are predicted as <UNK>. {how}"
    if report.bytes_of_dev_only:
        yield (
            f"Dev has bytes that train never has ({shown_bytes(report.bytes_of_dev_only)}): their vectors stay as "
            "they began. Train on text with the characters that will be read."
        )


def _advice_on_language(train: TextFigures, settings: Settings) -> Iterator[str]:
    odd = train.oddities
    main = next(iter(train.scripts), "")
    if not main:
        yield "No word has a letter: this is no text, or not in the encoding that it should be."
        return
    if train.scripts[main] < 0.98:
        others = ", ".join(f"{name.capitalize()} {share:.1%}" for name, share in islice(train.scripts.items(), 1, 4))
        yield (
            f"Besides {main.capitalize()} there is {others}: text of another language? One biLM reads several badly "
            "unless each has its share."
        )
    if main in _UNSEGMENTED and train.word_characters > 6:
        yield (
            f"Words of {train.word_characters:.0f} characters in {main.capitalize()}: the tokenizer of "
            f"{settings.nlp.lang!r} does not find words here. Set nlp.lang, or [nlp.tokenizer] with a segmenter."
        )
    if train.sentence_words["90%"] > 100:
        yield (
            f"One sentence in ten has more than {train.sentence_words['90%'] - 1:,.0f} words: no sentence ends are "
            "found. If each line is a sentence, set line = 'sentence' in the reader."
        )
    if main in ("LATIN", "CYRILLIC", "GREEK") and train.cased < 0.01:
        yield "The text is in lower case: the model will not know capitals. Annotate such text only, or train on other."
    if train.letters < 0.7:
        yield f"Only {train.letters:.0%} of the characters are letters: tables, code or numbers rather than sentences."
    for kind, most, what in (
        ("markup", 0.001, "HTML or wiki markup: extract the text of the pages first"),
        (
            "mojibake",
            0.0002,
            "UTF-8 that was read as another encoding, or lost characters: mend it or convert it again",
        ),
        ("control characters", 0.0001, "characters that are no text: clean the files"),
        ("very long words", 0.0005, "links, base64 or lost spaces: remove such lines"),
        ("several scripts in a word", 0.001, "look-alikes of OCR or spam, or lost spaces"),
    ):
        if odd[kind].share > most:
            examples = ", ".join(ascii_safe(word) for word in odd[kind].examples[:3])
            where = f" (such as {examples})" if examples else ""
            yield f"{odd[kind].words:,} words, in {odd[kind].sentences:,} sentences, look like {what}{where}."
    for what, n in train.notes.items():
        yield f"When it was read: {n:,} {what}."

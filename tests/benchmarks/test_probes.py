from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import senses
from benchmarks.probes import (
    Ambiguous,
    Entities,
    Occurrence,
    Tags,
    Token,
    Treebank,
    Vectors,
    by_neighbour,
    fit,
    main,
    majority,
    probe,
    read_conllu,
    read_entities,
    sample,
    summary,
    vote,
    whiten,
)
from spacy_elmo import save_bilm
from spacy_elmo.errors import CorpusError
from spacy_elmo.layers.bilm_model import random_bilm


def conllu(sentences: list[list[tuple[str, str, str, str]]]) -> str:
    """Of forms, lemmas, UPOS and XPOS."""
    blocks = (
        "".join(f"{number}\t" + "\t".join(row) + "\t_\t0\t_\t_\t_\n" for number, row in enumerate(rows, 1))
        for rows in sentences
    )
    return "\n".join(f"# sent_id = {number}\n{block}" for number, block in enumerate(blocks, 1))


def drawn(n: int, seed: int) -> str:
    """Sentences in which "saw" is a noun after "the" and a verb after "we"."""
    rows = {
        "the": [("the", "the", "DET", "DT"), ("saw", "saw", "NOUN", "NN"), ("cuts", "cut", "VERB", "VBZ")],
        "we": [("we", "we", "PRON", "PRP"), ("saw", "see", "VERB", "VBD"), ("cats", "cat", "NOUN", "NNS")],
    }
    generator = random.Random(seed)
    fillers = [[(word, word, "X", "FW")] * generator.randint(0, 2) for word in "abc" for _ in range(n)]
    return conllu([[*filler, *rows[generator.choice(["the", "we"])]] for filler in fillers])


def iob(n: int) -> str:
    """ "Jordan" is a person after "Mr" and a place after "in"."""
    person, place = "Mr O\nJordan I-PER\nspoke O\n", "in O\nJordan I-LOC\n. O\n"
    return "-DOCSTART- -X- O\n\n" + "\n".join([person, place] * n)


# Data


def test_words_of_a_treebank(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    text = (
        "# newdoc\n# text = I don't\n1\tI\tI\tPRON\tPRP\t_\t0\t_\t_\t_\n2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "2\tdo\tdo\tAUX\tVBP\t_\t0\t_\t_\t_\n3\tn't\tnot\tPART\tRB\t_\t0\t_\t_\t_\n3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_\n"
        "\n\n# text = #\r\n1\t#\t#\tSYM\t$\t_\t0\t_\t_\t_\r\n"
    )
    path.write_bytes(text.encode())
    assert read_conllu(path) == [
        [Token("I", "I", "PRON", "PRP"), Token("do", "do", "AUX", "VBP"), Token("n't", "not", "PART", "RB")],
        [Token("#", "#", "SYM", "$")],
    ]


def test_entities_of_both_kinds_of_iob(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    rows = ["New X I-LOC", "York X I-LOC", "Paris X B-LOC", "and X O", "Ann X I-PER", "IBM X I-ORG"]
    path.write_text("-DOCSTART- X O\n\n" + "\n".join(rows) + "\n\nNew B-ORG\nYork I-ORG\n", encoding="utf8")
    sentences, found = read_entities(path)
    assert sentences == [["New", "York", "Paris", "and", "Ann", "IBM"], ["New", "York"]]
    assert found == [
        Occurrence(0, 0, 2, "New York", "LOC"),
        Occurrence(0, 2, 3, "Paris", "LOC"),
        Occurrence(0, 4, 5, "Ann", "PER"),
        Occurrence(0, 5, 6, "IBM", "ORG"),
        Occurrence(1, 0, 2, "New York", "ORG"),
    ]


def test_a_sample_has_the_words_asked_for() -> None:
    sentences = [[Token(str(n), "", "", "")] * n for n in range(1, 9)]
    everything = sample(sentences, None, seed=1)
    assert sorted(everything, key=len) == sentences != everything
    assert everything == sample(sentences, None, seed=1) != sample(sentences, None, seed=2)
    for words in (1, 10, 35, 36):
        part = sample(sentences, words, seed=1)
        assert part == everything[: len(part)]
        assert sum(map(len, part[:-1])) < words <= sum(map(len, part))
    assert sample(sentences, 37, seed=1) == everything


def occurrences(*pairs: tuple[str, str]) -> list[Occurrence]:
    return [Occurrence(index, 0, 1, form, category) for index, (form, category) in enumerate(pairs)]


def test_ambiguous_words() -> None:
    train = occurrences(*[("saw", "N")] * 2, *[("saw", "V")] * 3, ("saw", "X"), *[("cat", "N")] * 5, ("run", "N"))
    test = occurrences(("saw", "N"), ("saw", "X"), ("cat", "N"), ("run", "N"), ("new", "N"), ("saw", "V"))
    words = Ambiguous.of("UPOS", train, test, least=2)
    assert words.train == train[:5]
    assert words.test == [test[0], test[5]]
    assert Ambiguous.of("UPOS", train, test, least=1).test == [test[0], test[1], test[5]]
    with pytest.raises(CorpusError, match="UPOS: no word of the test data has two categories, each 3 times or more"):
        Ambiguous.of("UPOS", train, test, least=3)


# Tags


def test_controls_and_accuracies() -> None:
    train = [[Token(form, "", tag, "") for form, tag in (("a", "D"), ("a", "D"), ("a", "N"), ("b", "N"), ("c", "N"))]]
    test = [[Token(form, "", tag, "") for form, tag in (("a", "D"), ("a", "N"), ("b", "N"), ("new", "N"), ("b", "Z"))]]
    kind = Tags.of("UPOS", train, test)
    assert kind.names == ["D", "N"]
    assert kind.train.tolist() == [0, 0, 1, 1, 1]
    assert kind.test.tolist() == [0, 1, 1, 1, -1]
    assert kind.most.tolist() == [0, 0, 1, 1, 1]
    assert kind.accuracies(kind.most) == {"all": 0.6, "ambiguous": 0.5, "unknown": 1.0}
    assert kind.accuracies(np.zeros(5)) == {"all": 0.2, "ambiguous": 0.5, "unknown": 0.0}
    assert Tags.of("UPOS", train, train).accuracies(np.ones(5)) == {"all": 0.6, "ambiguous": 1 / 3, "unknown": None}


def test_white_vectors() -> None:
    generator = np.random.default_rng(0)
    mixed = generator.normal(size=(25_000, 3)) @ generator.normal(size=(3, 5)) * 40 + 7  # of rank 3
    train, test = whiten(mixed.astype(np.float32), mixed[:10].astype(np.float32))
    assert train.dtype == test.dtype == np.float32
    assert train.shape == (25_000, 3)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(train.T), np.eye(3), atol=1e-3)
    np.testing.assert_allclose(test, train[:10], atol=1e-5)


def test_fit_is_at_the_optimum() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, tags = torch.randn(300, 4, generator=generator), torch.randint(3, (300,), generator=generator)
    weight, bias = torch.zeros(4, 3), torch.zeros(3)
    fit(vectors, tags, weight, bias, 0.01)
    errors = torch.softmax(vectors @ weight + bias, dim=1) - torch.nn.functional.one_hot(tags, 3)
    torch.testing.assert_close(vectors.T @ errors / 300 + 0.01 * weight, torch.zeros(4, 3), atol=1e-4, rtol=0)
    torch.testing.assert_close(errors.mean(dim=0), torch.zeros(3), atol=1e-4, rtol=0)
    assert weight.abs().max() > 0.01
    # Vectors that say nothing: the shares of the tags.
    weight, bias = torch.zeros(4, 3), torch.zeros(3)
    fit(torch.zeros(8, 4), torch.tensor([0, 0, 0, 0, 1, 1, 1, 2]), weight, bias, 0.01)
    torch.testing.assert_close(torch.softmax(bias, dim=0), torch.tensor([4, 3, 1]) / 8, atol=1e-3, rtol=0)


def test_probe_finds_tags_in_vectors_and_none_in_noise() -> None:
    generator = np.random.default_rng(0)
    names = generator.choice(4, size=3000, p=[0.55, 0.2, 0.15, 0.1])
    rows = 5 * np.eye(4)[names] @ generator.normal(size=(4, 8)) + 0.1 * generator.normal(size=(3000, 8))
    train, test = whiten(rows[:2000].astype(np.float32), rows[2000:].astype(np.float32))
    predicted, penalty = probe(train, names[:2000], test, n_fit=1800)
    assert predicted.tolist() == names[2000:].tolist()
    again, same = probe(train, names[:2000], test, n_fit=1800)
    assert (again.tolist(), same) == (predicted.tolist(), penalty)
    # Tags that have nothing to do with the vectors: the most frequent one, whatever the vector.
    shuffled = generator.permutation(names[:2000])
    predicted, penalty = probe(train, shuffled, test, n_fit=1800)
    assert Counter(predicted.tolist()) == {0: 1000}
    assert float((predicted == names[2000:]).mean()) == float((names[2000:] == 0).mean())


# Neighbours


def test_votes() -> None:
    assert vote(Counter("aab"), "a") == 1.0
    assert vote(Counter("aab"), "b") == 0.0
    assert vote(Counter("abc"), "b") == pytest.approx(1 / 3)
    assert vote(Counter("aabb"), "c") == 0.0


def test_neighbours_by_hand() -> None:
    pairs = [("saw", "N"), ("saw", "V"), ("run", "V"), ("run", "N"), ("run", "N")]
    train = np.array([[1, 0], [0, 2], [1, 0], [0, 1], [0, 1]], dtype=np.float32)
    asked = [("saw", "N"), ("run", "N"), ("saw", "N"), ("saw", "V"), ("run", "V")]
    # A run is nearest to runs alone; the third is as near to either saw; the length of a vector does not matter.
    test = np.array([[9, 1], [1, 3], [1, 1], [-1, 8], [0, 5]], dtype=np.float32)
    words = Ambiguous("UPOS", occurrences(*pairs), occurrences(*asked))
    right = by_neighbour(words, train, test)
    assert right.tolist() == [1.0, 1.0, 0.5, 1.0, 0.0]
    assert summary(words, right) == {"occurrences": 0.7, "forms": pytest.approx((2.5 / 3 + 0.5) / 2)}
    assert majority(words).tolist() == [0.5, 1.0, 0.5, 0.5, 0.0]


def test_a_static_vector_has_the_majority() -> None:
    generator = np.random.default_rng(0)
    of_form = {form: generator.normal(size=6).astype(np.float32) for form in "xyz"}
    parts = [
        occurrences(*((str(form), str(tag)) for form, tag in generator.choice(list("xyz"), (n, 2)))) for n in (90, 40)
    ]
    words = Ambiguous("UPOS", *parts)
    vectors = [np.stack([of_form[one.form] for one in part]) for part in parts]
    assert by_neighbour(words, *vectors).tolist() == majority(words).tolist()
    # The category itself in the vector: always right.
    seen = [np.stack([of_form[one.category] for one in part]) for part in parts]
    assert by_neighbour(words, *seen).tolist() == [1.0] * 40


def test_vectors_are_those_of_the_sentences(tmp_path: Path) -> None:
    bilm = random_bilm(n_layers=1)
    sentences = [["A", "cat"], ["one"], ["New", "York", "sleeps"]]
    vectors = Vectors(bilm, sentences, tmp_path / "vectors")
    encoded = torch.cat(bilm.encode(sentences), dim=1).numpy()
    layers = [vectors.layer(number) for number in range(3)]
    for number in range(2):
        np.testing.assert_array_equal(layers[number], encoded[number])
    np.testing.assert_allclose(layers[2], encoded.mean(axis=0), atol=1e-6)
    spans = vectors.of([Occurrence(2, 0, 2, "New York", "LOC"), Occurrence(0, 1, 2, "cat", "N")], layers[1])
    np.testing.assert_allclose(spans, [encoded[1, 3:5].mean(axis=0), encoded[1, 1]], atol=1e-6)


# The script


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probes")
    save_bilm(random_bilm(n_layers=1), folder / "bilm")
    for name, n, seed in (("train", 40, 0), ("test", 10, 1)):
        (folder / f"{name}.conllu").write_text(drawn(n, seed), encoding="utf8")
        (folder / f"{name}.conll").write_text(iob(n), encoding="utf8")
    return folder


def test_what_is_asked(folder: Path) -> None:
    treebank = Treebank(folder / "train.conllu", folder / "test.conllu", words=None, least=5, seed=0)
    assert len(treebank.train) == 120
    assert treebank.n_fit == sum(map(len, treebank.train[:108]))
    assert [len(kind.names) for kind in treebank.kinds] == [7, 5]
    assert [(words.name, {one.category for one in words.train}) for words in treebank.sets] == [
        ("UPOS", {"NOUN", "VERB"}),
        ("lemma", {"saw", "see"}),
    ]
    assert all(treebank.test[one.sentence][one.start].form == "saw" for one in treebank.sets[0].test)
    entities = Entities(folder / "train.conll", folder / "test.conll", least=5)
    assert len(entities.train) == 80
    assert all(entities.test[one.sentence][one.start] == "Jordan" for one in entities.words.test)


def cells(printed: str) -> list[list[str]]:
    lines = [line for line in printed.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [str(folder / "bilm"), "--threads", "1", "--json", str(folder / "out.json")]
    for option, suffix in (("--ud", "conllu"), ("--ner", "conll")):
        options += [option, *(str(folder / f"{name}.{suffix}") for name in ("train", "test"))]
    main(options)
    rows = cells(capsys.readouterr().out)
    figures = json.loads((folder / "out.json").read_text(encoding="utf8"))
    by_name = {row[0]: row for row in rows}
    names = ["layer 0", "layer 1", "mean"]
    assert figures["names"] == names
    assert [row[0] for row in rows[1:6]] == ["most frequent", "most frequent of the word", *names]
    assert [found["tags"] for found in figures["tags"]] == ["XPOS", "UPOS"]
    for number, found in enumerate(figures["tags"]):
        treebank = Treebank(folder / "train.conllu", folder / "test.conllu", words=None, least=5, seed=0)
        kind = treebank.kinds[number]
        assert found["words"] == {"all": len(kind.test), "ambiguous": 30, "unknown": 0}
        assert found["most frequent of the word"] == kind.accuracies(kind.most)
        assert by_name["most frequent of the word"][3 * number + 1] == f"{kind.accuracies(kind.most)['all']:.1%}"
        # The token encoder tells all words apart; of "saw" it knows the more frequent tag.
        assert found["layers"][0]["all"] == found["most frequent of the word"]["all"] < 1.0
        for row, layer in zip(rows[3:6], found["layers"], strict=True):
            assert row[1 + 3 * number : 4 + 3 * number] == [f"{layer['all']:.1%}", f"{layer['ambiguous']:.1%}", "-"]
        # Whatever the weights, the neighbours can be read from the layers above.
        assert [layer["all"] for layer in found["layers"][1:]] == [1.0, 1.0]
    assert [found["set"] for found in figures["neighbours"]] == ["UPOS", "lemma", "entity type", "sense"]
    for found in figures["neighbours"][:3]:
        assert found["forms"] == 1
        assert found["layers"][0] == found["majority"]
        assert found["layers"][1]["occurrences"] > found["majority"]["occurrences"]
    assert by_name["entity type"][1:4] == ["20", "50.0%", "50.0%"]
    assert by_name["entity type, mean over words"][1:4] == ["1", "50.0%", "50.0%"]
    senses.main([str(folder / "bilm"), "--threads", "1"])
    assert by_name["sense"][1:3] == ["240", "50.0%"]
    *_, printed, _, _, _ = cells(capsys.readouterr().out)  # then intervals, and nearest contexts; controls come last
    assert by_name["sense"][3:] == printed[2 : -len(senses.CONTROLS)]


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--ud", "Just a text.\n", "train, line 1: not CoNLL-U"),
        ("--ud", "1\tA\ta\tDET\tDT\t_\t0\t_\t_\t_\nx\tA\ta\tDET\tDT\t_\t0\t_\t_\t_\n", "train, line 2: not CoNLL-U"),
        ("--ud", "# text\n\n", "train: holds no sentence"),
        ("--ud", "1\tA\ta\tDET\tDT\t_\t0\t_\t_\t_\n", "train: one sentence is too little"),
        ("--ud", conllu([[("a", "a", "_", "_")]] * 9), "train: all words have the same tag"),
        ("--ud", conllu([[("a", "a", "X", "X"), ("b", "b", "Y", "Y")]] * 9), "UPOS: no word of the test data has two"),
        ("--ner", "\n", "train: holds no sentence"),
        ("--ner", "A DT O\nword NN\n", "train, sentence 1: 'NN', at 'word', is no IOB tag"),
        ("--ner", "A O\ncat O\n", "entity type: no word of the test data has two"),
    ],
)
def test_bad_data_give_one_clear_error(
    option: str, text: str, expected: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train").write_text(text, encoding="utf8")
    files = {"--ud": folder / "test.conllu", "--ner": folder / "test.conll"}
    good = ["--ud", str(folder / "train.conllu"), str(folder / "test.conllu")] if option == "--ner" else []
    with pytest.raises(SystemExit):
        main([str(folder / "bilm"), *good, option, str(tmp_path / "train"), str(files[option])])
    assert expected in capsys.readouterr().err


def test_files_that_cannot_be_used(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = str(folder / "train.conllu"), str(folder / "test.conllu")
    (tmp_path / "latin").write_bytes(b"1\tcaf\xe9\n")
    for options, expected in (
        ([str(folder / "bilm")], "--ud"),
        ([str(folder / "bilm"), "--ud", train, str(tmp_path / "none")], "there is no"),
        ([str(folder / "bilm"), "--ud", train, str(tmp_path)], "cannot be read"),
        ([str(folder / "bilm"), "--ud", str(tmp_path / "latin"), test], "latin: cannot be read"),
        ([str(tmp_path / "nothing"), "--ud", train, test], "no such file or folder"),
        ([str(folder / "bilm"), "--ud", train, test, "--json", str(tmp_path / "no" / "a.json")], "there is no folder"),
    ):
        with pytest.raises(SystemExit):
            main(options)
        assert expected in capsys.readouterr().err

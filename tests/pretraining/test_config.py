from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import changed_keys, load_config, resolve

from .conftest import MakeConfig


@spacy.registry.loggers("test.broken_logger.v1")
def broken_logger() -> None:
    raise TypeError("the logger's own")


def test_defaults_are_written_out(toy_config: MakeConfig) -> None:
    config = toy_config()
    del config["training"]["dropout"], config["model"]["n_layers"], config["optimizer"]["beta2"]
    settings, filled = resolve(config)
    assert settings.training.dropout == filled["training"]["dropout"] == 0.1
    assert filled["model"]["n_layers"] == settings.bilm_config(5).n_layers == 2
    assert filled["optimizer"]["beta2"] == 0.999


def test_the_shipped_config_is_complete(root: Path) -> None:
    config = load_config(root / "configs" / "pretrain.cfg")
    _, filled = resolve(config)
    assert filled == config  # every key is there to be seen, none is left to a hidden default


def test_a_filled_config_resolves_to_itself(toy_config: MakeConfig, tmp_path: Path) -> None:
    _, filled = resolve(toy_config())
    filled.to_disk(tmp_path / "saved.cfg")
    again = load_config(tmp_path / "saved.cfg")
    assert resolve(again)[1] == filled


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("training__rowz", 3, "training.rowz"),
        ("training__rows", "many", "training.rows"),
        ("training__rows", 2.5, "training.rows"),
        ("training__rows", 0, "training.rows"),
        ("training__dropout", 1.0, "training.dropout"),
        ("training__schedule", "liner", "training.schedule: .*cosine, linear, inverse_sqrt, constant, plateau"),
        ("system__gpu", 0, "system.gpu"),
        ("extra", {"a": 1}, "extra"),
        ("model__lstm_size", 3, "lstm_size"),
        ("model__n_words", 3, "n_words"),
        ("model__n_characters", 100, "n_characters"),
        ("objective__samples", 3, "samples"),
        ("objective", {"@misc": "spacy-elmo.no_such.v1"}, "spacy-elmo.no_such.v1"),
        ("optimizer__learn_rate", "fast", "learn_rate"),
        ("optimizer__learn_rate", -1.0, "learn_rate is -1"),
        ("optimizer__beta1", 2.0, "beta1 is 2"),
        ("objective", {"@misc": "spacy-elmo.sampled_softmax.v1", "n_samples": 0}, "n_samples"),
        # Strings that Python reads as numbers were none to our functions, which compared them.
        ("optimizer__learn_rate", "nan", r"optimizer\.learn_rate: must be a number \(found 'nan'\)"),
        ("optimizer__eps", ".5", r"optimizer\.eps: must be a number"),
        ("objective__n_samples", "99999999999999999999", r"objective\.n_samples: must be a number"),
        ("corpora__train__limit_words", "99999999999999999999", r"corpora\.train\.limit_words: must be a number"),
        (
            "optimizer",
            {"@misc": "spacy-elmo.torch_optimizer.v1", "name": "SGD", "settings": {"lr": "nan"}},
            "SGD cannot",
        ),
        ("objective", {"@misc": 3}, r"objective\.@misc: must be a name \(found 3\)"),
        ("logger", {"@loggers": None}, r"logger\.@loggers: must be a name"),
        ("training__threads", 100_000_000, "training.threads"),
        ("logger", {"@loggers": "test.broken_logger.v1"}, "TypeError: the logger's own"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(toy_config: MakeConfig, key: str, value: Any, named: str) -> None:
    with pytest.raises(PretrainingError, match=named):
        resolve(toy_config(**{key: value}))


def test_all_errors_are_listed_at_once(toy_config: MakeConfig) -> None:
    with pytest.raises(PretrainingError, match=r"(?s)training\.rows.*training\.unroll"):
        resolve(toy_config(training__rows=0, training__unroll=3))


@pytest.mark.parametrize("section", ["corpora", "model", "objective", "optimizer", "logger"])
def test_a_missing_section_is_named(toy_config: MakeConfig, section: str) -> None:
    config = toy_config()
    del config[section]
    with pytest.raises(PretrainingError, match=section):
        resolve(config)


def test_a_missing_size_is_named(toy_config: MakeConfig) -> None:
    config = toy_config()
    del config["model"]["lstm_dim"]
    with pytest.raises(PretrainingError, match="lstm_dim"):
        resolve(config)


def test_own_text_replaces_the_readers(root: Path) -> None:
    path = root / "configs" / "pretrain.cfg"
    assert load_config(path)["corpora"]["train"]["@readers"] == "spacy-elmo.InstalledDocs.v1"
    corpora = load_config(path, {"paths.raw": "a.txt"})["corpora"]
    assert corpora["train"] == {"@readers": "spacy-elmo.RawText.v1", "path": "a.txt"}
    assert corpora["dev"] is None
    corpora = load_config(path, {"paths.raw": "a.txt", "paths.dev": "b.txt"})["corpora"]
    assert corpora["dev"] == {"@readers": "spacy-elmo.RawText.v1", "path": "b.txt"}
    # What a project variable without a value leaves.
    corpora = load_config(path, {"paths.raw": "", "paths.dev": ""})["corpora"]
    assert corpora["train"]["@readers"] == corpora["dev"]["@readers"] == "spacy-elmo.InstalledDocs.v1"


def test_variables_reach_everything(root: Path, tmp_path: Path) -> None:
    text = (root / "configs" / "pretrain.cfg").read_text(encoding="utf8")
    path = tmp_path / "c.cfg"
    path.write_text(text.replace("rows = 64", "rows = ${system.seed}"), encoding="utf8")
    assert load_config(path, {"system.seed": 7})["training"]["rows"] == 7
    path.write_text(text.replace("rows = 64", "rows = ${system.sneed}"), encoding="utf8")
    with pytest.raises(PretrainingError, match="sneed"):
        load_config(path)


def test_an_override_of_no_section_is_refused(root: Path) -> None:
    with pytest.raises(PretrainingError, match=r"trainig\.rows"):
        load_config(root / "configs" / "pretrain.cfg", {"trainig.rows": 3})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("\n[training]\nrows = 3\n", "section 'training' already exists"),
        ("\nprogress_bar = false\n", "option 'progress_bar' in section 'logger' already exists"),
        ("\n[logger\n", "logger"),
        ("\n[a]\nb = %(c)s ${\n", "a"),
    ],
)
def test_a_file_that_is_no_config_is_one_error(root: Path, tmp_path: Path, more: str, named: str) -> None:
    path = tmp_path / "c.cfg"
    path.write_text((root / "configs" / "pretrain.cfg").read_text(encoding="utf8") + more, encoding="utf8")
    with pytest.raises(PretrainingError, match=rf"(?s)c\.cfg.*{named}|does not fit.*{named}"):
        resolve(load_config(path))


def test_a_config_that_is_not_utf8(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.cfg"
    path.write_bytes("# Größe".encode("latin1") + (root / "configs" / "pretrain.cfg").read_bytes())
    with pytest.raises(PretrainingError, match=r"cannot read the config .*c\.cfg"):
        load_config(path)


def test_a_bom_is_no_matter(root: Path, tmp_path: Path) -> None:
    path = root / "configs" / "pretrain.cfg"
    (tmp_path / "c.cfg").write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_config(tmp_path / "c.cfg") == load_config(path)
    (tmp_path / "c.cfg").write_bytes(b"\xef\xbb\xbf" + path.read_bytes()[path.read_bytes().index(b"[paths]") :])
    assert load_config(tmp_path / "c.cfg") == load_config(path)


def test_sections_of_defaults_can_be_overridden_where_they_do_not_stand(root: Path, tmp_path: Path) -> None:
    text = (root / "configs" / "pretrain.cfg").read_text(encoding="utf8")
    for name in ("paths", "system", "nlp", "vocabulary", "training"):
        start = text.index(f"[{name}]")
        text = text[:start] + text[text.index("\n[", start) + 1 :]
    (tmp_path / "c.cfg").write_text(text, encoding="utf8")
    config = load_config(tmp_path / "c.cfg", {"paths.raw": "a.txt", "training.rows": 7, "nlp.lang": "de"})
    settings, _ = resolve(config)
    assert config["corpora"]["train"] == {"@readers": "spacy-elmo.RawText.v1", "path": "a.txt"}
    assert (settings.training.rows, settings.nlp.lang, settings.system.seed) == (7, "de", 0)
    resolve(load_config(tmp_path / "c.cfg"))


def test_a_limit_of_words_counts_for_own_text_too(root: Path) -> None:
    path = root / "configs" / "pretrain.cfg"
    own = {"@readers": "spacy-elmo.RawText.v1", "path": "a.txt"}
    limits = {"paths.raw": "a.txt", "corpora.train.limit_words": 50}
    corpora = load_config(path, limits)["corpora"]
    assert corpora["train"] == {**own, "limit_words": 50}
    with pytest.raises(PretrainingError, match=r"corpora\.dev\.limit_words has no effect.*paths\.dev"):
        load_config(path, {**limits, "corpora.dev.limit_words": 20})
    corpora = load_config(path, {**limits, "corpora.dev.limit_words": 20, "paths.dev": "a.txt"})["corpora"]
    assert corpora["dev"] == {**own, "limit_words": 20}


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PretrainingError, match=r"nothing\.cfg"):
        load_config(tmp_path / "nothing.cfg")


def test_changes_that_a_resume_would_not_survive_are_named(toy_config: MakeConfig) -> None:
    _, old = resolve(toy_config())
    _, new = resolve(
        toy_config(
            model__lstm_dim=32,
            vocabulary__max_words=9,
            training__rows=2,
            training__max_steps=99,
            optimizer__learn_rate=0.5,
            corpora__train={"@readers": "spacy-elmo.RawText.v1", "path": "other.txt"},
        )
    )
    assert changed_keys(old, new) == [
        "corpora.train.path",
        "model.lstm_dim",
        "training.rows",
        "vocabulary.max_words",
    ]
    assert changed_keys(old, old) == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("lstm_dim", 0, "lstm_dim is a whole number of at least 1, not 0"),
        ("projection_dim", 17, r"projection_dim \(17\) is larger than the LSTM's cells \(16\)"),
        ("activation", "gelu", "activation is 'relu' or 'tanh'"),
        ("filters", [[1, 0]], "a filter's count is a whole number of at least 1"),
        ("max_characters_per_token", "fifty", "max_characters_per_token is a whole number"),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_the_text_is_read(
    toy_config: MakeConfig, name: str, value: Any, says: str
) -> None:
    """They were found when all of the text had been encoded."""
    with pytest.raises(PretrainingError, match=rf"the config does not fit:\n  model: {says}"):
        resolve(toy_config(**{f"model__{name}": value}))
    # Weights bring sizes of their own.
    resolve(toy_config(**{f"model__{name}": value}, initialize={"weights": "weights"}))


def test_a_resume_measures_the_same_sentences(toy_config: MakeConfig) -> None:
    """The best figure stayed that of other sentences, and model-best might never be written again."""
    _, old = resolve(toy_config())
    _, new = resolve(toy_config(training__eval_tokens=7, training__eval_frequency=9))
    assert changed_keys(old, new) == ["training.eval_tokens"]

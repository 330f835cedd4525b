"""s_j and γ of every listener: by accessor, of saved pipelines, in the model card, as a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.cli.package import generate_readme
from spacy.training.loop import train
from thinc.api import Config

from spacy_elmo.bilm import BiLM
from spacy_elmo.errors import ElmoError
from spacy_elmo.pipeline.mix_figure import draw_mixes
from spacy_elmo.pipeline.mixes import Mix, labels, mixes_of, mixes_of_pipeline, table, write_mix_notes
from tests.pipeline.toys import blank, examples, getter, listener, ner_config, tagger_config, with_elmo

MIX = "spacy-elmo.ScalarMix.v1"


def trained(bilm: BiLM, steps: int = 3) -> Any:
    """A tagger that learns its mix, and a recognizer whose mix is fixed."""
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe("tagger", config=tagger_config(with_elmo()))
    nlp.add_pipe("ner", config=ner_config(listener(mix={"@architectures": MIX, "weights": [0.0, 1.0, 2.0]})))
    optimizer = nlp.initialize(getter(nlp))
    for _ in range(steps):
        nlp.update(examples(nlp), sgd=optimizer)
    return nlp


def test_what_diverged_is_json_too(bilm: BiLM) -> None:
    nlp = trained(bilm, 1)
    node = nlp.get_pipe("elmo").listener_map["tagger"][0].layers[0]
    node.set_param("gamma", node.get_param("gamma") * np.nan)
    tagger, ner = nlp.get_pipe("elmo").mixes
    assert (tagger.as_dict()["gamma"], ner.as_dict()["gamma"]) == (None, 1.0)
    assert json.loads(json.dumps(tagger.as_dict(), allow_nan=False))["weights"] == list(tagger.weights)


def two_places() -> dict[str, Any]:
    """A tok2vec with two listeners, of which the deeper runs first."""
    shallow = listener(mix={"@architectures": MIX, "weights": [2.0, 0.0, 0.0]})
    return {"@architectures": "test.two_places.v1", "elmo_output": shallow, "elmo": with_elmo()}


@pytest.fixture(scope="module", autouse=True)
def two_places_model() -> None:
    from thinc.api import concatenate

    @spacy.registry.architectures("test.two_places.v1")
    def make(elmo: Any, elmo_output: Any) -> Any:
        model: Any = concatenate(elmo, elmo_output)
        model.set_dim("nO", 32)
        return model


def test_weights_of_each_listener(bilm: BiLM) -> None:
    nlp = trained(bilm)
    tagger, ner = nlp.get_pipe("elmo").mixes
    node = nlp.get_pipe("elmo").listener_map["tagger"][0].layers[0]
    raw = node.get_param("scalars")
    np.testing.assert_allclose(tagger.weights, np.exp(raw) / np.exp(raw).sum(), rtol=1e-6)
    assert tagger.gamma == pytest.approx(float(node.get_param("gamma")[0]))
    assert tagger.gamma != 1.0
    assert (tagger.component, tagger.number, tagger.learned) == ("tagger", 1, True)
    powers = np.exp([0.0, 1.0, 2.0])
    np.testing.assert_allclose(ner.weights, powers / powers.sum(), rtol=1e-12)
    assert (ner.component, ner.number, ner.place, ner.gamma, ner.learned) == ("ner", 1, None, 1.0, False)
    found = mixes_of(nlp)
    assert [mix.place for mix in found] == ["model.tok2vec.elmo", "model.tok2vec"]
    assert [(mix.component, mix.weights) for mix in found] == [("tagger", tagger.weights), ("ner", ner.weights)]


def test_before_initialization_there_are_none(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    assert nlp.get_pipe("elmo").mixes == mixes_of(nlp) == []


def test_several_places_of_a_component(bilm: BiLM, tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    # In which order the config has them does not matter.
    nlp.add_pipe("tagger", config=tagger_config(two_places()))
    nlp.initialize(getter(nlp))
    found = mixes_of(nlp)
    assert [(mix.number, mix.learned) for mix in found] == [(1, True), (2, False)]
    assert [mix.place for mix in found] == ["model.tok2vec.elmo.elmo", "model.tok2vec.elmo_output"]
    assert labels(found) == ["tagger, input", "tagger, output"]
    own = nlp.get_pipe("elmo").mixes
    assert [(mix.number, mix.weights) for mix in own] == [(mix.number, mix.weights) for mix in found]
    assert labels(own) == ["tagger, 1", "tagger, 2"]
    nlp.to_disk(tmp_path)
    assert mixes_of_pipeline(tmp_path) == found


def test_a_saved_pipeline_and_one_with_a_bilm_inside(bilm: BiLM, tmp_path: Path) -> None:
    nlp = trained(bilm)
    expected = mixes_of(nlp)
    nlp.to_disk(tmp_path / "plain")
    # Neither the biLM nor the tokenizer is read.
    (tmp_path / "plain" / "elmo" / "model").write_bytes(b"broken")
    (tmp_path / "plain" / "tokenizer").write_bytes(b"broken")
    assert mixes_of_pipeline(tmp_path / "plain") == expected
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec.elmo"])
    assert mixes_of(nlp) == expected
    assert [mix.component for mix in nlp.get_pipe("elmo").mixes] == ["ner"]
    nlp.to_disk(tmp_path / "replaced")
    assert mixes_of_pipeline(tmp_path / "replaced") == expected


def test_pipelines_without(bilm: BiLM, nlp: Any, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"config\.cfg: is not the config of a pipeline"):
        mixes_of_pipeline(tmp_path)
    nlp.to_disk(tmp_path / "alone")
    with pytest.raises(ElmoError, match=r"no component of this pipeline listens to ELMo \(elmo\)"):
        mixes_of_pipeline(tmp_path / "alone")
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.to_disk(tmp_path / "early")
    with pytest.raises(ElmoError, match="tagger: saved before it was initialized"):
        mixes_of_pipeline(tmp_path / "early")
    trained(bilm, 0).to_disk(tmp_path / "broken")
    (tmp_path / "broken" / "ner" / "model").write_bytes(b"broken")
    with pytest.raises(ElmoError, match="tagger, ner cannot be loaded"):
        mixes_of_pipeline(tmp_path / "broken")


def test_table_has_a_row_for_each() -> None:
    short = Mix(component="a", number=1, place=None, weights=(0.25, 0.75), gamma=1.5, learned=True)
    long = Mix(component="b", number=1, place=None, weights=(0.2, 0.3, 0.5), gamma=1.0, learned=False)
    assert table([short, long]) == [
        ["listener", "layer 0", "layer 1", "layer 2", "γ", ""],
        ["a", "0.250", "0.750", "", "1.500", "learned"],
        ["b", "0.200", "0.300", "0.500", "1.000", "fixed"],
    ]


def test_the_model_card_of_spacy_package(bilm: BiLM) -> None:
    nlp = trained(bilm)
    nlp.meta["notes"] = "Of no use but here."
    assert write_mix_notes(nlp) is nlp
    readme = generate_readme(nlp.meta)
    assert "Of no use but here." in readme
    assert "### ELMo" in readme
    assert "| ner | 0.090 | 0.245 | 0.665 | 1.000 | fixed |" in readme
    # Again, after more training: in the place of what was there.
    first = nlp.meta["notes"]
    write_mix_notes(nlp)
    assert nlp.meta["notes"] == first
    nlp.meta["notes"] += "\n\nMore."
    nlp.remove_pipe("ner")
    write_mix_notes(nlp)
    assert nlp.meta["notes"].startswith("Of no use but here.\n\nMore.")
    assert nlp.meta["notes"].count("### ELMo") == 1
    assert "| ner |" not in nlp.meta["notes"]
    nlp.remove_pipe("tagger")
    assert write_mix_notes(nlp).meta["notes"] == "Of no use but here.\n\nMore."


def test_a_pipeline_without_listeners_gets_no_notes(nlp: Any) -> None:
    before = dict(nlp.meta)
    write_mix_notes(nlp)
    assert nlp.meta == before


def test_spacy_train_writes_them(bilm: BiLM, tmp_path: Path) -> None:
    nlp = trained(bilm, 0)
    callback = {"@callbacks": "spacy-elmo.mix_notes.v1"}
    config = nlp.config.copy()
    config["training"] |= {
        "before_to_disk": callback,
        "max_steps": 2,
        "eval_frequency": 1,
        "train_corpus": "corpora.examples",
        "dev_corpus": "corpora.examples",
    }
    config["corpora"] = {"examples": {"@readers": "test.mix_examples.v1"}}

    @spacy.registry.readers("test.mix_examples.v1")
    def make() -> Any:
        return lambda nlp: iter(examples(nlp))

    nlp.config = Config(config)
    train(nlp, tmp_path, stdout=_quiet(), stderr=_quiet())
    saved = spacy.load(tmp_path / "model-last")
    rows = [" | ".join(row) for row in table(mixes_of(saved))]
    assert all(f"| {row} |" in saved.meta["notes"] for row in rows)
    assert mixes_of(saved)[0].gamma != 1.0


def _quiet() -> Any:
    import io

    return io.StringIO()


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_is_the_same_each_time(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    mixes = [
        Mix(component="ner", number=1, place="model.tok2vec.elmo", weights=(0.2, 0.55, 0.25), gamma=1.5, learned=True),
        Mix(component="ner", number=2, place="model.tok2vec.elmo_output", weights=(0.01, 0.99), gamma=1, learned=True),
    ]
    path = draw_mixes(mixes, tmp_path / f"mix{suffix}")
    first = path.read_bytes()
    assert first.startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")
    assert draw_mixes(mixes, path).read_bytes() == first
    assert draw_mixes(mixes[:1], path).read_bytes() != first
    if suffix == ".svg":
        # Every number that has room, and the labels.
        assert all(f"<!-- {text}" in first.decode() for text in ("0.55", "0.99", "ner, input", "ner, output"))
        assert "<!-- 0.01" not in first.decode()


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = Mix(component="ner", number=1, place=None, weights=(0.2, 0.8), gamma=1.5, learned=True)
    with pytest.raises(ElmoError, match=r"mix.pdf: a picture is named .svg or .png"):
        draw_mixes([mix], tmp_path / "mix.pdf")
    with pytest.raises(ElmoError, match="no mixes to draw"):
        draw_mixes([], tmp_path / "mix.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ElmoError, match=r'matplotlib: pip install "spacy-elmo\[plot\]"'):
        draw_mixes([mix], tmp_path / "mix.svg")
    assert list(tmp_path.iterdir()) == []

"""Where h5py is missing, `spacy.blank("en")` and all but `.hdf5` works. allennlp and TensorFlow are never needed.

spaCy imports every factory's entry point, ours too, so an import error of ours would break spaCy for everybody.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spacy_elmo import BiLM, save_bilm

SCRIPT = """
import sys
sys.modules.update(dict.fromkeys(["h5py", "matplotlib", "tensorflow", "allennlp", "bilm"]))  # None: an ImportError
import json, spacy
nlp = spacy.blank("en")
found = {"tokens": [token.text for token in nlp("It still works.")]}
nlp.add_pipe("elmo").load_weights(sys.argv[1])
found["shape"] = nlp("It still works.")._.elmo.layers.shape
import spacy_elmo
try:
    spacy_elmo.load_bilm(sys.argv[2])
except spacy_elmo.ElmoError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


def test_spacy_and_elmo_work_and_hdf5_weights_name_the_install_line(bilm: BiLM, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from spacy_elmo.weights import save_bilm_hdf5

    save_bilm(bilm, tmp_path / "native")
    save_bilm_hdf5(bilm, tmp_path / "hdf5")
    arguments = [str(tmp_path / "native"), str(tmp_path / "hdf5")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == ["It", "still", "works", "."]
    assert found["shape"] == [3, 4, 16]
    assert 'pip install "spacy-elmo[hdf5]"' in found["error"]

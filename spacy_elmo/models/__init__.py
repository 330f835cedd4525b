"""Built-in weights, a folder each: the name of a language, `__init__.py`, and what `elmo convert --no-softmax` writes.

Data alone: setup.cfg offers each folder in the entry-point group `spacy_elmo_weights` (see weights/builtin.py).
"""

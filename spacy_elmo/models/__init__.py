"""Built-in weights, a folder each by the code of a language: what scripts/builtin_model.py writes, a card, a licence.

Data alone: setup.cfg offers each folder in the entry-point group `spacy_elmo_weights` (see weights/builtin.py).
"""

"""The spaCy component. Import it from its module."""

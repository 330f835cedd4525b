"""Built-in weights of the language "en": data alone, see README.md."""

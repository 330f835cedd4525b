"""The parts of `debug_data`: from words and sentences to figures, and from these to words."""

"""The thinc layers that spaCy's config system builds. Import them from their modules."""

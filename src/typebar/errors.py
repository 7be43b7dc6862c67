"""Exceptions that typebar raises for bad input, all under one root."""


class TypebarError(Exception):
    """Root of every error that typebar raises on purpose. Its text names the thing and the remedy."""


class ModelFileError(TypebarError):
    """A model file is damaged, incomplete, or of a kind that typebar does not run."""

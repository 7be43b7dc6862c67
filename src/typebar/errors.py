"""Exceptions that typebar raises for bad input, all under one root."""


class TypebarError(Exception):
    """Root of every error that typebar raises on purpose. Its text names the thing and the remedy."""


class ModelFileError(TypebarError):
    """A model file is damaged, incomplete, or of a kind that typebar does not run."""


class ParameterError(TypebarError, ValueError):
    """A setting or a field of a request has a wrong type or is out of range.

    `field` names it, `expected` says what it takes.
    """

    def __init__(self, field: str, expected: str, value: object) -> None:
        shown = repr(value)
        super().__init__(f"{field} must be {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")
        self.field = field
        self.expected = expected

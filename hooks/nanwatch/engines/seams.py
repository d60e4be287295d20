"""A place in an engine that nanwatch hooks into is not there; says which."""


class MissingSeamError(Exception):
    """A place in an engine that nanwatch hooks into is not there; says which."""

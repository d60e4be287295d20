"""What an adapter raises where it cannot take hold of its engine."""


class MissingSeamError(Exception):
    """A place in an engine that nanwatch hooks into is not there; says which."""

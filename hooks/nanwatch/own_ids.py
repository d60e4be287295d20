"""The ids of a step, checked and copied; copied once for all steps of the same batch."""

from collections.abc import Sequence

from .attribution import check_ids


class OwnIds:
    """The copy that was made last, and is handed out again while the batch stays as it is."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Sequence[str] = ()

    def of(self, request_ids: Sequence[str]) -> Sequence[str]:
        """Return a checked copy; where the ids are those of the last step, that step's copy.

        Comparing with the same strings costs about what copying would, so the look for ids that
        stand twice is paid only when the batch changes.

        Raises:
            ValueError, TypeError: they are not ids, or one stands twice.
        """
        known = self._last  # read once: another thread may observe with the same probe
        if not isinstance(request_ids, list | tuple | str):
            request_ids = list(request_ids)
        if request_ids == known:
            return known
        check_ids(request_ids)
        self._last = own = request_ids if isinstance(request_ids, tuple) else list(request_ids)
        return own

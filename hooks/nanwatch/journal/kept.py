"""Which corrupted requests are kept, so that memory and file stay bounded.

Kept are: the live ones of the current life (at most LIVE, the newest), the NEWEST of all, and
the FIRST of each of the last LIVES lives, because the first corrupted request tells most: one
NaN spreads through reused KV blocks. Totals are counted elsewhere and never pruned.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

NEWEST = 10_000
FIRST = 100
LIVES = 100
LIVE = 65_536

T = TypeVar("T")
Key = tuple[str, str, int]  # (life, request id, n)


class Kept(Generic[T]):
    """Entries in the order of their first appearance; an entry put again stays in its place.

    `slack`: how many more than are kept may gather before they are pruned, which takes some 5 ms.
    """

    def __init__(
        self, newest: int = NEWEST, first: int = FIRST, live: int = LIVE, slack: int | None = None
    ) -> None:
        self._slack = newest if slack is None else slack
        self._newest, self._first, self._live = newest, first, live
        self._entries: dict[Key, T] = {}
        self._unfinished: dict[Key, None] = {}
        self._prune_at = newest + self._slack

    def put(self, key: Key, value: T, *, finished: bool) -> None:
        """Add or replace one entry; prunes once more than the slack has gathered, so it stays cheap."""
        self._entries[key] = value
        if finished:
            self._unfinished.pop(key, None)
        else:
            self._unfinished[key] = None
        if len(self._entries) > self._prune_at:
            self.prune(key[0])

    def put_before(self, earlier: Iterable[tuple[Key, T]]) -> None:
        """Put what ended lives left before the entries of this one."""
        self._entries = {**dict(earlier), **self._entries}
        self._prune_at = max(self._prune_at, len(self._entries) + self._slack)

    def prune(self, life: str) -> None:
        """Drop what the rules at the top do not keep; `life` is the current one."""
        self._unfinished = {key: None for key in self._unfinished if key[0] == life}
        kept_for_more = {*islice(reversed(self._unfinished), self._live), *self._first_of_each_life()}
        for key in list(islice(self._entries, max(0, len(self._entries) - self._newest))):
            if key not in kept_for_more:
                del self._entries[key]  # in place: a second table would be memory for good
        self._unfinished = {key: None for key in self._unfinished if key in self._entries}
        self._prune_at = len(self._entries) + self._slack

    def items(self) -> Iterator[tuple[Key, T]]:
        """Every kept entry, oldest first."""
        return iter(self._entries.items())

    def values(self) -> Iterator[T]:
        """Every kept value, oldest first."""
        return iter(self._entries.values())

    def newest_first(self) -> Iterator[T]:
        """Every kept value, newest first."""
        return reversed(self._entries.values())

    def get(self, key: Key) -> T | None:
        """Return the kept value of a key, None where there is none."""
        return self._entries.get(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __getitem__(self, key: Key) -> T:
        return self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def _first_of_each_life(self) -> Iterator[Key]:
        lives = dict.fromkeys(key[0] for key in self._entries)
        recent = set(islice(reversed(lives), LIVES))
        seen: Counter[str] = Counter()
        for key in self._entries:
            seen[key[0]] += 1
            if key[0] in recent and seen[key[0]] <= self._first:
                yield key

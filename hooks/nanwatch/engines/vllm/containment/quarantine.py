"""KV blocks that a corrupted request held: kept from everybody until they are known to be clean.

A block of vLLM's pool may be used again when nobody refers to it. The quarantine refers to each of
these blocks itself, and takes it out of the prefix cache. `fence` is the number of the last step that
may still write to it.

    NEW      the steps that may write to it are done -> scanned, and
                 nobody else refers to it    zeroed and given back: the worker zeroes before it computes
                 a living request does       ASKED: what did the scan find?
    ASKED    clean                           given back, not to be found in the prefix cache again
             poisoned                        DIRTY, and its readers are to end
             nobody else refers to it        zeroed and given back, whatever is found
    DIRTY    nobody else refers to it        zeroed and given back

Pure bookkeeping: it knows vLLM's block pool by four methods, and no thread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from .messages import Order, Scan


class Block(Protocol):
    """What the quarantine needs of vLLM's KVCacheBlock."""

    block_id: int
    ref_cnt: int
    is_null: bool


class Pool(Protocol):
    """What it needs of vLLM's BlockPool."""

    def touch(self, blocks: Sequence[Block]) -> None:
        """Refer to these blocks once more."""

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Refer to them once less; those that nobody refers to may be used again."""

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Take them out of the prefix cache."""


class State(Enum):
    """What is known of a block that is held back."""

    NEW = auto()
    ASKED = auto()
    DIRTY = auto()


@dataclass(slots=True)
class Held:
    """One block that is held back."""

    block: Block
    fence: int
    state: State = State.NEW
    asked_by: int = 0  # the number of the order

    @property
    def alone(self) -> bool:
        """Whether nobody but the quarantine refers to it."""
        return self.block.ref_cnt == 1


class Quarantine:
    """The blocks of one engine that are held back, and the orders about them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._held: dict[int, Held] = {}
        self._reported: frozenset[int] = frozenset()  # held when the last order left
        self._aborted = 0  # since the last order
        self._number = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, blocks: Iterable[Block], fence: int) -> None:
        """Take in blocks that steps up to `fence` may write to."""
        found = [block for block in blocks if not block.is_null]
        new = [block for block in found if block.block_id not in self._held]
        self._pool.touch(new)
        self._pool.evict_blocks({block.block_id for block in found})
        for block in found:
            known = self._held.get(block.block_id)
            if known is not None and known.state is State.DIRTY:
                known.fence = fence  # a reader of it has ended: what the scan found still holds
            else:
                self._held[block.block_id] = Held(block, fence)

    def count_aborted(self, requests: int) -> None:
        """Have the next order report that so many requests were ended."""
        self._aborted += requests

    def learn(self, scans: Iterable[Scan]) -> frozenset[int]:
        """Take what scans found; returns blocks with NaN that somebody else still refers to."""
        dirty = set()
        for scan in scans:
            for held in [held for held in self._held.values() if _answers(scan, held)]:
                if held.block.block_id in scan.poisoned:
                    held.state = State.DIRTY
                    dirty.add(held.block.block_id)
                else:
                    self._give_back([held])
        return frozenset(dirty)

    def is_due(self, done: int) -> bool:
        """Whether there is an order to give once the steps up to `done` are done."""
        return self._aborted > 0 or any(_is_due(held, done) for held in self._held.values())

    def order(self, done: int) -> Order | None:
        """Return what is to be done before the next step, if anything; `done`: the last step that is.

        Blocks that it has zeroed are given back already: they may be used by the step it comes with.
        """
        if not self.is_due(done) and self._reported == self._held.keys():
            return None
        due = [held for held in self._held.values() if _is_due(held, done)]
        scan = tuple(held.block.block_id for held in due if held.state is State.NEW)
        zero = [held for held in due if held.alone]
        self._number += 1
        for held in due:
            if held.state is State.NEW:
                held.state, held.asked_by = State.ASKED, self._number
        self._give_back(zero)
        return self._reporting(scan, tuple(held.block.block_id for held in zero))

    def _reporting(self, scan: tuple[int, ...], zero: tuple[int, ...]) -> Order:
        before, now = self._reported, frozenset(self._held)
        aborted, self._aborted, self._reported = self._aborted, 0, now
        return Order(
            self._number, scan, zero, aborted, quarantined=len(now - before), released=len(before - now)
        )

    def _give_back(self, many: Sequence[Held]) -> None:
        for held in many:
            del self._held[held.block.block_id]
        self._pool.free_blocks([held.block for held in many])


def _is_due(held: Held, done: int) -> bool:
    return held.fence <= done and (held.state is State.NEW or held.alone)


def _answers(scan: Scan, held: Held) -> bool:
    return held.state is State.ASKED and held.asked_by == scan.order

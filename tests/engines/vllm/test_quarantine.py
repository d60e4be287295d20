"""The life of a held block. `Pool` stands for vLLM's block pool; test_real_spared.py runs the real one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nanwatch.engines.vllm.containment.messages import Order, Scan
from nanwatch.engines.vllm.containment.quarantine import Block as AnyBlock
from nanwatch.engines.vllm.containment.quarantine import Quarantine


@dataclass(eq=False)
class Block:
    block_id: int
    ref_cnt: int = 1  # one request holds it
    is_null: bool = False


@dataclass
class Pool:
    evicted: set[int] = field(default_factory=set)
    freed: list[int] = field(default_factory=list)

    def touch(self, blocks: Sequence[AnyBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[AnyBlock]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.freed.append(block.block_id)

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.evicted |= block_ids


def test_a_block_of_one_request_is_zeroed_once_its_last_step_is_done() -> None:
    """And may be used by the very step that its zeroing comes with."""
    pool, block = Pool(), Block(7)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=5)
    assert pool.evicted == {7}
    pool.free_blocks([block])  # the request ends
    assert pool.freed == []
    assert quarantine.order(done=4) == Order(1, quarantined=1)
    assert pool.freed == []
    assert quarantine.order(done=5) == Order(2, scan=(7,), zero=(7,), released=1)
    assert pool.freed == [7]
    assert len(quarantine) == 0


def test_a_block_that_is_cleaned_with_the_next_step_was_never_in_the_gauge() -> None:
    pool, block = Pool(), Block(7)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=5)
    quarantine.count_aborted(1)
    pool.free_blocks([block])
    assert quarantine.order(done=5) == Order(1, scan=(7,), zero=(7,), aborted=1)
    assert quarantine.order(done=6) is None


def test_a_clean_block_of_a_living_reader_is_given_back_as_it_is() -> None:
    """Its reader keeps it; a zeroed one would be wrong for the reader."""
    pool, block = Pool(), Block(7, ref_cnt=2)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=1)
    pool.free_blocks([block])  # the corrupted one ends, a reader is left
    assert quarantine.order(done=1) == Order(1, scan=(7,), quarantined=1)
    assert quarantine.order(done=2) is None
    assert quarantine.learn([Scan(1, frozenset())]) == frozenset()
    assert block.ref_cnt == 1
    assert quarantine.order(done=3) == Order(2, released=1)
    pool.free_blocks([block])
    assert pool.freed == [7]


def test_a_poisoned_block_of_a_living_reader_is_named_and_zeroed_when_the_reader_is_gone() -> None:
    """It is scanned once: its readers end for it, and are not counted as a second find."""
    pool, block = Pool(), Block(7, ref_cnt=2)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=1)
    pool.free_blocks([block])
    quarantine.order(done=1)
    assert quarantine.learn([Scan(1, frozenset({7}))]) == frozenset({7})
    quarantine.hold([block], fence=2)  # the reader ends for it
    pool.free_blocks([block])
    assert quarantine.order(done=1) is None
    assert quarantine.order(done=2) == Order(2, zero=(7,), released=1)
    assert pool.freed == [7]


def test_a_reader_that_ends_before_the_scan_is_known_leaves_a_zeroed_block() -> None:
    pool, block = Pool(), Block(7, ref_cnt=2)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=1)
    pool.free_blocks([block])
    quarantine.order(done=1)
    pool.free_blocks([block])
    assert quarantine.order(done=2) == Order(2, zero=(7,), released=1)
    assert quarantine.learn([Scan(1, frozenset({7}))]) == frozenset()
    assert pool.freed == [7]


def test_the_answer_to_an_older_scan_says_nothing_of_a_block_that_was_used_since() -> None:
    pool, block = Pool(), Block(7, ref_cnt=2)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=1)
    pool.free_blocks([block])
    quarantine.order(done=1)
    quarantine.hold([block], fence=2)  # a second corrupted reader, before the answer
    block.ref_cnt += 1  # and one more reader
    pool.free_blocks([block])
    assert quarantine.order(done=2) == Order(2, scan=(7,))
    assert quarantine.learn([Scan(1, frozenset())]) == frozenset()
    assert len(quarantine) == 1
    assert quarantine.learn([Scan(2, frozenset({7}))]) == frozenset({7})


def test_a_block_of_two_corrupted_requests_is_held_once() -> None:
    pool, block = Pool(), Block(7, ref_cnt=2)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=1)
    quarantine.hold([block, Block(0, is_null=True)], fence=1)
    pool.free_blocks([block])
    pool.free_blocks([block])
    assert quarantine.order(done=1) == Order(1, scan=(7,), zero=(7,))
    assert pool.freed == [7]


def test_nothing_is_due_while_the_answer_of_a_scan_is_awaited() -> None:
    """An idle engine that asked `is_due` would otherwise make empty steps for ever."""
    pool, block = Pool(), Block(7, ref_cnt=2)
    quarantine = Quarantine(pool)
    quarantine.hold([block], fence=1)
    pool.free_blocks([block])
    assert not quarantine.is_due(done=0)
    assert quarantine.is_due(done=1)
    quarantine.order(done=1)
    assert not quarantine.is_due(done=1)

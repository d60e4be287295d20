"""Which corrupted requests are kept, and in what order."""

from hypothesis import given
from hypothesis import strategies as st

from nanwatch.journal.kept import FIRST, LIVE, LIVES, NEWEST, Kept, Key


def key(number: int, life: str = "now") -> Key:
    return (life, f"request-{number}", 0)


def numbers(kept: Kept[int]) -> list[int]:
    return list(kept.values())


def filled(kept: Kept[int], numbers: range, *, finished: bool = True, life: str = "now") -> Kept[int]:
    for number in numbers:
        kept.put(key(number, life), number, finished=finished)
    return kept


def test_the_limits_are_the_documented_ones() -> None:
    """docs/journal.md names them."""
    assert (NEWEST, FIRST, LIVES, LIVE) == (10_000, 100, 100, 65_536)


def test_the_newest_and_the_first_stay() -> None:
    """Of 100 ended requests the first 2 and the newest 5."""
    kept = filled(Kept(newest=5, first=2, live=3), range(100))
    kept.prune("now")
    assert numbers(kept) == [0, 1, 95, 96, 97, 98, 99]


def test_live_ones_stay_however_old() -> None:
    """Up to their own limit, of which the newest."""
    kept: Kept[int] = Kept(newest=5, first=2, live=3)
    filled(kept, range(10), finished=False)
    filled(kept, range(10, 100))
    kept.prune("now")
    assert numbers(kept) == [0, 1, 7, 8, 9, 95, 96, 97, 98, 99]


def test_one_that_finishes_is_live_no_longer() -> None:
    """... and stays where it was, by another rule or not at all."""
    kept: Kept[int] = Kept(newest=2, first=0, live=10)
    filled(kept, range(3), finished=False)
    filled(kept, range(1, 2), finished=True)
    filled(kept, range(10, 12))
    kept.prune("now")
    assert numbers(kept) == [0, 2, 10, 11]


def test_the_live_ones_of_another_life_ended_with_it() -> None:
    """Nothing of an ended life is live."""
    kept = filled(Kept(newest=2, first=1, live=10), range(5), finished=False, life="before")
    filled(kept, range(5, 10), finished=False)
    kept.prune("now")
    assert numbers(kept) == [0, 5, 6, 7, 8, 9]


def test_the_first_of_the_last_lives_stay() -> None:
    """Each of the last LIVES lives keeps its first ones; one before them keeps none."""
    kept: Kept[int] = Kept(newest=1, first=2, live=0)
    for life in range(LIVES + 1):
        filled(kept, range(life * 10, life * 10 + 3), life=f"life-{life}")
    kept.prune(f"life-{LIVES}")
    expected = [n for life in range(1, LIVES + 1) for n in (life * 10, life * 10 + 1)]
    assert numbers(kept) == [*expected, LIVES * 10 + 2]


def test_an_entry_put_again_stays_in_its_place() -> None:
    """The order is that of the first appearance."""
    kept = filled(Kept(), range(3))
    kept.put(key(0), 70, finished=True)
    assert numbers(kept) == [70, 1, 2]
    assert kept[key(0)] == 70
    assert key(0) in kept
    assert key(9) not in kept
    assert [k for k, _ in kept.items()] == [key(0), key(1), key(2)]


def test_it_prunes_by_itself_and_stays_bounded() -> None:
    """Once the table has grown by NEWEST past what was kept."""
    kept: Kept[int] = Kept(newest=10, first=3, live=4)
    largest = 0
    for number in range(1000):
        kept.put(key(number), number, finished=number % 2 == 0)
        largest = max(largest, len(kept))
    assert largest <= 10 + 3 + 4 + 10 + 1
    assert numbers(kept)[:3] == [0, 1, 2]
    assert numbers(kept)[-10:] == list(range(990, 1000))


def test_what_earlier_lives_left_stands_before_our_own() -> None:
    """... is live no longer, and does not set off a prune at once."""
    kept: Kept[int] = Kept(newest=2, first=0, live=5)
    filled(kept, range(10, 12), finished=False)
    kept.put_before((key(number, "before"), number) for number in range(6))
    assert numbers(kept) == [0, 1, 2, 3, 4, 5, 10, 11]
    filled(kept, range(12, 14))
    assert len(kept) == 10
    filled(kept, range(14, 15))
    assert numbers(kept) == [10, 11, 13, 14]


def test_our_own_entry_of_a_key_wins_over_an_earlier_one() -> None:
    """Should a life's name come again, what it says now counts."""
    kept = filled(Kept(), range(1))
    kept.put_before([(key(0), 70)])
    assert numbers(kept) == [0]


puts = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans()), max_size=120)


@given(puts, st.integers(1, 6), st.integers(0, 3), st.integers(0, 6))
def test_pruning_keeps_exactly_what_the_rules_say(
    puts: list[tuple[int, int, bool]], newest: int, first: int, live: int
) -> None:
    """Against the rules written down again, slowly, with no pruning on the way."""
    kept: Kept[int] = Kept(newest, first, live)
    kept._prune_at = 1000
    for step, (life, number, finished) in enumerate(puts):
        kept.put(key(number, f"life-{life}"), step, finished=finished)
    finished_at_last = {key(number, f"life-{life}"): finished for life, number, finished in puts}
    order = list(dict.fromkeys(key(number, f"life-{life}") for life, number, _ in puts))
    kept.prune("life-0")
    live_now = [k for k in order if k[0] == "life-0" and not finished_at_last[k]]
    # An entry that is finished and put as live again is live from then on: its place among the live
    # ones is that of the last change, which matters only past the limit.
    assert set(order[-newest:]) <= {k for k, _ in kept.items()}
    if len(live_now) <= live:
        firsts = {k for k in order if [o for o in order if o[0] == k[0]].index(k) < first}
        assert [k for k, _ in kept.items()] == [
            k for k in order if k in {*order[-newest:], *live_now, *firsts}
        ]
    assert len(kept) <= newest + live + 3 * first

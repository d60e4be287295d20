"""Which requests live, which are corrupted, and how often an id was used."""

from hypothesis import given
from hypothesis import strategies as st

from nanwatch.lifetimes import Lifetimes, Sighting

AT = Sighting(step=1, wall_seconds=10.0, boot_ns=20)


def test_a_request_is_new_once_however_many_steps_name_it() -> None:
    lifetimes = Lifetimes("life")
    ids = ["a", "b"]
    assert [lifetimes.see(ids, step) for step in (1, 2, 3)] == [2, 0, 0]
    assert lifetimes.see(["b", "c"], 4) == 1


def test_an_id_that_is_used_again_after_finish_is_another_request() -> None:
    lifetimes = Lifetimes("life")
    ids = ["a"]
    assert lifetimes.see(ids, 1) == 1
    first = lifetimes.charge("a", AT, "decode", 1, 5)
    assert lifetimes.finish(["a"])[0].finished
    assert lifetimes.see(ids, 2) == 1
    second = lifetimes.charge("a", AT, "decode", 1, 5)
    assert (first.key, second.key) == (("life", "a", 0), ("life", "a", 1))


def test_a_corrupted_request_keeps_its_first_step_and_phase_and_adds_up_the_rest() -> None:
    lifetimes = Lifetimes("life")
    lifetimes.see(["a"], 1)
    lifetimes.charge("a", AT, "prefill", 1, 5)
    later = lifetimes.charge("a", Sighting(7, 99.0, 99), "decode", 2, 3)
    assert (later.first_step, later.phase, later.first_seen_seconds) == (1, "prefill", 10.0)
    assert (later.rows, later.values) == (3, 8)


def test_finish_ends_only_requests_that_live_and_returns_only_the_corrupted_ones() -> None:
    lifetimes = Lifetimes("life")
    lifetimes.see(["clean", "bad"], 1)
    lifetimes.charge("bad", AT, "decode", 1, 1)
    assert [r.request_id for r in lifetimes.finish(["clean", "bad", "never seen"])] == ["bad"]
    assert lifetimes.finish(["bad"]) == []
    lifetimes.see(["never seen"], 2)
    assert lifetimes.charge("never seen", AT, "decode", 1, 1).n == 0


def test_the_same_list_seen_again_after_a_finish_is_new_requests() -> None:
    lifetimes = Lifetimes("life")
    ids = ["a", "b"]
    lifetimes.see(ids, 1)
    lifetimes.finish(["a", "b"])
    assert lifetimes.see(ids, 2) == 2


def test_past_the_limit_the_longest_unseen_healthy_are_forgotten_and_corrupted_never() -> None:
    lifetimes = Lifetimes("life", most_live=10)
    lifetimes.see(["old bad", "old"], 1)
    lifetimes.charge("old bad", AT, "decode", 1, 1)
    for step in range(2, 40):
        lifetimes.see([f"r{step}", "steady"], step)
    assert lifetimes.is_corrupted("old bad")
    assert lifetimes.see(["steady"], 40) == 0
    assert lifetimes.see(["old bad"], 41) == 0
    assert lifetimes.see(["old"], 42) == 1


def test_a_batch_that_stays_the_same_is_not_forgotten_as_unseen() -> None:
    lifetimes = Lifetimes("life", most_live=10)
    steady = ["s1", "s2"]
    lifetimes.see([f"old{i}" for i in range(5)], 1)
    for step in range(2, 30):
        lifetimes.see(steady, step)
    lifetimes.see([f"old{i}" for i in range(1)], 30)
    lifetimes.see([f"new{i}" for i in range(4)], 31)
    assert lifetimes.see(["s1", "s2"], 32) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=80))
def test_no_two_requests_ever_share_a_key_however_little_is_remembered(uses: list[tuple[str, bool]]) -> None:
    lifetimes = Lifetimes("life", most_finished=2)
    keys = set()
    for step, (name, bad) in enumerate(uses):
        lifetimes.see([name], step)
        if bad:
            key = lifetimes.charge(name, AT, "decode", 1, 1).key
            assert key not in keys
            keys.add(key)
        lifetimes.finish([name])

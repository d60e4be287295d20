"""`pytest --nanwatch`, in real runs of pytest: suite.py with the option, without it, and under xdist."""

import os
import subprocess
import sys
import textwrap
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SUITE = Path(__file__).with_name("suite.py")
ENTRY = "nanwatch.pytest_plugin"
# An environment that was set up before the entry point was there has to be told.
LOADED = [] if ENTRY in {e.value for e in entry_points(group="pytest11")} else ["-p", ENTRY]

ONE_ROW = "sample 1 of Model, first at step 1: 8 NaN in 1 logits row"
# What fails, and the words that it fails with.
FAILED = {
    "test_bad": ONE_ROW,
    "test_named": "request 'b' of Model, first at step 2: 16 NaN in 2 logits rows",
    "test_positions": "sample 0 of Model, first at step 1: 8 NaN in 1 logits row",
    "test_wrapped_bad": "sample 1 of Wrapper, first at step 1: 8 NaN in 1 logits row",
    "TestOfUnittest.test_bad": ONE_ROW,
    "test_async[asyncio]": ONE_ROW,
    "test_each[nan]": "sample 0 of Model, first at step 1: 8 NaN in 1 logits row",
    "test_in_a_thread": ONE_ROW,
    "test_compiled": ONE_ROW,
    "test_after_it": ONE_ROW,
}
# Those ten, and test_raises, test_fixture, test_expected_to_fail, test_may. A step each, save three in
# test_named and none in test_skipped_inside_a_forward.
SUMMARY = "nanwatch: 14 of 19 tests made NaN in logits, 1 of them may; 20 steps looked at"


@pytest.fixture(autouse=True)
def users_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a user of nanwatch may have set; none of it has a say here."""
    monkeypatch.setenv("NANWATCH_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    done = pytester.runpytest_subprocess(*LOADED, "-W", "error", "--strict-markers", *arguments, timeout=150)
    assert not Path(os.environ["NANWATCH_JOURNAL"]).exists()
    return done


def sections(done: pytest.RunResult) -> dict[str, str]:
    """Return what stands below each title of the report: the test's name, or "ERROR at ..."."""
    found: dict[str, str] = {}
    title = ""
    for line in done.outlines:
        if line.startswith("__") and line.endswith("__"):
            title = line.strip("_ ")
        else:
            found[title] = found.get(title, "") + line + "\n"
    return found


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_test_that_makes_nan_in_logits_fails_with_its_requests(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_suite=SUITE.read_text(encoding="utf-8"))
    done = run(pytester, "--nanwatch", "-k", "not trio", *workers)
    done.assert_outcomes(passed=5, failed=11, errors=1, xfailed=1, skipped=1)
    told = sections(done)
    for name, words in FAILED.items():
        first_line = told[name].splitlines()
        assert f"NaN in the logits of {words}" in first_line, name
    assert "KeyError: 'its own'" in told["test_raises"]
    assert f"NaN in the logits of {ONE_ROW}" in told["test_raises"]
    assert f"NaN in the logits of {ONE_ROW}" in told["ERROR at setup of test_fixture"]
    assert SUMMARY in done.outlines


def test_without_the_option_nothing_is_looked_at_and_nothing_is_imported(pytester: pytest.Pytester) -> None:
    code = """
        import sys
        import pytest

        @pytest.mark.allow_nan
        def test_nothing_is_imported():
            ours = {name for name in sys.modules if name.startswith("nanwatch")}
            assert ours <= {"nanwatch", "nanwatch.pytest_plugin"}
            assert "torch" not in sys.modules
    """
    pytester.makepyfile(code)
    done = run(pytester)
    done.assert_outcomes(passed=1)
    assert "nanwatch:" not in done.stdout.str()


def test_the_ini_file_switches_it_on_and_no_torch_is_imported_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_nothing(): assert 'torch' not in sys.modules")
    pytester.makeini("[pytest]\nnanwatch = true\n")
    done = run(pytester)
    done.assert_outcomes(passed=1)
    assert "nanwatch: 0 of 1 tests made NaN in logits; 0 steps looked at" in done.outlines


def test_in_generate_the_request_is_told_with_its_phase_and_padding_is_let_go(
    pytester: pytest.Pytester,
) -> None:
    """Greedy, 3 tokens of 64 values: the poisoned prompt's 3 rows, and not those of one that has ended."""
    code = """
        import nanwatch
        from tests.engines.huggingface.tiny import Plan, following, prompts, tiny_llama

        def test_poisoned():
            tiny_llama().generate(**prompts([5, 6], [5, 3, 7]), max_new_tokens=3, do_sample=False)

        def test_nan_after_the_end():
            model = tiny_llama()
            plan = Plan(eos=frozenset({(1, 0)}), nan={(2, 0): 64, (3, 0): 64})
            with following(model, plan), nanwatch.request_ids(["a", "b"]):
                model.generate(**prompts([5, 6], [5, 8]), max_new_tokens=3, do_sample=False)
    """
    pytester.makepyfile(test_it=textwrap.dedent(code))
    done = run(pytester, "--nanwatch")
    done.assert_outcomes(passed=1, failed=1)
    told = sections(done)["test_poisoned"]
    words = "sample 1 of LlamaForCausalLM, first at step 1 (prefill): 192 NaN in 3 logits rows"
    assert f"NaN in the logits of {words}" in told.splitlines()


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"nanwatch": ENTRY}
    assert import_module(ENTRY).__doc__


def test_pytest_is_no_dependency_of_anything_else() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import nanwatch.attach, nanwatch.cli, nanwatch.testing.watching; print('without pytest')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "without pytest\n"

"""watch_engines(): from inside a program, before its engine's import or after; it never breaks one.

Each script runs in an interpreter of its own: what is hooked into stays so for the process. The engine is
a package of Transformers' name, version 99.0, in a temporary folder; its missing seam stands for a fault.
"""

import logging
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from nanwatch import attach
from nanwatch.engines.seams import MissingSeamError
from nanwatch.journal.reader import JournalReader

LOOKS_AWAY = (
    "nanwatch 0.1.0 does not look at transformers 99.0: "
    "there is no transformers.generation.utils.GenerationMixin.generate; the program runs on\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"": "__version__ = '99.0'", "generation": "", "generation/utils": ""}.items():
        package = tmp_path / "transformers" / name
        package.mkdir()
        (package / "__init__.py").write_text(text, encoding="utf-8")
    return tmp_path


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
    )


@pytest.mark.parametrize(
    "script",
    [
        "nanwatch.watch_engines(); import transformers.generation.utils",
        "import transformers.generation.utils; nanwatch.watch_engines()",
        "import transformers; nanwatch.watch_engines(); import transformers.generation.utils",
        (
            "n = len(sys.meta_path); [nanwatch.watch_engines() for _ in range(3)]; "
            "assert len(sys.meta_path) == n + 1; import transformers.generation.utils"
        ),
    ],
)
def test_before_the_import_or_after_it_once_or_thrice(journal: Path, folder: Path, script: str) -> None:
    done = run(f"import sys, nanwatch; {script}; print('torch' in sys.modules)", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", LOOKS_AWAY)
    reader = JournalReader(journal)
    reader.poll()
    reader.close()
    assert len(reader.sources) == 1


@pytest.mark.parametrize("value", ["0", "off"])
def test_switched_off_nothing_is_installed(
    journal: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("NANWATCH_ENABLED", value)
    script = """
        import sys, nanwatch
        before = list(sys.meta_path)
        nanwatch.watch_engines()
        import transformers.generation.utils
        print(sys.meta_path == before)
    """
    done = run(script, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert not journal.exists()


def test_where_fail_fast_is_meant_and_not_understood_the_call_refuses_and_what_else_is_wrong_is_let_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import nanwatch; nanwatch.watch_engines(); print('on')"
    monkeypatch.setenv("NANWATCH_ENABLED", "maybe")
    assert run(script, folder).stdout == "on\n"
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "ture")
    done = run(script, folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("nanwatch.settings.SettingsError: NANWATCH_")


def test_under_nanwatch_run_such_a_variable_breaks_no_import(journal: Path, folder: Path) -> None:
    """It was changed on the way: `nanwatch run` itself refuses one."""
    command = [sys.executable, "-c", "import transformers.generation.utils; print('on')"]
    done = subprocess.run(
        [sys.executable, "-m", "nanwatch", "run", "--", "env", "NANWATCH_FAIL_FAST=ture", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert "install it there" not in done.stderr


def test_a_journal_that_cannot_be_written_breaks_no_import_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_JOURNAL", "/proc/no/such/folder")
    done = run(
        "import nanwatch; nanwatch.watch_engines(); import transformers.generation.utils; print('on')", folder
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.startswith(LOOKS_AWAY)
    assert "nanwatch could not show that it does not look at transformers" in done.stderr


def test_a_seam_that_this_nanwatch_does_not_have_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    for home in ("nanwatch.engines.of_tomorrow", "nanwatch.engines.huggingface.of_tomorrow"):
        attach._take_hold(f"{home}:attach", ModuleType("an_engine.core"))
    assert caplog.records == []


def of_this_test(_module: ModuleType) -> None:
    """Stands for a hook that fails."""
    raise ZeroDivisionError("in the hook")


def of_a_missing_module(_module: ModuleType) -> None:
    """Stands for a hook whose own import fails."""
    import_module("nothing_of_this_name")


@pytest.mark.parametrize(
    ("hook", "what"),
    [(of_this_test, "in the hook"), (of_a_missing_module, "No module named 'nothing_of_this_name'")],
)
def test_a_hook_that_fails_is_one_error_and_the_import_goes_on(
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hook: object,
    what: str,
) -> None:
    ours, engine = ModuleType("nanwatch.engines.of_this_test"), ModuleType(f"engine_{len(what)}")
    vars(ours)["attach"] = hook
    for module in (ours, engine):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for _ in range(2):
        attach._take_hold("nanwatch.engines.of_this_test:attach", ModuleType(f"{engine.__name__}.core"))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        f"nanwatch 0.1.0 does not look at {engine.__name__} of unknown version: {what}; the program runs on"
    )


def test_two_missing_seams_of_one_engine_are_two_lines_and_one_source(
    journal: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ModuleType("engine_of_two")
    vars(engine)["__version__"] = "7"
    monkeypatch.setitem(sys.modules, "engine_of_two", engine)
    for seam in ("there is no a", "there is no b", "there is no a"):
        attach.cannot_look("engine_of_two", MissingSeamError(seam))
    assert [record.getMessage() for record in caplog.records] == [
        f"nanwatch 0.1.0 does not look at engine_of_two 7: there is no {seam}; the program runs on"
        for seam in "ab"
    ]
    reader = JournalReader(journal)
    reader.poll()
    reader.close()
    (source,) = reader.sources
    assert (source.held, source.active, source.labels.runtime) == (True, False, "engine_of_two")
    assert source.start is not None
    assert source.start.versions["engine_of_two"] == "7"

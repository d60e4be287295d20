"""when_imported: an action runs right after a module is loaded, and the import is what it was."""

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nanwatch.import_hook import when_imported

NAME = "an_engine_of_this_test"


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one module in it, on sys.path; the import system is put back afterwards."""
    package = tmp_path / NAME
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "core.py").write_text("loaded = globals().get('loaded', 0) + 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield package
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def seen(into: list[Any]) -> dict[str, Any]:
    return {f"{NAME}.core": lambda module: into.append((module.__name__, module.loaded))}


def test_an_action_gets_the_loaded_module_before_its_importer_does() -> None:
    calls: list[Any] = []
    when_imported(seen(calls))
    importlib.import_module(NAME)
    assert calls == []
    importlib.import_module(f"{NAME}.core")
    assert calls == [(f"{NAME}.core", 1)]


def test_a_module_that_is_there_already_is_shown_at_once() -> None:
    importlib.import_module(f"{NAME}.core")
    calls: list[Any] = []
    when_imported(seen(calls))
    assert calls == [(f"{NAME}.core", 1)]


def test_a_module_that_is_loaded_again_is_shown_again() -> None:
    calls: list[Any] = []
    when_imported(seen(calls))
    importlib.reload(importlib.import_module(f"{NAME}.core"))
    assert calls == [(f"{NAME}.core", 1), (f"{NAME}.core", 2)]


def test_the_module_keeps_the_loader_that_loaded_it() -> None:
    when_imported(seen([]))
    core = importlib.import_module(f"{NAME}.core")
    assert core.__spec__ is not None
    assert [type(core.__loader__), type(core.__spec__.loader)] == [SourceFileLoader, SourceFileLoader]


def test_a_spec_that_is_only_looked_at_can_do_what_the_loaders_can(engine: Path) -> None:
    when_imported(seen([]))
    spec = find_spec(f"{NAME}.core")
    assert spec is not None
    loader: Any = spec.loader
    assert loader.get_source(f"{NAME}.core").startswith("loaded =")
    assert spec.origin == str(engine / "core.py")


def test_a_module_that_fails_to_load_fails_as_ever_and_is_not_shown(engine: Path) -> None:
    (engine / "core.py").write_text("raise OSError('its own')", encoding="utf-8")
    calls: list[Any] = []
    when_imported(seen(calls))
    with pytest.raises(OSError, match="its own"):
        importlib.import_module(f"{NAME}.core")
    assert calls == []


def test_a_module_that_is_not_there_is_not_found_as_ever() -> None:
    when_imported({f"{NAME}.other": lambda _: None})
    with pytest.raises(ModuleNotFoundError, match="other"):
        importlib.import_module(f"{NAME}.other")


class Asking:
    """Another tool's finder, of the kind that asks all finders anew, and looks away meanwhile."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if self._asking or not name.startswith(NAME):
            return None
        self._asking = True
        try:
            return find_spec(name)
        finally:
            self._asking = False


@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_another_tools_finder_the_action_runs_once(*, ours_first: bool) -> None:
    calls: list[Any] = []
    when_imported(seen(calls))
    sys.meta_path.insert(1 if ours_first else 0, Asking())
    importlib.import_module(f"{NAME}.core")
    assert calls == [(f"{NAME}.core", 1)]


def test_two_with_actions_for_one_module_both_see_it() -> None:
    calls: list[Any] = []
    when_imported(seen(calls))
    when_imported(seen(calls))
    importlib.import_module(f"{NAME}.core")
    assert calls == [(f"{NAME}.core", 1)] * 2


def test_other_imports_are_not_touched() -> None:
    when_imported(seen([]))
    assert sys.meta_path[0].find_spec(NAME, None, None) is None
    assert PathFinder in sys.meta_path

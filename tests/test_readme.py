"""The README is held to what is there: names, variables, paths, and its code runs."""

import re
from pathlib import Path

import pytest
import torch

from nanwatch.journal.reader import JournalReader
from nanwatch.settings import _VARIABLES, Settings
from nanwatch_sidecar.app import create_app
from nanwatch_sidecar.collector import NanwatchCollector
from nanwatch_sidecar.journal_view import JournalView
from tests.seen import read

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_table_of_metrics_names_exactly_what_the_sidecar_exports(tmp_path: Path) -> None:
    view = JournalView(JournalReader(tmp_path))
    families = NanwatchCollector(view, fail_fast=False, version="").describe()
    suffix = {"counter": "_total", "info": "_info"}
    exported = {family.name + suffix.get(family.type, "") for family in families}
    view.close(5)
    named = set(re.findall(r"`((?:nanwatch|corrupted)_[a-z_]+)`", section("The sidecar")))
    assert named == exported


def test_the_table_of_variables_names_exactly_what_the_settings_read() -> None:
    named = set(re.findall(r"`(NANWATCH_[A-Z_]+)`", section("Environment")))
    assert named == set(_VARIABLES)


def test_the_table_of_paths_names_what_the_sidecar_answers(tmp_path: Path) -> None:
    view = JournalView(JournalReader(tmp_path))
    routes = {getattr(route, "path", "") for route in create_app(Settings(), view).routes}
    view.close(5)
    named = set(re.findall(r"`(/[a-z0-9/-]*)`", section("The sidecar")))
    assert named
    assert named <= routes


def test_the_loop_in_ten_lines_runs_and_names_the_request(journal: Path) -> None:
    code = re.search(r"```python\n(.*?)```", section("Your own loop in ten lines"), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)  # noqa: S102  the README's own code
    step, probe = names["step"], names["probe"]

    def model(batch: dict[str, list[int]]) -> torch.Tensor:
        logits = torch.zeros(len(batch), 32)
        logits[1, 3] = float("nan")
        return logits

    step(model, {"req-1": [1], "req-2": [2]})  # type: ignore[operator]
    probe.finish(["req-7"])  # type: ignore[attr-defined]
    probe.close()  # type: ignore[attr-defined]
    assert read(journal).ids == ["req-2"]


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http|#)([^)]+)\)", README))
def test_a_file_that_is_linked_is_there(link: str) -> None:
    assert (Path(__file__).parent.parent / link).exists()

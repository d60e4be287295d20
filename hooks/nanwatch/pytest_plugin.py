"""`pytest --nanwatch`: a test whose forward passes made a NaN in logits fails, and says which request.

    pytest --nanwatch                  or `nanwatch = true` in pytest's ini file
    @pytest.mark.allow_nan             this test may
Without the option the marker is known and nothing else is done: no torch, no hook. Under xdist each
worker watches its own tests and sends what it saw along with the reports.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

_NAME = "nanwatch-watching"
# That they fire once more for what it compiled is what is wanted: inside the graph they look away.
_HOOKS_WARNING = "ignore:Using `torch.compile.module.` when there are global hooks:UserWarning"
_SEEN = "nanwatch"  # on a report: what was seen in this phase of the test, in plain numbers for xdist


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know --nanwatch, and the ini file's word for it."""
    group = parser.getgroup("nanwatch", "NaN in logits")
    group.addoption(
        "--nanwatch",
        action="store_true",
        help="fail a test whose forward passes made a NaN in logits",
    )
    parser.addini("nanwatch", "as the option --nanwatch", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the rest where it was asked for."""
    config.addinivalue_line("markers", "allow_nan: with --nanwatch, this test may make NaN in logits")
    if config.getoption("nanwatch") or config.getini("nanwatch"):
        from .testing.watching import Watching

        config.pluginmanager.register(_Plugin(Watching()), _NAME)


@dataclass
class _Tally:
    """What all tests came to."""

    steps: int = 0
    tests: set[str] = field(default_factory=set)
    with_nan: set[str] = field(default_factory=set)
    allowed: set[str] = field(default_factory=set)

    def take(self, report: pytest.TestReport) -> None:
        self.tests.add(report.nodeid)
        seen = getattr(report, _SEEN, None)
        if seen is not None:
            self.steps += seen["steps"]
            self.with_nan |= {report.nodeid} if seen["requests"] else set()
            self.allowed |= {report.nodeid} if seen["requests"] and seen["allowed"] else set()

    def told(self) -> str:
        may = f", {len(self.allowed)} of them may" if self.allowed else ""
        return (
            f"nanwatch: {len(self.with_nan)} of {len(self.tests)} tests made NaN in logits{may}; "
            f"{self.steps} steps looked at"
        )


class _Plugin:
    """The hooks of a run that is watched."""

    def __init__(self, watching: Any) -> None:
        self._watching = watching
        self._tally = _Tally()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let torch.compile go on without a word: a mark stands above the -W of a command line."""
        for item in items:
            item.add_marker(pytest.mark.filterwarnings(_HOOKS_WARNING))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watch the fixtures that are made for this test."""
        return (yield from self._watched(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watch the test itself."""
        return (yield from self._watched(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watch what is taken down after it."""
        return (yield from self._watched(item, "teardown"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what was seen on the report, which is what comes back from an xdist worker."""
        report = yield
        found = self._watching.findings
        seen = {"steps": found.steps, "requests": len(found.requests), "allowed": _may(item)}
        setattr(report, _SEEN, seen)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report to the summary."""
        self._tally.take(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the line at the end."""
        terminalreporter.write_line(self._tally.told())

    def _watched(self, item: pytest.Item, when: str) -> Generator[None, Any, Any]:
        """Run one phase; a NaN fails it, or is told beside what failed it already."""
        self._watching.start()
        found = self._watching.findings
        try:
            result = yield
        except BaseException:
            if found.requests:
                item.add_report_section(when, "nanwatch", found.told())
            raise
        if found.requests and not _may(item):
            pytest.fail(found.told(), pytrace=False)
        return result


def _may(item: pytest.Item) -> bool:
    return item.get_closest_marker("allow_nan") is not None

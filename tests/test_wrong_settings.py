"""Every variable with a value that is not understood, on the command's side and in the engine."""

import logging
import subprocess
import sys

import pytest

from nanwatch import NanProbe, cli
from nanwatch.settings import SettingsError
from tests.hooks.test_settings import CONTRADICTIONS, WRONG

STOPS_THE_ENGINE = {"NANWATCH_FAIL_FAST", "NANWATCH_ON_NAN"}
TABLE = [({name: value}, message) for name, value, message in WRONG] + CONTRADICTIONS


def ids(table: list[tuple[dict[str, str], str]]) -> list[str]:
    return [" ".join(f"{name}={value}" for name, value in given.items()) for given, _ in table]


@pytest.fixture
def given(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    environment: dict[str, str] = request.param
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.mark.parametrize("command", ["status", "run", "demo"])
@pytest.mark.parametrize(("given", "message"), TABLE, ids=ids(TABLE), indirect=["given"])
def test_a_command_refuses_to_start_with_that_one_line_and_status_2(
    given: dict[str, str], message: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, *(["true"] if command == "run" else [])]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f"nanwatch {command}: {message}")


@pytest.mark.parametrize(("given", "message"), TABLE, ids=ids(TABLE), indirect=["given"])
def test_the_sidecar_refuses_to_start_with_that_one_line_and_status_2(
    given: dict[str, str], message: str
) -> None:
    done = subprocess.run(  # a process of its own: it takes over logging and signals
        [sys.executable, "-m", "nanwatch", "sidecar"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"nanwatch sidecar: {message}")


@pytest.mark.parametrize(("given", "message"), TABLE, ids=ids(TABLE), indirect=["given"])
def test_an_engine_runs_on_with_that_one_line_save_where_fail_fast_was_meant(
    given: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    if (STOPS_THE_ENGINE | {"NANWATCH_FAILFAST"}) & given.keys():
        with pytest.raises(SettingsError) as raised:
            NanProbe()
        assert str(raised.value).startswith(message)
        return
    assert NanProbe().observe(None, []).result() == {}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"nanwatch does not look at this engine: {message}")

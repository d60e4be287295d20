"""Every environment variable: what it takes, and the exact line for what it does not."""

import dataclasses
from pathlib import Path

import pytest

from nanwatch.settings import OnNan, Settings, SettingsError


def test_without_variables_nothing_is_switched_on() -> None:
    assert Settings.from_environment({}) == Settings()
    assert not Settings().fail_fast
    assert Settings().enabled is None


@pytest.mark.parametrize("word", ["1", "true", "TRUE", "Yes", "on", " 1 "])
def test_fail_fast_is_on_in_every_spelling_and_implies_enabled(word: str) -> None:
    settings = Settings.from_environment({"NANWATCH_FAIL_FAST": word})
    assert settings.fail_fast
    assert settings.enabled is True


@pytest.mark.parametrize("word", ["0", "false", "No", "OFF"])
def test_fail_fast_is_off_in_every_spelling(word: str) -> None:
    settings = Settings.from_environment({"NANWATCH_FAIL_FAST": word})
    assert not settings.fail_fast
    assert settings.enabled is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NANWATCH_ENABLED", "1", {"enabled": True}),
        ("NANWATCH_ENABLED", "off", {"enabled": False}),
        ("NANWATCH_ON_NAN", "Raise", {"on_nan": OnNan.RAISE, "enabled": True}),
        ("NANWATCH_ON_NAN", "abort", {"on_nan": OnNan.ABORT, "enabled": True}),
        ("NANWATCH_ON_NAN", "observe", {"on_nan": OnNan.OBSERVE}),
        ("NANWATCH_JOURNAL", "/some/where", {"journal": Path("/some/where")}),
        ("NANWATCH_JOURNAL_GROUP", "65534", {"journal_group": "65534"}),
        ("NANWATCH_MODEL_NAME", "llama", {"model_name": "llama"}),
        ("NANWATCH_REPLICA", "7", {"replica": "7"}),
        ("NANWATCH_LISTEN", "127.0.0.1:80", {"listen": ("127.0.0.1", 80)}),
        ("NANWATCH_LISTEN", "[::1]:80", {"listen": ("::1", 80)}),
        ("NANWATCH_LISTEN", ":0", {"listen": ("0.0.0.0", 0)}),  # noqa: S104  what ":0" means
        ("NANWATCH_HEALTH_WINDOW_SECONDS", "90.5", {"health_window_seconds": 90.5}),
        ("NANWATCH_HEALTH_REQUESTS", "5", {"health_requests": 5}),
        ("NANWATCH_HEALTH_RATIO", "0.01", {"health_ratio": 0.01}),
        ("NANWATCH_PORT", "tcp://10.0.0.1:80", {}),  # made by Kubernetes for a Service "nanwatch"
        ("NANWATCH_PORT_80_TCP_ADDR", "10.0.0.1", {}),
        ("NANWATCH_SERVICE_HOST", "10.0.0.1", {}),
        ("PATH", "/bin", {}),
    ],
)
def test_a_variable_is_understood(name: str, value: str, expected: dict[str, object]) -> None:
    assert Settings.from_environment({name: value}) == dataclasses.replace(Settings(), **expected)  # type: ignore[arg-type]


_BOOLEAN = "it takes 1 or 0, true or false, yes or no, on or off"
_ADDRESS = "it takes host:port, [host]:port or :port"

WRONG = [
    ("NANWATCH_ENABLED", "", f"NANWATCH_ENABLED='' is not understood: {_BOOLEAN}"),
    ("NANWATCH_ENABLED", "2", f"NANWATCH_ENABLED='2' is not understood: {_BOOLEAN}"),
    ("NANWATCH_FAIL_FAST", "ture", f"NANWATCH_FAIL_FAST='ture' is not understood: {_BOOLEAN}"),
    ("NANWATCH_ALL_RANKS", "all", f"NANWATCH_ALL_RANKS='all' is not understood: {_BOOLEAN}"),
    ("NANWATCH_ON_NAN", "die", "NANWATCH_ON_NAN='die' is not understood: it takes observe, abort or raise"),
    (
        "NANWATCH_JOURNAL",
        "here",
        "NANWATCH_JOURNAL='here' is not understood: it takes the absolute path of a folder",
    ),
    ("NANWATCH_JOURNAL", "", "NANWATCH_JOURNAL='' is not understood: it takes the absolute path of a folder"),
    (
        "NANWATCH_JOURNAL_GROUP",
        "",
        "NANWATCH_JOURNAL_GROUP='' is not understood: it takes the name or number of a group",
    ),
    (
        "NANWATCH_MODEL_NAME",
        "",
        "NANWATCH_MODEL_NAME='' is not understood: it takes a name that is not empty",
    ),
    (
        "NANWATCH_RUN_ID",
        "",
        "NANWATCH_RUN_ID='' is not understood: it takes an id that is not empty; `nanwatch run` sets it",
    ),
    ("NANWATCH_REPLICA", "", "NANWATCH_REPLICA='' is not understood: it takes a name that is not empty"),
    ("NANWATCH_LISTEN", "8080", f"NANWATCH_LISTEN='8080' is not understood: {_ADDRESS}"),
    ("NANWATCH_LISTEN", "host:http", f"NANWATCH_LISTEN='host:http' is not understood: {_ADDRESS}"),
    ("NANWATCH_LISTEN", "h:65536", f"NANWATCH_LISTEN='h:65536' is not understood: {_ADDRESS}"),
    ("NANWATCH_LISTEN", "::1:80", f"NANWATCH_LISTEN='::1:80' is not understood: {_ADDRESS}"),
    (
        "NANWATCH_HEALTH_WINDOW_SECONDS",
        "0",
        "NANWATCH_HEALTH_WINDOW_SECONDS='0' is not understood: it takes a number of seconds from 1 to 3600",
    ),
    (
        "NANWATCH_HEALTH_WINDOW_SECONDS",
        "nan",
        "NANWATCH_HEALTH_WINDOW_SECONDS='nan' is not understood: it takes a number of seconds from 1 to 3600",
    ),
    (
        "NANWATCH_HEALTH_REQUESTS",
        "1.5",
        "NANWATCH_HEALTH_REQUESTS='1.5' is not understood: it takes a whole number from 1",
    ),
    (
        "NANWATCH_HEALTH_REQUESTS",
        "0",
        "NANWATCH_HEALTH_REQUESTS='0' is not understood: it takes a whole number from 1",
    ),
    (
        "NANWATCH_HEALTH_RATIO",
        "1.01",
        "NANWATCH_HEALTH_RATIO='1.01' is not understood: it takes a number from 0 to 1",
    ),
    (
        "NANWATCH_FAILFAST",
        "1",
        "NANWATCH_FAILFAST='1' is not a variable of nanwatch: did you mean NANWATCH_FAIL_FAST?",
    ),
    (
        "NANWATCH_JOURNL",
        "/x",
        "NANWATCH_JOURNL='/x' is not a variable of nanwatch: did you mean NANWATCH_JOURNAL?",
    ),
    ("NANWATCH_X", "1", "NANWATCH_X='1' is not a variable of nanwatch: it knows NANWATCH_ENABLED, NANWATCH_"),
    ("NANWATCH_TEAM", "ml", "NANWATCH_TEAM='ml' is not a variable of nanwatch: it knows NANWATCH_ENABLED, "),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_value_or_name_that_is_not_understood_is_one_line_that_says_what_it_takes(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment({name: value})
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert raised.value.variable == name


def test_every_variable_has_a_wrong_value_in_the_table_above() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)} | {"fail_fast"}
    assert {name.removeprefix("NANWATCH_").lower() for name, _, _ in WRONG} >= fields


CONTRADICTIONS = [
    (
        {"NANWATCH_FAIL_FAST": "1", "NANWATCH_ENABLED": "0"},
        "NANWATCH_FAIL_FAST='1' contradicts NANWATCH_ENABLED='0': unset one of them",
    ),
    (
        {"NANWATCH_ON_NAN": "abort", "NANWATCH_ENABLED": "no"},
        "NANWATCH_ON_NAN='abort' contradicts NANWATCH_ENABLED='no': unset one of them",
    ),
    (
        {"NANWATCH_FAIL_FAST": "1", "NANWATCH_ON_NAN": "abort"},
        "NANWATCH_FAIL_FAST='1' contradicts NANWATCH_ON_NAN='abort': unset one of them",
    ),
    (
        {"NANWATCH_FAIL_FAST": "0", "NANWATCH_ON_NAN": "raise"},
        "NANWATCH_FAIL_FAST='0' contradicts NANWATCH_ON_NAN='raise': unset one of them",
    ),
]


@pytest.mark.parametrize(("environment", "message"), CONTRADICTIONS)
def test_variables_that_contradict_are_refused_not_guessed(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment(environment)
    assert str(raised.value) == message


def test_fail_fast_and_on_nan_may_say_the_same() -> None:
    assert Settings.from_environment({"NANWATCH_FAIL_FAST": "1", "NANWATCH_ON_NAN": "raise"}).fail_fast
    assert not Settings.from_environment({"NANWATCH_FAIL_FAST": "0", "NANWATCH_ON_NAN": "observe"}).fail_fast

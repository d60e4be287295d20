"""A drill is seen as a drill, and as nothing else."""

import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nanwatch import drill, status
from tests.engine import Engine
from tests.sidecar.running import Sidecar

SERIES = 'engine="0",model_name="llama",replica="0",runtime="torch"'


@pytest.fixture
def sidecar(journal: Path) -> Iterator[Sidecar]:
    with Sidecar(journal) as sidecar:
        yield sidecar


def values(sidecar: Sidecar) -> dict[str, float]:
    """Return every sample of a scrape."""
    lines = sidecar.get().text.splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in samples}


def without_drill(found: dict[str, float]) -> dict[str, float]:
    return {series: value for series, value in found.items() if "drill" not in series}


def test_a_drill_moves_its_own_series_and_no_other_sample_of_the_scrape(
    journal: Path, sidecar: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = f'nanwatch_drill_requests_total{{drill="1",{SERIES}}}'
    with Engine(journal) as engine:
        engine.serve(3)
        engine.corrupt("req-real")
        before = values(sidecar)
        assert drill.main([]) == 0
        after = values(sidecar)
    assert (before[planted], after[planted]) == (0, 1)
    assert without_drill(after) == without_drill(before)
    assert after[f"corrupted_requests_total{{{SERIES}}}"] == 1
    said = capsys.readouterr().out
    assert "for llama engine 0 replica 0 (torch); this is a drill" in said


def test_it_is_listed_as_a_drill_that_was_not_counted(journal: Path, sidecar: Sidecar) -> None:
    with Engine(journal) as engine:
        engine.corrupt("req-real")
        drill.main([])
        listed = sidecar.get("/v1/corrupted-requests").json()["corrupted_requests"]
    (planted,) = [one for one in listed if one["drill"]]
    assert planted["request_id"].startswith("drill-")
    assert (planted["counted"], planted["rank"], planted["finished"]) == (False, "drill", True)
    assert [one["request_id"] for one in listed if not one["drill"]] == ["req-real"]


def test_its_id_is_the_exemplar_of_its_series_alone(journal: Path, sidecar: Sidecar) -> None:
    with Engine(journal) as engine:
        engine.serve()
        drill.main([])
        how = {"accept": "application/openmetrics-text;version=1.0.0"}
        lines = httpx.get(f"{sidecar.url}/metrics", headers=how, timeout=5).text.splitlines()
    with_exemplar = [line for line in lines if "# {" in line]
    assert len(with_exemplar) == 1
    assert with_exemplar[0].startswith("nanwatch_drill_requests_total{")
    assert 'request_id="drill-' in with_exemplar[0]


def test_no_health_check_turns_bad_and_no_pipeline_ends(journal: Path) -> None:
    with Sidecar(journal, "--exit-on-nan") as sidecar, Engine(journal) as engine:
        engine.serve(3)
        assert sidecar.get("/readyz").status_code == 200
        drill.main(["--requests", "5"])
        found = sidecar.get("/health/numeric?requests=1&ratio=0")
        assert (found.status_code, found.json()["corrupted"]) == (200, 0)
        sidecar.get()
        sidecar.get()
        assert sidecar.end()[0] == 0


def test_a_folder_that_holds_drills_alone_has_no_source(journal: Path, sidecar: Sidecar) -> None:
    assert drill.main(["--model-name", "m", "--replica", "7"]) == 0
    assert sidecar.get("/readyz").status_code == 503
    found = values(sidecar)
    series = 'nanwatch_drill_requests_total{drill="1",engine="0",model_name="m",replica="7",runtime="torch"}'
    assert found[series] == 1
    assert not any(name.startswith(("corrupted_requests_total{", "nanwatch_hook_active{")) for name in found)


def test_drills_add_up_and_leave_the_engines_file_alone(journal: Path, sidecar: Sidecar) -> None:
    with Engine(journal) as engine:
        engine.corrupt("req-real")
    (engines,) = journal.glob("*.jsonl")
    held = engines.read_bytes()
    drill.main([])
    drill.main(["--requests", "2"])
    assert engines.read_bytes() == held
    assert values(sidecar)[f'nanwatch_drill_requests_total{{drill="1",{SERIES}}}'] == 3


def test_of_several_engines_the_living_one_is_taken_or_the_one_that_is_named(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(journal, model_name="dead"):
        pass
    with Engine(journal, model_name="living"):
        drill.main([])
        assert "for living engine 0" in capsys.readouterr().out
        drill.main(["--model-name", "dead"])
        assert "for dead engine 0" in capsys.readouterr().out


@pytest.mark.parametrize("count", ["0", "-1", "101", "many", "1.5"])
def test_a_count_that_makes_no_sense_is_usage(
    journal: Path, capsys: pytest.CaptureFixture[str], count: str
) -> None:
    with pytest.raises(SystemExit) as end:
        drill.main(["--requests", count])
    assert end.value.code == 2
    assert f"{count!r} is no whole number from 1 to 100" in capsys.readouterr().err
    assert not list(journal.glob("*"))


def test_where_no_engine_has_written_that_is_said(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else somebody would wait for an alert from a folder that nobody reads."""
    elsewhere = journal.parent / "elsewhere"
    with Engine(journal):
        assert drill.main(["--journal", str(elsewhere)]) == 0
        assert f"no such engine has written to {elsewhere}" in capsys.readouterr().err
        assert drill.main([]) == 0
    assert capsys.readouterr().err == ""


def test_status_tells_drills_from_requests(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(journal) as engine:
        engine.corrupt("req-real")
        drill.main(["--requests", "3"])
    capsys.readouterr()
    assert status.main([]) == 0
    said = capsys.readouterr().out
    assert "drills, which never happened: 3" in said
    assert said.splitlines()[-1] == "corrupted requests 1 of 1"


def test_a_folder_that_is_none_is_named(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.write_text("a file")
    assert drill.main([]) == 1
    assert f"nothing was planted: journal folder {journal}" in capsys.readouterr().err


def test_a_disk_that_takes_nothing_is_named_with_the_knob(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        assert drill.main([]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert said == (
        f"nanwatch drill: nothing was planted: File too large in {journal}: "
        "NANWATCH_JOURNAL or --journal names it\n"
    )

"""docker-compose.yml: what it promises before any container runs. `make test-containers` runs it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from nanwatch.demo import _parser as demo_parser
from nanwatch.settings import OnNan, Settings

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
SERVICES = {"engine", "sidecar", "prometheus", "alertmanager", "grafana"}
NOT_OURS = {"prometheus", "alertmanager", "grafana"}


def loaded(path: Path = FILE) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def filled_in(value: str, **variables: str) -> str:
    """Fill `${NAME:-default}` in as Compose does."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), value)


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = loaded()["services"]
    return found


def bound(service: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The files and folders of this repository that a service is given."""
    return (mount for mount in service.get("volumes", ()) if mount["type"] == "bind")


def environment(name: str, **variables: str) -> dict[str, str]:
    """NANWATCH_* variables of a service."""
    found = services()[name].get("environment", {})
    return {key: filled_in(value, **variables) for key, value in found.items() if key.startswith("NANWATCH_")}


def user(name: str) -> tuple[int, int]:
    uid, gid = services()[name]["user"].split(":")
    return int(uid), int(gid)


def test_there_are_the_two_halves_and_who_looks_at_them() -> None:
    assert set(services()) == SERVICES


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_container_has_more_rights_than_it_needs(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert user(name)[0] != 0
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(service)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_container_tells_whether_it_is_well(name: str) -> None:
    assert services()[name]["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_is_published_is_published_on_the_loopback_only(name: str) -> None:
    for port in services()[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", filled_in(port)), port


def test_the_engine_can_be_reached_by_nobody() -> None:
    assert services()["engine"]["network_mode"] == "none"
    assert "ports" not in services()["engine"]


def test_the_halves_are_two_users_of_one_group() -> None:
    (engine, group), (sidecar, sidecar_group) = user("engine"), user("sidecar")
    assert engine != sidecar
    assert group == sidecar_group
    for half in ("engine", "sidecar"):
        dockerfile = (ROOT / f"deploy/docker/{half}.Dockerfile").read_text(encoding="utf-8")
        assert f"--gid {group} nanwatch" in dockerfile
        assert f"--uid {engine} " in dockerfile
        assert "--owner engine --group nanwatch --mode 2770 /run/nanwatch" in dockerfile
        assert re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE) == [services()[half]["user"]]
    assert environment("engine")["NANWATCH_JOURNAL_GROUP"] == "nanwatch"


def test_the_sidecar_can_only_read_the_journal() -> None:
    (engine,) = services()["engine"]["volumes"]
    (sidecar,) = services()["sidecar"]["volumes"]
    assert engine == {"type": "volume", "source": "journal", "target": "/run/nanwatch"}
    assert sidecar == engine | {"read_only": True}
    assert environment("engine")["NANWATCH_JOURNAL"] == environment("sidecar")["NANWATCH_JOURNAL"]
    assert environment("engine")["NANWATCH_JOURNAL"] == engine["target"]
    assert "journal" in loaded()["volumes"]


@pytest.mark.parametrize("name", ["engine", "sidecar"])
def test_the_variables_are_understood_and_fail_fast_is_off_unless_asked_for(name: str) -> None:
    assert Settings.from_environment(environment(name)).on_nan is OnNan.OBSERVE
    assert Settings.from_environment(environment(name, NANWATCH_FAIL_FAST="1")).fail_fast


def test_the_sidecar_can_be_reached_from_the_other_containers() -> None:
    host, port = Settings.from_environment(environment("sidecar")).listen
    assert host == "0.0.0.0"  # noqa: S104  inside its own network
    (published,) = services()["sidecar"]["ports"]
    assert published.endswith(f":{port}")
    (scraped,) = loaded(ROOT / "deploy/compose/prometheus.yml")["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"sidecar:{port}"]}]


def test_the_demo_understands_its_command() -> None:
    word, *options = map(filled_in, services()["engine"]["command"])
    assert word == "demo"
    assert demo_parser().parse_args(options).no_sidecar


def test_each_waits_for_what_it_needs() -> None:
    waits = {
        name: set(service["depends_on"]) for name, service in services().items() if "depends_on" in service
    }
    assert waits == {
        "engine": {"sidecar"},
        "prometheus": {"sidecar", "alertmanager"},
        "grafana": {"prometheus"},
    }
    conditions = [wanted["condition"] for name in waits for wanted in services()[name]["depends_on"].values()]
    assert set(conditions) == {"service_healthy"}


@pytest.mark.parametrize("name", sorted(NOT_OURS))
def test_what_is_mounted_is_there_and_read_only(name: str) -> None:
    for mount in bound(services()[name]):
        assert (ROOT / mount["source"]).exists()
        assert mount["read_only"] is True
        assert mount["bind"] == {"create_host_path": False}


def test_prometheus_has_the_rules_alertmanager_and_exemplars() -> None:
    prometheus = services()["prometheus"]
    assert "--enable-feature=exemplar-storage" in prometheus["command"]
    config = loaded(ROOT / "deploy/compose/prometheus.yml")
    mounted = {mount["target"]: ROOT / mount["source"] for mount in bound(prometheus)}
    (rules,) = config["rule_files"]
    folder, name = rules.split("/")
    assert (mounted[f"/etc/prometheus/{folder}"] / name).is_file()
    (manager,) = config["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": ["alertmanager:9093"]}]


def test_grafana_shows_the_dashboard_to_whoever_looks_and_lets_nobody_in() -> None:
    grafana = services()["grafana"]
    settings = grafana["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    mounted = {mount["target"]: ROOT / mount["source"] for mount in bound(grafana)}
    provisioned = mounted["/etc/grafana/provisioning"]
    (provider,) = loaded(provisioned / "dashboards/nanwatch.yml")["providers"]
    assert (mounted[provider["options"]["path"]] / "nanwatch.json").is_file()
    assert (
        settings["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        == f"{provider['options']['path']}/nanwatch.json"
    )
    (source,) = loaded(provisioned / "datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"


@pytest.mark.parametrize("half", ["engine", "sidecar"])
def test_an_image_takes_its_base_from_outside_and_its_packages_from_the_pins(half: str) -> None:
    dockerfile = (ROOT / f"deploy/docker/{half}.Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (.*)$", dockerfile, re.MULTILINE) == ["${BUILD_BASE} AS build", "${BASE}"]
    assert dockerfile.count("--constraint constraints.txt") >= 2
    copied = re.findall(r"^COPY ((?!--from).*) \S+$", dockerfile, re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {name for line in copied for name in line.split()} == {
        line.removeprefix("!") for line in ignored if line.startswith("!")
    }


@pytest.mark.parametrize("name", ["README.md", "docker-compose.yml", "docs/containers.md"])
def test_a_pipeline_names_both_halves_or_none(name: str) -> None:
    """Compose does not watch what it starts only as a dependency: the status would be 0 on a NaN."""
    text = (ROOT / name).read_text(encoding="utf-8")
    recipes = re.findall(r"--exit-code-from sidecar([a-z ]*)", text)
    assert recipes
    for services_named in recipes:
        named = set(re.findall(r"\b(?:engine|sidecar)\b", services_named))
        assert named in (set(), {"engine", "sidecar"})


@pytest.fixture(scope="session")
def compose() -> str:
    found = shutil.which("docker-compose")
    if found is None:
        pytest.skip(
            "docker-compose is not on the PATH (Debian, from trixie on: apt-get install docker-compose)"
        )
    said = subprocess.run([found, "version", "--short"], capture_output=True, text=True, check=False).stdout
    if said.lstrip("v").startswith("1."):
        pytest.skip(f"docker-compose is {said.strip()}, and the file is for version 2")
    return found


def config_of(compose: str, file: Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NANWATCH_")}
    return subprocess.run(
        [compose, "--project-directory", str(ROOT), "--file", str(file), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        env=inherited,
        timeout=60,
    )


def test_compose_accepts_the_file(compose: str) -> None:
    done = config_of(compose, FILE)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("key", "misspelt"),
    [("read_only: true\n  cap_drop", "read_only: true\n  cap_dorp"), ("mem_limit", "mem_limits")],
)
def test_compose_refuses_a_misspelt_key(compose: str, tmp_path: Path, key: str, misspelt: str) -> None:
    wrong = tmp_path / "docker-compose.yml"
    text = FILE.read_text(encoding="utf-8")
    assert key in text
    wrong.write_text(text.replace(key, misspelt, 1), encoding="utf-8")
    done = config_of(compose, wrong)
    assert done.returncode != 0
    assert misspelt.rsplit(maxsplit=1)[-1] in done.stderr

"""What a real kustomize makes of base, overlay and component."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from dashboards import prometheus_rule
from nanwatch.settings import Settings

from .manifests import (
    BASE,
    RESTART_ON_NAN,
    RULES,
    STAGING,
    Manifest,
    environment,
    loaded,
    named,
    of_kind,
    pod,
    rendered,
)
from .test_manifests import validate


@pytest.fixture
def restarting(tmp_path: Path) -> list[Manifest]:
    """An overlay of somebody's own that opts in."""
    overlay = {
        "resources": [_relative(BASE, tmp_path)],
        "components": [_relative(RESTART_ON_NAN, tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    return rendered(tmp_path)


@pytest.mark.parametrize("folder", [BASE, STAGING], ids=["base", "staging"])
def test_kubernetes_validate_accepts_what_comes_out(folder: Path, tmp_path: Path) -> None:
    core = [one for one in rendered(folder) if one["kind"] != "PodMonitor"]
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(core), encoding="utf-8")
    done = validate(file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_base_is_what_lies_in_its_files() -> None:
    files = [
        manifest
        for name in loaded(BASE / "kustomization.yaml")[0]["resources"]
        for manifest in loaded(BASE / name)
    ]
    assert sorted(rendered(BASE), key=_key) == sorted(files, key=_key)


def test_staging_stops_the_engine_at_the_first_nan_and_only_the_engine() -> None:
    spec = pod(rendered(STAGING))
    engine, sidecar = named("vllm", spec), named("nanwatch", spec)
    assert Settings.from_environment(environment(engine)).fail_fast
    assert not Settings.from_environment(environment(sidecar)).fail_fast
    base = named("vllm", pod(loaded(BASE / "deployment.yaml")))
    assert engine["command"] == ["nanwatch", "run", "--", *base["command"]]
    assert engine["args"] == base["args"]
    assert environment(engine) == environment(base) | {"NANWATCH_FAIL_FAST": "1"}


def test_staging_is_otherwise_the_base() -> None:
    staging, base = rendered(STAGING), rendered(BASE)
    (deployment,) = of_kind("Deployment", staging)
    assert deployment["spec"]["replicas"] == 1
    for manifests in (staging, base):
        (found,) = of_kind("Deployment", manifests)
        found["spec"]["replicas"] = None
        engine = named("vllm", pod(manifests))
        engine["command"] = engine["env"] = None
    assert staging == base


def test_the_component_changes_the_engines_liveness_alone(restarting: list[Manifest]) -> None:
    base = rendered(BASE)
    probe = named("vllm", pod(restarting))["livenessProbe"]
    assert set(probe) == {"exec", "periodSeconds", "timeoutSeconds", "failureThreshold"}
    named("vllm", pod(restarting))["livenessProbe"] = named("vllm", pod(base))["livenessProbe"]
    assert restarting == base


def test_one_burst_never_restarts_an_engine(restarting: list[Manifest]) -> None:
    """Whatever is seen once is in the window of 120 s for fewer probes than it takes."""
    probe = named("vllm", pod(restarting))["livenessProbe"]
    found = re.search(r"window=(\d+)", probe["exec"]["command"][-1])
    assert found is not None
    assert (probe["failureThreshold"] - 1) * probe["periodSeconds"] > int(found[1])


def test_the_rules_come_out_as_they_are_in_the_rule_file() -> None:
    (rule,) = rendered(RULES)
    assert rule["spec"] == yaml.safe_load(prometheus_rule.RULES.read_text(encoding="utf-8"))


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _relative(folder: Path, start: Path) -> str:
    """Return a relative path: kustomize takes no other."""
    up = "/".join([".."] * len(start.resolve().relative_to("/").parts))
    return f"{up}{folder}"

"""The manifests keep nanwatch's own rules, and Kubernetes' schemas know every key of theirs.

kubernetes-validate has no schemas for the Prometheus Operator's kinds: their keys are listed here.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanwatch.settings import Settings

from .manifests import (
    BASE,
    FOLDER,
    Manifest,
    bytes_of,
    containers,
    environment,
    kustomizations,
    loaded,
    named,
    of_kind,
    pod,
)

DEPLOYMENT, NETWORK_POLICY, POD_MONITORS = (
    BASE / f"{name}.yaml" for name in ("deployment", "networkpolicy", "podmonitor")
)
POD = pod(loaded(DEPLOYMENT))
SIDECAR, ENGINE = named("nanwatch", POD), named("vllm", POD)
JOURNAL_GROUP = 10600
FIRST_WITH_NATIVE_SIDECARS, NEWEST = "1.29.0", "1.37.0"

# A kind's keys, and below a key the keys of what it holds; ... is anything.
POD_MONITOR: dict[str, Any] = {
    "apiVersion": ...,
    "kind": ...,
    "metadata": {"name": ...},
    "spec": {
        "selector": {"matchLabels": ...},
        "podMetricsEndpoints": {
            "port": ...,
            "path": ...,
            "interval": ...,
            "scrapeTimeout": ...,
            "relabelings": {"sourceLabels": ..., "targetLabel": ...},
        },
    },
}
PROMETHEUS_RULE: dict[str, Any] = {
    "apiVersion": ...,
    "kind": ...,
    "metadata": {"name": ...},
    "spec": {
        "groups": {
            "name": ...,
            "rules": {
                "record": ...,
                "alert": ...,
                "expr": ...,
                "for": ...,
                "labels": ...,
                "annotations": {"summary": ..., "description": ..., "runbook_url": ...},
            },
        }
    },
}


def validate(*files: Path, version: str = NEWEST) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]
    return subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("version", [FIRST_WITH_NATIVE_SIDECARS, NEWEST])
def test_kubernetes_validate_accepts_the_core_manifests(version: str) -> None:
    done = validate(DEPLOYMENT, NETWORK_POLICY, version=version)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == 2


@pytest.mark.parametrize(
    ("file", "key", "misspelt"),
    [
        (DEPLOYMENT, "readOnlyRootFilesystem", "readonlyRootFilesystem"),
        (DEPLOYMENT, "restartPolicy", "restartPolices"),
        (DEPLOYMENT, "sizeLimit", "limitSize"),
        (NETWORK_POLICY, "podSelector", "podSelectors"),
    ],
)
def test_kubernetes_validate_refuses_a_misspelt_key(
    tmp_path: Path, file: Path, key: str, misspelt: str
) -> None:
    wrong = tmp_path / file.name
    text = file.read_text(encoding="utf-8")
    assert key in text
    wrong.write_text(text.replace(key, misspelt, 1), encoding="utf-8")
    done = validate(wrong)
    assert done.returncode == 1
    assert misspelt in done.stdout + done.stderr


def unknown_keys(manifest: Any, known: Any) -> set[str]:
    """Return the keys that are not listed, however deep."""
    if known is ...:
        return set()
    if isinstance(manifest, list):
        return set().union(*(unknown_keys(item, known) for item in manifest))
    deeper = (unknown_keys(value, known[key]) for key, value in manifest.items() if key in known)
    return set(manifest) - set(known) | set().union(*deeper)


def test_the_operators_kinds_have_known_keys_only() -> None:
    for monitor in loaded(POD_MONITORS):
        assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
        assert unknown_keys(monitor, POD_MONITOR) == set()
    (rule,) = loaded(FOLDER / "rules/prometheusrule.yaml")
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert unknown_keys(rule, PROMETHEUS_RULE) == set()
    rule["spec"]["groups"][0]["rules"][-1]["labls"] = {}
    assert unknown_keys(rule, PROMETHEUS_RULE) == {"labls"}


def test_every_file_that_a_kustomization_names_is_there_and_no_manifest_is_left_out() -> None:
    named_files = set(kustomizations())
    for file in kustomizations():
        (kustomization,) = loaded(file)
        for name in kustomization.get("resources", ()):
            assert (file.parent / name).exists(), f"{file}: {name}"
        for name in [patch["path"] for patch in kustomization.get("patches", ())]:
            assert (file.parent / name).is_file(), f"{file}: {name}"
        named_files |= {
            (file.parent / name).resolve()
            for name in (
                *kustomization.get("resources", ()),
                *(p["path"] for p in kustomization.get("patches", ())),
            )
        }
    assert set(FOLDER.rglob("*.yaml")) <= named_files


def test_a_patch_is_for_a_container_that_is_there() -> None:
    for file in kustomizations():
        (kustomization,) = loaded(file)
        for patch in kustomization.get("patches", ()):
            (found,) = loaded(file.parent / patch["path"])
            (deployment,) = loaded(DEPLOYMENT)
            assert found["metadata"] == {"name": deployment["metadata"]["name"]}
            assert {one["name"] for one in containers(pod([found]))} <= {
                one["name"] for one in containers(POD)
            }


def test_the_sidecar_is_a_native_one_without_a_say_in_the_engines_readiness() -> None:
    assert SIDECAR in POD["initContainers"]
    assert SIDECAR["restartPolicy"] == "Always"
    assert "readinessProbe" not in SIDECAR
    for probe in ("startupProbe", "livenessProbe"):
        assert SIDECAR[probe]["httpGet"] == {"path": "/healthz", "port": "nanwatch"}


@pytest.mark.parametrize("container", [SIDECAR, ENGINE], ids=["sidecar", "engine"])
def test_no_container_has_more_rights_than_it_needs(container: Manifest) -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    rights = container["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    assert not {"privileged", "seccompProfile", "runAsNonRoot"} & set(rights)


def test_the_halves_are_two_users_of_one_group() -> None:
    """The same as in the images, which make these users."""
    assert POD["securityContext"]["fsGroup"] == JOURNAL_GROUP
    for half, container in (("engine", ENGINE), ("sidecar", SIDECAR)):
        rights = container["securityContext"]
        dockerfile = FOLDER.parent / f"docker/{half}.Dockerfile"
        user = f"USER {rights['runAsUser']}:{rights['runAsGroup']}"
        assert user in dockerfile.read_text(encoding="utf-8").splitlines()
        assert rights["runAsGroup"] == JOURNAL_GROUP
    assert environment(ENGINE)["NANWATCH_JOURNAL_GROUP"] == str(JOURNAL_GROUP)
    assert ENGINE["securityContext"]["runAsUser"] != SIDECAR["securityContext"]["runAsUser"]


def test_the_sidecar_can_only_read_the_journal() -> None:
    (sidecar,) = (mount for mount in SIDECAR["volumeMounts"] if mount["name"] == "journal")
    (engine,) = (mount for mount in ENGINE["volumeMounts"] if mount["name"] == "journal")
    assert sidecar == engine | {"readOnly": True}
    for container in (SIDECAR, ENGINE):
        assert environment(container)["NANWATCH_JOURNAL"] == engine["mountPath"]


def test_the_variables_are_understood_and_fail_fast_is_off() -> None:
    engine, sidecar = (Settings.from_environment(environment(one)) for one in (ENGINE, SIDECAR))
    assert engine.enabled
    assert not engine.fail_fast
    assert not sidecar.fail_fast


def test_kubelet_and_prometheus_reach_the_port_that_the_sidecar_listens_on() -> None:
    host, port = Settings.from_environment(environment(SIDECAR)).listen
    assert host == "0.0.0.0"  # noqa: S104  inside the pod's own network
    assert SIDECAR["ports"] == [{"name": "nanwatch", "containerPort": port}]
    monitor, engines = loaded(POD_MONITORS)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("nanwatch", "/metrics")
    assert "nanwatch" in monitor["metadata"]["name"]  # by this the rules know a sidecar that is down
    assert "nanwatch" not in engines["metadata"]["name"]
    labels = loaded(DEPLOYMENT)[0]["spec"]["template"]["metadata"]["labels"]
    for one in (monitor, engines):
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_only_prometheus_namespace_may_reach_the_metrics() -> None:
    (policy,) = of_kind("NetworkPolicy", loaded(NETWORK_POLICY))
    labels = loaded(DEPLOYMENT)[0]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    metrics, engine = policy["spec"]["ingress"]
    (allowed,) = metrics["from"]
    assert allowed == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ports = {one["containerPort"] for one in SIDECAR["ports"]}
    assert {one["port"] for one in metrics["ports"]} == ports
    assert {one["port"] for one in engine["ports"]} == {one["containerPort"] for one in ENGINE["ports"]}


def test_the_volumes_in_memory_fit_into_the_engines_memory() -> None:
    """What is written to them counts as the engine's."""
    in_memory = [volume["emptyDir"] for volume in POD["volumes"] if "medium" in volume["emptyDir"]]
    assert len(in_memory) == 2
    sizes = sum(bytes_of(one["sizeLimit"]) for one in in_memory)
    assert sizes < bytes_of(ENGINE["resources"]["limits"]["memory"]) / 2

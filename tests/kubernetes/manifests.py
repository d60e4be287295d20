"""The manifests of deploy/kubernetes, as they lie there and as kustomize puts them together."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
BASE, RULES, STAGING = FOLDER / "base", FOLDER / "rules", FOLDER / "overlays/staging"
RESTART_ON_NAN = FOLDER / "components/restart-on-nan"

Manifest = dict[str, Any]


def loaded(file: Path) -> list[Manifest]:
    """Return every document of a file."""
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def kustomizations() -> list[Path]:
    return sorted(FOLDER.rglob("kustomization.yaml"))


def rendered(folder: Path) -> list[Manifest]:
    """Return what kustomize makes of a folder, or skip the test where there is no kustomize."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run(
                [*command, str(folder)], capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, done.stderr) == (0, "")
            return list(yaml.safe_load_all(done.stdout))
    pytest.skip("neither kustomize nor kubectl is on the PATH")


def of_kind(kind: str, manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pod(manifests: list[Manifest]) -> Manifest:
    """Return the pod's spec of the one Deployment."""
    (deployment,) = of_kind("Deployment", manifests)
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


def containers(pod: Manifest) -> Iterator[Manifest]:
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def named(name: str, pod: Manifest) -> Manifest:
    (container,) = (one for one in containers(pod) if one["name"] == name)
    return container


def environment(container: Manifest) -> dict[str, str]:
    """Return the NANWATCH_* variables of a container."""
    found = {one["name"]: one["value"] for one in container.get("env", ())}
    return {name: value for name, value in found.items() if name.startswith("NANWATCH_")}


def bytes_of(quantity: str) -> int:
    """128Mi -> 134217728."""
    factors = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * factors[quantity[-2:]]

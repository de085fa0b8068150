"""The Kubernetes manifests against the API's own definitions, and against what the software promises."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import __version__
from pipeline.config import command_line
from pipeline.config.parsers import byte_size
from pipeline.errors import ExitCode

FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "kubernetes"
DEFINITIONS = json.loads(Path(__file__).with_name("kubernetes_schema.json").read_text())["definitions"]
ROOTS = {("batch/v1", "Job"): "batch.v1.Job", ("v1", "PersistentVolumeClaim"): "core.v1.PersistentVolumeClaim"}
PYTHON_TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict}


def faults(value: Any, kind: Any, where: str) -> list[str]:
    """Return what in a value does not fit a type of the schema: a name, [type] or {"*": type}."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where}: must be a list"]
        return [fault for i, item in enumerate(value) for fault in faults(item, kind[0], f"{where}[{i}]")]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [f"{where}: must be a mapping"]
        return [fault for key, item in value.items() for fault in faults(item, kind["*"], f"{where}.{key}")]
    if kind in PYTHON_TYPES:
        fits = isinstance(value, PYTHON_TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")
        return [] if fits else [f"{where}: {value!r} must be a {kind}"]
    definition = DEFINITIONS[kind]
    if "one of" in definition:
        return [] if any(not faults(value, one, where) for one in definition["one of"]) else [f"{where}: {value!r}"]
    if not isinstance(value, dict):
        return [f"{where}: must be a {kind}"]
    known = definition["properties"]
    found = [f"{where}.{key}: {kind} has no such field" for key in value if key not in known]
    found += [f"{where}.{key}: missing" for key in definition.get("required", []) if key not in value]
    return found + [
        f for key, item in value.items() if key in known for f in faults(item, known[key], f"{where}.{key}")
    ]


def document(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_manifest_fits_the_schema(name: str) -> None:
    found = document(name)
    root = ROOTS[found["apiVersion"], found["kind"]]
    assert faults(found, root, name) == []
    assert len(faults(found | {"specs": 1}, root, name)) == 1


JOB = document("train.yaml")["spec"]
POD = JOB["template"]["spec"]
(CONTAINER,) = POD["containers"]


def action_of(code: int) -> str:
    """Return what Kubernetes does when the container ends with a code: the first rule that fits."""
    for rule in JOB["podFailurePolicy"]["rules"]:
        on_codes = rule.get("onExitCodes")
        if on_codes and on_codes["containerName"] == CONTAINER["name"]:
            assert on_codes["operator"] == "In"
            if code in on_codes["values"]:
                return rule["action"]
    return "Count"  # the default: tried again until backoffLimit


def test_only_what_may_get_better_is_tried_again() -> None:
    again = {ExitCode.STOPPED, ExitCode.UNAVAILABLE}
    for code in set(ExitCode) - {ExitCode.DONE}:
        assert action_of(code) == ("Count" if code in again else "FailJob"), code
    assert action_of(137) == "Count"  # killed: node lost, or the kernel out of memory
    assert JOB["backoffLimit"] > 0


def test_what_the_api_server_would_refuse() -> None:
    """Rules beyond the schema, from the reference of Job: a policy needs Never, 0 is no failure, values are sorted."""
    assert POD["restartPolicy"] == "Never"
    assert JOB["podReplacementPolicy"] == "Failed"
    for rule in JOB["podFailurePolicy"]["rules"]:
        assert rule["action"] in ("FailJob", "Ignore", "Count", "FailIndex")
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        values = rule.get("onExitCodes", {}).get("values", [1])
        assert 0 not in values
        assert values == sorted(set(values))


def test_the_pod_has_time_to_stop_and_stays_in_its_memory() -> None:
    assert POD["terminationGracePeriodSeconds"] > 25
    asked = command_line.parse(CONTAINER["args"])
    assert asked.resume == "auto"
    limit, _ = asked.assignments["resources.memory_limit"]
    quantity = CONTAINER["resources"]["limits"]["memory"]
    assert 0.8 <= byte_size(limit) / byte_size(f"{quantity}B") <= 0.95
    workers, _ = asked.assignments["resources.workers"]
    assert workers == CONTAINER["resources"]["limits"]["cpu"]


def test_the_pod_has_no_rights_and_writes_to_its_volumes_only() -> None:
    pod, inner = POD["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["runAsUser"] > 0
    assert pod["fsGroup"] == pod["runAsGroup"]
    assert inner["readOnlyRootFilesystem"]
    assert not inner["allowPrivilegeEscalation"]
    assert inner["capabilities"] == {"drop": ["ALL"]}
    assert not POD["automountServiceAccountToken"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == set(volumes)
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == document("volume.yaml")["metadata"]["name"]
    written = [arg.split("=", 1)[1] for arg in CONTAINER["args"] if re.match("--(run|features)-dir=", arg)]
    written += [variable["value"] for variable in CONTAINER["env"]]
    assert all(path.startswith(tuple(f"{mount}/" for mount in mounts.values())) for path in written)


def test_the_image_is_built_from_the_lock_and_runs_as_the_pod_says() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert "--require-hashes" in text
    assert "-r requirements.lock" in text
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${BASE}"]
    user = POD["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in text
    assert 'ENTRYPOINT ["python", "-m", "pipeline.train"]' in text
    assert CONTAINER["image"].endswith(f":{__version__}")

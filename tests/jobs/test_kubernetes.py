"""The Kubernetes manifests against the rules of a Job, and against what the software promises."""

import re
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import command_line
from pipeline.config.train_config import byte_size
from pipeline.errors import ExitCode

FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "kubernetes"


def document(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    return found


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


def test_only_what_may_get_better_is_tried_again():
    again = {ExitCode.STOPPED, ExitCode.UNAVAILABLE}
    for code in set(ExitCode) - {ExitCode.DONE}:
        assert action_of(code) == ("Count" if code in again else "FailJob"), code
    assert action_of(137) == "Count"  # killed: node lost, or the kernel out of memory
    assert JOB["backoffLimit"] > 0


def test_the_pod_has_time_to_stop_and_stays_in_its_memory():
    assert POD["terminationGracePeriodSeconds"] > 25
    asked = command_line.parse(CONTAINER["args"])
    assert asked.resume == "auto"
    limit, _ = asked.assignments["resources.memory_limit"]
    quantity = CONTAINER["resources"]["limits"]["memory"]
    assert 0.8 <= byte_size(limit) / byte_size(f"{quantity}B") <= 0.95
    workers, _ = asked.assignments["resources.workers"]
    assert workers == CONTAINER["resources"]["limits"]["cpu"]


def test_the_pod_writes_to_its_volumes_only():
    assert POD["securityContext"]["runAsUser"] > 0
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == set(volumes)
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == document("volume.yaml")["metadata"]["name"]
    written = [arg.split("=", 1)[1] for arg in CONTAINER["args"] if re.match("--(run|features)-dir=", arg)]
    written += [variable["value"] for variable in CONTAINER["env"]]
    assert all(path.startswith(tuple(f"{mount}/" for mount in mounts.values())) for path in written)


def test_the_image_is_built_from_the_lock_and_runs_as_the_pod_says():
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert "--require-hashes" in text
    assert "-r requirements.lock" in text
    user = POD["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in text

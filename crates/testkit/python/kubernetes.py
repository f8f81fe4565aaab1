"""Judges manifests by the schemas of Kubernetes, from the oldest to the newest that are at hand, and by their names.

usage: kubernetes.py DIRECTORY

What is not of Kubernetes itself (KEDA) has no schema here: only its names are looked at.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

documents = []
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.yaml")):
    documents += [(file.name, document) for document in yaml.safe_load_all(file.read_text())]
if len(documents) < 6:
    sys.exit(f"only {len(documents)} documents")

versions = kubernetes_validate.utils.all_versions()
judged = 0
for file, document in documents:
    if document["apiVersion"].startswith("keda.sh/"):
        continue
    for version in (versions[0], versions[-1]):
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f"{file}: {document['kind']} by {version}: {error.message} at {list(error.path)}")
        judged += 1


def of(kind: str) -> list[dict]:
    return [document for _, document in documents if document["kind"] == kind]


def selected(labels: dict) -> list[dict]:
    """The deployments whose pods have these labels."""
    return [
        deployment
        for deployment in of("Deployment")
        if labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    ]


problems = []
for deployment in of("Deployment"):
    name, spec = deployment["metadata"]["name"], deployment["spec"]
    if selected(spec["selector"]["matchLabels"]) != [deployment]:
        problems.append(f"{name} does not select its own pods, or those of others")
    (container,) = spec["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        if container[probe]["httpGet"]["port"] not in ports:
            problems.append(f"{name}: {probe} asks a port that is not there")
    if container["livenessProbe"]["httpGet"]["path"] != "/healthz":
        problems.append(f"{name} would be restarted when the database is away")
for kind, labels in (
    ("Service", lambda spec: spec["selector"]),
    ("PodDisruptionBudget", lambda spec: spec["selector"]["matchLabels"]),
):
    found = of(kind)
    if not found:
        problems.append(f"there is no {kind}")
    for document in found:
        if len(selected(labels(document["spec"]))) != 1:
            problems.append(f"{kind} {document['metadata']['name']} selects nothing, or too much")
names = {deployment["metadata"]["name"] for deployment in of("Deployment")}
logins = {login["metadata"]["name"] for login in of("TriggerAuthentication")}
for scaled in of("ScaledObject"):
    if scaled["spec"]["scaleTargetRef"]["name"] not in names:
        problems.append("the autoscaler scales what is not there")
    for trigger in scaled["spec"]["triggers"]:
        if trigger["authenticationRef"]["name"] not in logins:
            problems.append("the autoscaler logs in by what is not there")
if problems:
    sys.exit("\n".join(problems))
print(f"{len(documents)} documents, {judged} judgements of Kubernetes")

"""Prints what the program is made of, as a CycloneDX document: every crate with version, licence and checksum.

usage: sbom.py [--target TRIPLE] [--features FEATURES]

Cargo.lock and cargo's own graph are the source: what only tests need, or other machines, is not in it.
"""

import argparse
import json
import pathlib
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "changefeed-cli"


def graph(target: str, features: str) -> dict:
    # Offline: all of it is there once the program was built.
    command = ["cargo", "metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", target]
    if features:
        command += ["--features", features]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def built(target: str, features: str) -> set[tuple[str, str]]:
    """Names and versions of what is compiled: `cargo metadata` counts features in that only other crates ask for."""
    command = ["cargo", "tree", "--offline", "--locked", "--package", PROGRAM, "--edges", "normal,build"]
    command += ["--prefix", "none", "--format", "{p}", "--target", target]
    if features:
        command += ["--features", features]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {(line.split()[0], line.split()[1].removeprefix("v")) for line in said.splitlines() if line}


def host() -> str:
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.removeprefix("host: ") for line in said.splitlines() if line.startswith("host: "))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--target", default=host())
    options.add_argument("--features", default="")
    options = options.parse_args()
    metadata = graph(options.target, options.features)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    compiled = built(options.target, options.features)
    sums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock["package"]}

    def needed(node: dict) -> list[str]:
        return [
            dependency["pkg"]
            for dependency in node["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
            and (packages[dependency["pkg"]]["name"], packages[dependency["pkg"]]["version"]) in compiled
        ]

    (root,) = [key for key, package in packages.items() if package["name"] == PROGRAM]
    found, left = set(), [root]
    while left:
        key = left.pop()
        if key not in found:
            found.add(key)
            left += needed(nodes[key])

    def reference(key: str) -> str:
        return f"pkg:cargo/{packages[key]['name']}@{packages[key]['version']}"

    def component(key: str) -> dict:
        package = packages[key]
        described = {
            "type": "application" if key == root else "library",
            "bom-ref": reference(key),
            "name": package["name"],
            "version": package["version"],
            "purl": reference(key),
        }
        if package["license"]:
            # Some still write MIT/Apache-2.0.
            expression = " ".join(package["license"].replace("/", " OR ").split())
            described["licenses"] = [{"expression": expression}]
        if checksum := sums.get((package["name"], package["version"])):
            described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return described

    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": component(root),
            "properties": [{"name": "cargo:target", "value": options.target}],
        },
        "components": [component(key) for key in sorted(found - {root}, key=reference)],
        "dependencies": [
            {"ref": reference(key), "dependsOn": sorted({reference(other) for other in needed(nodes[key])})}
            for key in sorted(found, key=reference)
        ],
    }
    if len(found) != len(compiled):
        raise SystemExit(f"{len(compiled)} crates are compiled, and {len(found)} were found")
    print(json.dumps(document, indent=1))


main()

"""Packages every crate that `cargo install changefeed-cli` needs, and says what crates.io or its users would miss.

usage: check_crates.py [--dry-run]

Without an option nothing is compiled and no registry is asked: the packages are made, opened and looked at. With
`--dry-run` cargo asks the registry as well, and does all of `cargo publish` except for the upload.
"""

import json
import pathlib
import posixpath
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "changefeed-cli"


def cargo(*words: str) -> str:
    done = subprocess.run(["cargo", *words], check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"cargo {' '.join(words)}\n{done.stderr}")
    return done.stdout


def members() -> dict[str, dict]:
    metadata = json.loads(cargo("metadata", "--no-deps", "--offline", "--format-version", "1"))
    return {package["name"]: package for package in metadata["packages"]}


def needed(packages: dict[str, dict]) -> set[str]:
    """The crates of ours that the program is built from."""
    found, left = set(), [PROGRAM]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for dependency in packages[name]["dependencies"]:
            if dependency["kind"] != "dev" and dependency["name"] in packages:
                left.append(dependency["name"])
    return found


def included(text: str) -> list[str]:
    """What a source file includes, its unit tests left out: they run in the repository only."""
    shipped = text.split("#[cfg(test)]")[0]
    return re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', shipped)


def complaints(archive: pathlib.Path, ours: dict[str, dict]) -> list[str]:
    found = []
    with tarfile.open(archive) as package:
        files = {member.name.split("/", 1)[1]: member for member in package.getmembers()}

        def read(name: str) -> str:
            return package.extractfile(files[name]).read().decode()

        manifest = tomllib.loads(read("Cargo.toml"))
        about = manifest["package"]
        for key in ("description", "license", "readme", "documentation", "keywords", "categories", "rust-version"):
            if not about.get(key):
                found.append(f"{key} is missing")
        if len(about.get("keywords", [])) > 5 or any(len(word) > 20 for word in about.get("keywords", [])):
            found.append("crates.io takes five keywords of twenty letters")
        for name in ("README.md", "LICENSE-MIT", "LICENSE-APACHE"):
            if name not in files or not read(name).strip():
                found.append(f"{name} is not in the package")
        for kind in ("dependencies", "dev-dependencies"):
            for name, wanted in manifest.get(kind, {}).items():
                if name in ours and wanted.get("version") != ours[name]["version"]:
                    found.append(f"{name} is wanted as {wanted.get('version')}, but it is {ours[name]['version']}")
                if "path" in wanted:
                    found.append(f"{name} is a path, which exists only here")
        for name in files:
            if name.startswith(("src/", "testing/")) and name.endswith(".rs"):
                for path in included(read(name)):
                    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
                    if target not in files:
                        found.append(f"{name} includes {path}, which is not in the package")
    return found


def main() -> None:
    ours = members()
    wanted = needed(ours)
    # `publish = []` is how cargo tells `publish = false`.
    published = {name for name, package in ours.items() if package["publish"] != []}
    if wanted != published:
        sys.exit(f"needed {sorted(wanted)}, but published are {sorted(published)}")
    words = [word for name in sorted(wanted) for word in ("--package", name)]
    if sys.argv[1:] == ["--dry-run"]:
        cargo("publish", "--dry-run", "--allow-dirty", "--no-verify", *words)
    with tempfile.TemporaryDirectory() as target:
        cargo("package", "--offline", "--allow-dirty", "--no-verify", "--target-dir", target, *words)
        bad = 0
        for name in sorted(wanted):
            archive = pathlib.Path(target) / "package" / f"{name}-{ours[name]['version']}.crate"
            for complaint in complaints(archive, ours):
                print(f"{name}: {complaint}")
                bad += 1
    if bad:
        sys.exit(1)
    print(f"{len(wanted)} crates can be published")


main()

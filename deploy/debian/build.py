"""Makes a Debian package of the program: manual pages, completions, a systemd unit with a user of its own, settings.

usage: build.py PROGRAM DIRECTORY [--fast]

It needs `dpkg-deb`, and no other tool of Debian's. `--fast` leaves out the compression.
"""

import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "debian"
sys.path.insert(0, str(ROOT / "deploy" / "release"))

from program import Program

CONTROL = """\
Package: changefeed
Version: {version}
Architecture: {machine}
Maintainer: the authors of changefeed <changefeed@localhost>
Installed-Size: {kilobytes}
Depends: {depends}
Recommends: ca-certificates
Section: database
Priority: optional
Description: change feeds from SQL databases
 changefeed turns the tables of a PostgreSQL, SQLite or SQL Server database
 into feeds that can be followed without losing, repeating or reordering
 anything. It also delivers changes to webhooks and hands changed rows to
 functions. The database is its only dependency.
"""

ENVIRONMENT = """\
# Read by the service. One NAME=value on a line; only root may read this file.
CHANGEFEED_CONFIG=/etc/changefeed/changefeed.toml
# The database goes before the one in changefeed.toml. A password belongs here and not there.
#CHANGEFEED_DB=postgres://user:password@host/database
"""


def unit() -> str:
    """The unit of deploy/, with the user and the path of the package."""
    text = (ROOT / "deploy" / "changefeed.service").read_text()
    text = text[text.index("[Unit]") :]
    for old, new in (
        ("ExecStart=/usr/local/bin/changefeed ", "ExecStart=/usr/bin/changefeed "),
        ("DynamicUser=yes\n", "User=changefeed\nGroup=changefeed\nRemoveIPC=yes\n"),
    ):
        if text.count(old) != 1:
            raise SystemExit(f"deploy/changefeed.service has changed: {old.strip()}")
        text = text.replace(old, new)
    return text


def copyright_notice() -> str:
    mit = (ROOT / "LICENSE-MIT").read_text()
    return (
        f"changefeed is licensed under MIT or Apache-2.0 (/usr/share/common-licenses/Apache-2.0), as you like.\n\n{mit}"
    )


def depends(program: Program) -> str:
    # useradd, for the user of the service.
    found = ["passwd"]
    if needed := program.glibc():
        found.append(f"libc6 (>= {needed[0]}.{needed[1]})")
    if program.needs("libgcc_s.so.1"):
        found.append("libgcc-s1")
    return ", ".join(found)


def fill(tree: pathlib.Path, program: Program) -> None:
    def write(name: str, content: str | bytes, mode: int = 0o644) -> None:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def packed(content: bytes) -> bytes:
        return gzip.compress(content, mtime=0)

    write("usr/bin/changefeed", program.content, 0o755)
    with tempfile.TemporaryDirectory() as pages:
        program.say("man", "--directory", pages)
        for page in sorted(pathlib.Path(pages).iterdir()):
            write(f"usr/share/man/man1/{page.name}.gz", packed(page.read_bytes()))
    for shell, name in (
        ("bash", "usr/share/bash-completion/completions/changefeed"),
        ("zsh", "usr/share/zsh/vendor-completions/_changefeed"),
        ("fish", "usr/share/fish/vendor_completions.d/changefeed.fish"),
    ):
        write(name, program.say("completions", shell))
    write("usr/lib/systemd/system/changefeed.service", unit())
    write("etc/changefeed/changefeed.toml", program.say("init", "--print"))
    write("etc/changefeed/environment", ENVIRONMENT, 0o600)
    write("usr/share/doc/changefeed/copyright", copyright_notice())
    write("usr/share/doc/changefeed/changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes()))
    kilobytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    write(
        "DEBIAN/control",
        CONTROL.format(
            version=program.version,
            machine=program.debian_machine,
            kilobytes=kilobytes,
            depends=depends(program),
        ),
    )
    # What the administrator has changed stays when the package is upgraded.
    write("DEBIAN/conffiles", "/etc/changefeed/changefeed.toml\n/etc/changefeed/environment\n")
    for script in ("postinst", "prerm", "postrm"):
        write(f"DEBIAN/{script}", (HERE / script).read_text(), 0o755)


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--fast"]
    if len(words) != 2:
        sys.exit(__doc__)
    program = Program(words[0])
    out = pathlib.Path(words[1]) / f"changefeed_{program.version}_{program.debian_machine}.deb"
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as directory:
        tree = pathlib.Path(directory) / "changefeed"
        tree.mkdir()
        fill(tree, program)
        compression = "-Znone" if "--fast" in sys.argv else "-Zxz"
        command = ["dpkg-deb", "--root-owner-group", compression, "--build", tree, out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(out)


main()

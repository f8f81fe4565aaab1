"""Makes everything that a release consists of out of a built program.

usage: make.py PROGRAM DIRECTORY [--fast]

An archive with manual pages and completions, a Python wheel, a Debian package (where there is `dpkg-deb`), the list of
what it is made of (CycloneDX), and checksums of all of them. `--fast` leaves out the compression.
"""

import hashlib
import io
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

from program import Program

ROOT = pathlib.Path(__file__).resolve().parents[2]


def archive(program: Program, out: pathlib.Path, fast: bool) -> None:
    name = f"changefeed-{program.version}-{program.wheel_machine}-linux"
    with tarfile.open(out / f"{name}.tar.gz", "w:gz", compresslevel=1 if fast else 9) as packed:

        def add(path: str, content: bytes, mode: int = 0o644) -> None:
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(content), mode
            packed.addfile(entry, io.BytesIO(content))

        add("changefeed", program.content, 0o755)
        for file in ("README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "deploy/changefeed.service"):
            add(pathlib.Path(file).name, (ROOT / file).read_bytes())
        for shell, file in (("bash", "changefeed.bash"), ("zsh", "_changefeed"), ("fish", "changefeed.fish")):
            add(f"completions/{file}", program.say("completions", shell).encode())
        with tempfile.TemporaryDirectory() as pages:
            program.say("man", "--directory", pages)
            for page in sorted(pathlib.Path(pages).iterdir()):
                add(f"man/{page.name}", page.read_bytes())


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--fast"]
    fast = ["--fast"] if "--fast" in sys.argv else []
    if len(words) != 2:
        sys.exit(__doc__)
    program, out = Program(words[0]), pathlib.Path(words[1])
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"{out} is not empty")
    archive(program, out, bool(fast))
    builders = ["wheel"] + (["debian"] if shutil.which("dpkg-deb") else [])
    for builder in builders:
        script = ROOT / "deploy" / builder / "build.py"
        subprocess.run([sys.executable, script, program.path, out, *fast], check=True, stdout=subprocess.DEVNULL)
    script = ROOT / "deploy" / "release" / "sbom.py"
    made_of = subprocess.run([sys.executable, script], check=True, stdout=subprocess.PIPE).stdout
    (out / f"changefeed-{program.version}.cdx.json").write_bytes(made_of)
    files = sorted(out.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (out / "SHA256SUMS").write_text(sums)
    for file in files:
        print(file)


main()

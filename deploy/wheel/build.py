"""Makes a Python wheel that carries the program, so that `pip install` gives the command `changefeed`.

usage: build.py PROGRAM DIRECTORY [--fast]

A wheel is a ZIP archive with a list of its files, so nothing but Python is needed. The platform in its name is what
the program needs: pip does not install it where the C library is older. `--fast` leaves out the compression.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "release"))

from program import Program

METADATA = """\
Metadata-Version: 2.1
Name: changefeed
Version: {version}
Summary: Change feeds from SQL databases that lose, repeat and reorder nothing
License: MIT OR Apache-2.0
Keywords: database,cdc,outbox,webhook,feed
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Database
Requires-Python: >=3.8
Description-Content-Type: text/markdown

The program `changefeed`, as a package for pip. It turns the tables of a PostgreSQL, SQLite or SQL Server database
into feeds that can be followed without losing, repeating or reordering anything.

    pip install changefeed
    changefeed serve --demo

There is no Python module in this package. Python programs read feeds over HTTP or by SQL.
"""


def platforms(program: Program) -> list[str]:
    needed = program.glibc()
    if needed is None:
        # Linked statically: runs with any C library.
        return [f"manylinux_2_17_{program.wheel_machine}", f"musllinux_1_1_{program.wheel_machine}"]
    return [f"manylinux_{needed[0]}_{needed[1]}_{program.wheel_machine}"]


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--fast"]
    if len(words) != 2:
        sys.exit(__doc__)
    compression = zipfile.ZIP_STORED if "--fast" in sys.argv else zipfile.ZIP_DEFLATED
    program = Program(words[0])
    tags = platforms(program)
    info = f"changefeed-{program.version}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: changefeed (deploy/wheel/build.py)\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    files = {
        f"changefeed-{program.version}.data/scripts/changefeed": (program.content, 0o755),
        f"{info}/METADATA": (METADATA.format(version=program.version).encode(), 0o644),
        f"{info}/WHEEL": (wheel.encode(), 0o644),
        f"{info}/licenses/LICENSE-MIT": ((ROOT / "LICENSE-MIT").read_bytes(), 0o644),
        f"{info}/licenses/LICENSE-APACHE": ((ROOT / "LICENSE-APACHE").read_bytes(), 0o644),
    }
    record = ""
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)

    # The same program makes the same archive, whenever that is done.
    moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    out = pathlib.Path(words[1]) / f"changefeed-{program.version}-py3-none-{'.'.join(tags)}.whl"
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, (content, mode) in files.items():
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = compression
            archive.writestr(entry, content)
    print(out)


main()

"""What packages of a built program have to say about it: its version, its machine, the C library that it needs."""

import pathlib
import re
import struct
import subprocess

# e_machine of an ELF file: what wheels and Debian call it.
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


class Program:
    """A `changefeed` that was built for Linux and runs on this machine."""

    def __init__(self, path: str) -> None:
        self.path = pathlib.Path(path).resolve()
        self.content = self.path.read_bytes()
        if self.content[:5] != b"\x7fELF\x02":
            raise SystemExit(f"{path} is not a 64-bit program for Linux")
        (machine,) = struct.unpack_from("<H", self.content, 18)
        if machine not in MACHINES:
            raise SystemExit(f"{path} is for a machine that packages are not made for ({machine})")
        self.wheel_machine, self.debian_machine = MACHINES[machine]
        self.version = self.say("--version").split()[1]

    def say(self, *words: str) -> str:
        return subprocess.run([self.path, *words], check=True, capture_output=True, text=True).stdout

    def glibc(self) -> tuple[int, int] | None:
        """The oldest glibc that has all symbols; None for a program that is linked statically."""
        # Versions of symbols are strings of their own in the file, as `objdump -T` shows them.
        found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", self.content)
        return max(((int(major), int(minor)) for major, minor in found), default=None)

    def needs(self, library: str) -> bool:
        return b"\0" + library.encode() + b"\0" in self.content

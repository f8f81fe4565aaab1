"""A preprocessor of mdBook: fills the page of commands with what the program says. CHANGEFEED_PROGRAM names a built program;
without it the newest one under target/ is asked, and without any the page says how to ask."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

MARK = "<!-- every command -->"


def program() -> str | None:
    named = os.environ.get("CHANGEFEED_PROGRAM")
    built = [p for p in Path("target").glob("*/changefeed") if p.is_file()]
    return named or (str(max(built, key=lambda p: p.stat().st_mtime)) if built else None)


def said(asked: str, command: list[str]) -> str:
    """What the help says; the options that every command has are said once."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CHANGEFEED_") and k != "DATABASE_URL"}
    help = subprocess.run([asked, *command, "--help"], capture_output=True, text=True, check=True, env=clean).stdout
    if command:
        help = re.sub(r"\n+Global options:\n(?:(?:  .*)?\n)*", "\n\n", help)
    return "\n".join(line.rstrip() for line in help.strip().splitlines())


def listed(help: str) -> list[str]:
    """The commands that a help lists."""
    found = re.search(r"^Commands:\n((?:  .*\n)+)", help, re.MULTILINE)
    names = re.findall(r"^  ([a-z][a-z-]*)", found.group(1), re.MULTILINE) if found else []
    return [name for name in names if name != "help"]


def chapters(asked: str, command: list[str]) -> str:
    help = said(asked, command)
    title = " ".join(["changefeed", *command])
    text = f"{'#' * (2 if len(command) < 2 else 3)} {title}\n\n```text\n{help}\n```\n\n"
    return text + "".join(chapters(asked, [*command, name]) for name in listed(help + "\n"))


def walk(items: list, asked: str | None) -> None:
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            chapter = item["Chapter"]
            if MARK in chapter["content"] and asked:
                chapter["content"] = chapter["content"].replace(MARK, chapters(asked, []))
            walk(chapter["sub_items"], asked)


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
context, book = json.load(sys.stdin)
# mdBook 0.5 calls them items, versions before it sections.
walk(book.get("items") or book.get("sections"), program())
json.dump(book, sys.stdout)

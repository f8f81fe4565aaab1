"""A preprocessor of mdBook: a link to a file of the repository that is not part of the book becomes its name."""

import json
import posixpath
import re
import sys


def inside(target: str, page: str) -> bool:
    if re.match(r"[a-z]+:|#", target):
        return True
    return not posixpath.normpath(posixpath.join(posixpath.dirname(page), target)).startswith("..")


def rewrite(text: str, page: str) -> str:
    def link(found: re.Match) -> str:
        name, target = found.groups()
        if inside(target, page):
            return found.group()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        return name if name.strip("`") == path else f"{name} (`{path}` in the repository)"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, text)


def walk(items: list) -> None:
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            chapter = item["Chapter"]
            if chapter["path"]:
                chapter["content"] = rewrite(chapter["content"], chapter["path"])
            walk(chapter["sub_items"])


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
context, book = json.load(sys.stdin)
# mdBook 0.5 calls them items, versions before it sections.
walk(book.get("items") or book.get("sections"))
json.dump(book, sys.stdout)

"""Proves that no statement of ours runs somebody else's code on PostgreSQL.

The tests run in databases whose `public` schema is full of traps (traps.sql). When they are over this looks
at two things: whether the server's log tells of a trap that one of our sessions or functions sprang, and
whether every statement in the sources of the store was executed at least once, as pg_stat_statements saw
them. Without the second the first would prove nothing.
"""

import argparse
import pathlib
import re
import subprocess
import sys

VERB = re.compile(
    r"""^\s*(with\s+\w|select\s|insert\s+into\s|update\s+\S+\s|delete\s+from\s|lock\s+table\s|listen\s|fetch\s
        |(?:create(?:\s+or\s+replace)?|drop|alter)\s+(?:unique\s+|constraint\s+)?
         (?:function|procedure|table|view|trigger|index|sequence|schema|type)\s
        |set\s+(?:local\s+)?[\w.]+\s*(?:=|to\s)|(?:begin|commit|rollback)\b|declare\s|close\s|call\s|truncate\s)""",
    re.I | re.X,
)
BLANK = "\0"


def rust_strings(text):
    """The string literals of a Rust file outside of comments, with the escapes that SQL needs resolved."""
    place = 0
    token = re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)"(.*?)"\1|"((?:\\.|[^"\\])*)"|\'(?:\\.|[^\\\'])\'', re.S)
    while match := token.search(text, place):
        place = match.end()
        if match.group(2) is not None:
            yield match.group(2), text.count("\n", 0, match.start()) + 1
        elif match.group(3) is not None:
            value = re.sub(r"\\\n\s*", "", match.group(3))
            value = value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
            yield value, text.count("\n", 0, match.start()) + 1


def without_tests(text):
    return text.split("#[cfg(test)]", 1)[0]


def statements(sql):
    """Splits at semicolons outside of quotes, comments and dollar quotes."""
    sql = sql.replace("{quote}", "$quote$")
    token = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|(\$\w*\$).*?\1|;", re.S)
    begin, parts, place = 0, [], 0
    while match := token.search(sql, place):
        place = match.end()
        if match.group() == ";":
            parts.append(sql[begin:match.start()])
            begin = place
    parts.append(sql[begin:])
    return [part for part in parts if VERB.match(uncommented(part))]


def uncommented(sql):
    return re.sub(r"--[^\n]*", " ", sql)


def normal(sql):
    """One form for a statement as we wrote it and as the server tells it: no comments, no constants."""
    sql = uncommented(sql)
    # The body of a function is what is executed later, by the server.
    sql = re.sub(r"\$\w*\$.*", BLANK, sql, flags=re.S)
    sql = re.sub(r"[Ee]?'(?:[^']|'')*'", "?", sql)
    sql = re.sub(r"\{\{|\}\}", "", sql)
    sql = re.sub(r"\{[^{}]*\}", BLANK, sql)
    sql = re.sub(r"\$\d+", "?", sql)
    sql = re.sub(r"(?<![\w\"])-?\d+(?:\.\d+)?\b", "?", sql)
    sql = re.sub(r"\s+", " ", sql).strip().lower()
    # How operators, commas and brackets are spaced says nothing.
    return re.sub(r"\s*([(),=<>|+\-*/:;\[\]])\s*", r"\1", sql)


def pattern(sql):
    parts = [re.escape(part) for part in re.split(f"{BLANK}+", normal(sql))]
    return re.compile(".*?".join(part.replace(r"\ ", " ") for part in parts), re.S)


def wanted(root):
    for path in sorted(root.rglob("*.sql")):
        if "migrations" in path.parts:
            continue
        for n, part in enumerate(statements(path.read_text()), 1):
            yield f"{path.relative_to(root)}#{n}", part
    for path in sorted(root.rglob("*.rs")):
        for text, line in rust_strings(without_tests(path.read_text())):
            if not VERB.match(text) or not re.search(r"\w\s+\S", text):
                continue
            for part in statements(text):
                yield f"{path.relative_to(root)}:{line}", part


def executed(url):
    sql = "select distinct regexp_replace(query, '\\s+', ' ', 'g') from pg_stat_statements"
    out = subprocess.run(
        ["psql", "-X", "-At", "-R", "\x1e", url, "-c", sql], check=True, capture_output=True
    )
    return out.stdout.decode("utf-8", "replace").split("\x1e")


def main():
    parser = argparse.ArgumentParser(prog="audit", description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True, help="the server's maintenance database")
    parser.add_argument("--log", required=True, help="the server's log")
    parser.add_argument("--source", required=True, help="the sources of the store")
    parser.add_argument("--except", dest="excepted", help="statements that tests cannot reach, with the reason")
    args = parser.parse_args()

    log = pathlib.Path(args.log).read_text(errors="replace")
    sprung = [line for line in log.splitlines() if "changefeed-trap-sprung: " in line]
    seen = "\n".join(normal(query) for query in executed(args.url))
    excepted = {}
    if args.excepted:
        for line in pathlib.Path(args.excepted).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                text, _, why = line.partition("  # ")
                excepted[normal(text)] = why
    missing, total = [], 0
    for place, sql in wanted(pathlib.Path(args.source)):
        form = normal(sql)
        # What is nothing but a word is found in every statement.
        if len(form.replace(BLANK, "").strip()) < 12:
            continue
        total += 1
        if pattern(sql).search(seen) is None and not any(form.startswith(text) for text in excepted):
            missing.append((place, " ".join(sql.split())[:140]))
    for line in sorted({re.sub(r".*changefeed-trap-sprung: ", "", line) for line in sprung}):
        print(f"a trap was sprung: {line}", file=sys.stderr)
    for place, sql in missing:
        print(f"never executed: {place}: {sql}", file=sys.stderr)
    print(f"{total - len(missing)} of {total} statements executed, {len(sprung)} traps sprung")
    sys.exit(1 if sprung or missing else 0)


main()

"""Judges T-SQL by Microsoft's own parser and binder, and by a few rules of ours.

    python crates/testkit/python/tsql [--migration FILE]... [FILE]...

Without files, reads one JSON object per line: {"name": …, "sql": …, "migration": true | false}.
Migrations define the database, in the order given; everything else is checked against it. Lines
with GO end a batch. Parameters of statements are @P1, @P2, and so on.

Prints name:line:column: error for whatever is wrong, and ends with 1. Every run first judges
batches with known mistakes (proof.py): if one of them passes, the run fails.
"""

import json
import sys
import time

# Nothing of a run stays in the source tree.
sys.dont_write_bytecode = True
import runtime

# Before the rest is loaded, which needs what this sets up.
if __name__ == "__main__":
    runtime.enter()
    runtime.start()

import bind
import proof
import rules
from dom import OLDEST, VERSIONS, Source, parse, report


def judge(sources, models):
    """Everything that is wrong with the sources, and how many statements they hold."""
    findings, parsed = [], []
    for source in sources:
        errors = []
        for version in VERSIONS:
            script, more = parse(source, version)
            errors += more
            if version == OLDEST:
                oldest = script
        findings += errors
        if not errors:
            parsed.append((source, oldest))
    known = rules.signatures(script for source, script in parsed if source.migration)
    database = bind.Database()
    for source, script in parsed:
        findings += rules.check(source, script, known)
        database.add(source, script)
    for version in models:
        findings += database.check(version)
    statements = sum(batch.Statements.Count for _, script in parsed for batch in script.Batches)
    return findings, statements


def prove():
    """Whether the judge finds what it must find, and nothing else."""
    sources = [Source("tables", proof.TABLES, migration=True)]
    sources += [Source(name, sql) for name, sql in proof.SOUND.items()]
    sources += [Source(name, sql) for name, (sql, _) in proof.BROKEN.items()]
    findings, _ = judge(sources, [OLDEST])
    complaints = [
        f"proof: nothing is wrong with {line}"
        for line in report(found for found in findings if found.name not in proof.BROKEN)
    ]
    for name, (_, expected) in proof.BROKEN.items():
        if not any(found.name == name and expected in found.message for found in findings):
            complaints.append(f"proof: the mistake in '{name}' was not found")
    return complaints


def read(arguments):
    if not arguments:
        for line in sys.stdin:
            item = json.loads(line)
            yield Source(item["name"], item["sql"], item.get("migration", False))
        return
    migration = False
    for argument in arguments:
        if argument == "--migration":
            migration = True
            continue
        with open(argument, encoding="utf-8") as file:
            yield Source(argument, file.read(), migration)
        migration = False


def main(arguments):
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    began = time.monotonic()
    complaints = prove()
    sources = list(read(arguments))
    if not sources:
        complaints.append("there was nothing to judge")
    findings, statements = judge(sources, bind.MODELS)
    complaints += report(findings)
    for complaint in complaints:
        print(complaint)
    summary = (
        f"{statements} statements as {', '.join(VERSIONS)} and Azure SQL: {len(complaints)} errors; "
        f"{len(proof.BROKEN)} known mistakes refused; {time.monotonic() - began:.0f} s"
    )
    print(summary)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Proves that no statement of ours runs somebody else's code on PostgreSQL.

The tests run in databases whose `public` schema is full of traps (traps.sql). When they are over this
looks at two things: whether the server's log tells of a trap that one of our sessions or functions
sprang, and whether every statement in the sources of the store was executed and every function in our
schema was called in such a database. Without the second the first would prove nothing.
"""

import argparse
import os
import pathlib
import subprocess
import sys

from sources import canonical, function_names, migrated, pattern, wanted

SPRUNG = "LOG:  changefeed-trap-sprung: in "
# Statements that must spring a trap, run in the database that the others are copies of.
PROBES = {
    "an operator": "select 1 from pg_catalog.pg_class c where c.relname = 'x'::varchar",
    "an operator that meets no row": "select 1 from probe p where p.name = 'x'::varchar",
    "a function": "select length('x'::varchar)",
    "a function of ours": "select changefeed.probe(1.5)",
}
MAKE_PROBES = """
    create table probe (name varchar);
    create schema changefeed;
    create function changefeed.probe(n numeric) returns numeric language plpgsql as
        'begin return n * 2; end'
"""


class Server:
    def __init__(self, url, log):
        self.url, self.log = url, pathlib.Path(log)

    def run(self, *statements, database=None, name="psql"):
        url = self.url if database is None else self.url.rsplit("/", 1)[0] + "/" + database
        commands = [word for sql in statements for word in ("-c", sql)]
        out = subprocess.run(
            ["psql", "-X", "-q", "-At", "-R", "\x1e", "-v", "ON_ERROR_STOP=1", url, *commands],
            check=True,
            capture_output=True,
            env={**os.environ, "PGAPPNAME": name},
        )
        rows = out.stdout.decode("utf-8", "replace").split("\x1e")
        return [row.removesuffix("\n") for row in rows if row.strip()]

    def sprung(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.split(SPRUNG, 1)[1] for line in lines if SPRUNG in line]


def check_traps(server):
    """The traps work, or nothing that they say is worth anything."""
    silent = []
    for what, sql in PROBES.items():
        before = len(server.sprung())
        name = "psql" if "changefeed." in sql else "changefeed"
        server.run("begin", MAKE_PROBES, sql, "rollback", database="cf_traps", name=name)
        if len(server.sprung()) == before:
            silent.append(f"no trap was sprung by {what}: {sql}")
    return silent


def main():
    parser = argparse.ArgumentParser(prog="audit", description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True, help="the server's maintenance database")
    parser.add_argument("--log", required=True, help="the server's log")
    parser.add_argument("--store", required=True, help="the crate whose statements these are")
    parser.add_argument("--except", dest="excepted", required=True, help="what no test can reach, with the reason")
    args = parser.parse_args()
    server, store = Server(args.url, args.log), pathlib.Path(args.store)

    problems = check_traps(server)
    sprung = sorted({line for line in server.sprung() if not line.startswith("cf_traps: ")})
    problems += [f"a trap was sprung in {line}" for line in sprung]
    if server.run("select dealloc from pg_stat_statements_info") != ["0"]:
        print("the server forgot statements; raise pg_stat_statements.max", file=sys.stderr)

    excepted = {}
    for line in pathlib.Path(args.excepted).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            text, _, why = line.partition("  # ")
            excepted[canonical(text)] = why
    used = set()

    def unreachable(form):
        found = [text for text in excepted if form.startswith(text)]
        used.update(found)
        return bool(found)

    seen = {canonical(row) for row in server.run("select query from audit.statement")} - migrated(store)
    executed = total = 0
    for place, sql in wanted(store / "src"):
        form = canonical(sql)
        if unreachable(form):
            continue
        total += 1
        look = pattern(form)
        if any(look(other) for other in seen):
            executed += 1
        else:
            problems.append(f"never executed: {place}: {' '.join(sql.split())[:160]}")

    names = function_names(store)
    called = functions = 0
    for row in server.run("select name, inlined, called from audit.function order by name"):
        name, inlined, was_called = row.split("|")
        bare = name.removeprefix("changefeed.").split("(", 1)[0]
        # N stands for the numbers of those that the program makes.
        if bare not in names and "_N" not in bare or unreachable(canonical(name)):
            continue
        functions += 1
        # What the planner puts in the place of a call is not counted; then somebody mentions it.
        if was_called == "t" or inlined == "t" and any(f"changefeed.{bare}(" in form for form in seen):
            called += 1
        else:
            problems.append(f"never called: {name}")
    problems += [f"no longer needed in {args.excepted}: {text}" for text in excepted if text not in used]

    for problem in problems:
        print(problem, file=sys.stderr)
    print(
        f"{executed} of {total} statements executed, {called} of {functions} functions called, "
        f"{len(excepted)} excepted, {len(sprung)} traps sprung"
    )
    sys.exit(1 if problems else 0)


main()

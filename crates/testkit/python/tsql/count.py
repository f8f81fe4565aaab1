"""How many statements an operation executes, by following its path through our procedures.

Reads one JSON object per line. The first has the migrations, {"sql": …}; each of the others is an operation:
{"name": …, "scripts": [one per round trip], "taken": [conditions that hold]}. Every other condition does not hold, and a
loop is gone through once. Prints {"name", "round_trips", "statements", "tables", "writes", "locks"} for each:
statements of all, those that touch a table, those that write, and those that take an application lock.
"""

import json
import sys

sys.dont_write_bytecode = True
import runtime

if __name__ == "__main__":
    runtime.enter()
    runtime.start()

from bind import MODULE, module_name
from dom import OLDEST, Source, kind, parse, walk
from shape import Shape

WRITES = ("InsertStatement", "UpdateStatement", "DeleteStatement")


class Left(Exception):
    """RETURN, or BREAK."""


class Count:
    def __init__(self, modules, taken):
        self.modules = modules
        self.taken = set(taken)
        self.used = set()
        self.shape = Shape(None)
        self.statements = self.tables = self.writes = self.locks = 0

    def holds(self, predicate):
        text = self.shape.condition(predicate)
        self.used.add(text)
        return text in self.taken

    def all(self, statements):
        for statement in statements:
            self.one(statement)

    def body(self, name):
        try:
            self.all(self.modules[name])
        except Left:
            pass

    def one(self, statement):
        name = kind(statement)
        if name == "BeginEndBlockStatement":
            return self.all(statement.StatementList.Statements)
        if name == "TryCatchStatement":
            return self.all(statement.TryStatements.Statements)
        if name == "DeclareTableVariableStatement":
            return None
        if name == "DeclareVariableStatement" and all(d.Value is None for d in statement.Declarations):
            return None
        self.statements += 1
        if name == "IfStatement":
            self.calls(statement.Predicate)
            if self.holds(statement.Predicate):
                return self.one(statement.ThenStatement)
            if statement.ElseStatement is not None:
                return self.one(statement.ElseStatement)
            return None
        if name == "WhileStatement":
            self.calls(statement.Predicate)
            try:
                self.one(statement.Statement)
            except Left as left:
                if left.args == ("return",):
                    raise
            return None
        if name in ("ReturnStatement", "BreakStatement", "ThrowStatement"):
            raise Left("break" if name == "BreakStatement" else "return")
        if name == "ExecuteStatement":
            return self.execute(statement)
        self.calls(statement)
        if self.shape.tables(statement):
            self.tables += 1
            self.writes += name in WRITES
        return None

    def execute(self, statement):
        called = statement.ExecuteSpecification.ExecutableEntity
        words = self.shape.text(called.ProcedureReference.ProcedureReference.Name)
        if words == "sp_getapplock":
            self.locks += 1
        elif words in self.modules:
            self.body(words)

    def calls(self, fragment):
        """Functions of ours that a statement calls."""
        for node in walk(fragment):
            if kind(node) == "FunctionCall" and node.CallTarget is not None:
                name = node.FunctionName.Value.lower()
            elif kind(node) == "SchemaObjectFunctionTableReference":
                name = self.shape.text(node.SchemaObject)
            else:
                continue
            if name in self.modules:
                self.body(name)


def modules_of(sql):
    script, errors = parse(Source("migrations", sql, migration=True), OLDEST)
    if errors:
        raise SystemExit(str(errors[0]))
    found = {}
    for batch in script.Batches:
        for statement in batch.Statements:
            if MODULE.fullmatch(kind(statement)) and getattr(statement, "StatementList", None) is not None:
                found[module_name(statement).split(".")[-1].strip("[]").lower()] = statement.StatementList.Statements
    return found


def main():
    lines = [json.loads(line) for line in sys.stdin]
    modules = modules_of(lines[0]["sql"])
    for operation in lines[1:]:
        count = Count(modules, operation["taken"])
        for sql in operation["scripts"]:
            script, errors = parse(Source(operation["name"], sql), OLDEST)
            if errors:
                raise SystemExit(str(errors[0]))
            try:
                for batch in script.Batches:
                    count.all(batch.Statements)
            except Left:
                pass
        missed = count.taken - count.used
        if missed:
            raise SystemExit(f"{operation['name']} does not come to these: {sorted(missed)}; but to {sorted(count.used)}")
        print(
            json.dumps(
                {
                    "name": operation["name"],
                    "round_trips": len(operation["scripts"]),
                    "statements": count.statements,
                    "tables": count.tables,
                    "writes": count.writes,
                    "locks": count.locks,
                }
            )
        )


if __name__ == "__main__":
    main()

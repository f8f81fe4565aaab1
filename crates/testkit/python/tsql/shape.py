"""What a script does to the database, statement by statement, as Microsoft's parser sees it.

Reads one JSON object per line, {"name": …, "sql": …}, and prints one for each procedure, trigger and
function in it, and one for what stands alone: {"of": …, "name": …, "lines": […]}. The models of crates/model say
the same lines; the test that compares them tells what a model assumes and what is shipped.

A line is a statement that touches a table, a sequence, a lock, the clock, the isolation level or the
transaction: its verb, the tables with their hints, what it sets, and the conditions. Conditions of IF and
WHILE have lines of their own, and what depends on them is indented. What a statement only computes is
left out, and so is whatever works on variables alone.
"""

import json
import re
import sys

sys.dont_write_bytecode = True
import runtime

if __name__ == "__main__":
    runtime.enter()
    runtime.start()

from bind import MODULE, module_name
from dom import OLDEST, Source, kind, parse, walk

# An expression that is longer says little: the model says what it means, and tests of the store that it is so.
LONG = 170
# What tells of more than its arguments.
OUTSIDE = re.compile(
    r"sysutcdatetime|change_tracking_\w+|applock_\w+|session_context|crypt_gen_random|current_transaction_id"
    r"|xact_state|dm_exec|@@trancount",
    re.IGNORECASE,
)


class Shape:
    def __init__(self, source):
        self.source = source
        self.lines = []

    def say(self, depth, text):
        self.lines.append("  " * depth + text)

    def text(self, fragment):
        """The words of a fragment, without comments, with one blank between them."""
        tokens = []
        for at in range(fragment.FirstTokenIndex, fragment.LastTokenIndex + 1):
            token = fragment.ScriptTokenStream[at]
            if str(token.TokenType) in ("WhiteSpace", "SingleLineComment", "MultilineComment"):
                continue
            word = token.Text
            tokens.append(word if word.startswith("'") or word.startswith("N'") else word.lower())
        text = " ".join(tokens).strip(" ;")
        text = re.sub(r" ?([.(]) ?", r"\1", text)
        text = re.sub(r" ([,)])", r"\1", text)
        text = re.sub(r"([<>!]) ([=>])", r"\1\2", text)
        return text.replace("changefeed.", "")

    def short(self, fragment):
        text = self.text(fragment)
        return text if len(text) <= LONG else "…"

    def all(self, statements, depth):
        for statement in statements:
            self.statement(statement, depth)

    def block(self, head, statement, depth, outside=False):
        """What depends on a condition, if it does anything."""
        before = len(self.lines)
        self.say(depth, head)
        self.statement(statement, depth + 1)
        if len(self.lines) > before + 1:
            return True
        if outside:
            # Whatever it decides about variables, it asks the database.
            self.say(depth + 1, "…")
            return True
        self.lines.pop()
        return False

    def statement(self, statement, depth):
        name = kind(statement)
        if name in ("BeginEndBlockStatement",):
            self.all(statement.StatementList.Statements, depth)
        elif name == "TryCatchStatement":
            self.say(depth, "try")
            self.all(statement.TryStatements.Statements, depth + 1)
            self.say(depth, "catch")
            self.all(statement.CatchStatements.Statements, depth + 1)
        elif name == "IfStatement":
            condition = self.condition(statement.Predicate)
            outside = self.is_outside(statement.Predicate)
            said = self.block(f"if {condition}", statement.ThenStatement, depth, outside)
            if statement.ElseStatement is not None:
                if not said:
                    self.say(depth, f"if {condition}")
                if not self.block("else", statement.ElseStatement, depth) and not said:
                    self.lines.pop()
        elif name == "WhileStatement":
            self.block(f"while {self.condition(statement.Predicate)}", statement.Statement, depth)
        elif name == "BeginTransactionStatement":
            self.say(depth, "begin transaction")
        elif name == "CommitTransactionStatement":
            self.say(depth, "commit transaction")
        elif name == "RollbackTransactionStatement":
            self.say(depth, "rollback transaction")
        elif name == "SetTransactionIsolationLevelStatement":
            self.say(depth, self.text(statement))
        elif name == "PredicateSetStatement":
            if "xact_abort" in self.text(statement) or "implicit" in self.text(statement):
                self.say(depth, self.text(statement))
        elif name == "ThrowStatement":
            number = statement.ErrorNumber
            self.say(depth, f"throw {self.text(number)}" if number is not None else "throw")
        elif name in ("ReturnStatement", "BreakStatement", "ContinueStatement"):
            self.say(depth, self.text(statement))
        elif name == "ExecuteStatement":
            self.say(depth, self.text(statement))
        elif name in ("SelectStatement", "InsertStatement", "UpdateStatement", "DeleteStatement"):
            line = self.data(statement, name)
            if line:
                self.say(depth, line)
        elif name == "CreateIndexStatement":
            options = ", ".join(self.text(option) for option in statement.IndexOptions)
            table = self.text(statement.OnName)
            self.say(depth, f"index {statement.Name.Value.lower()} on {table} {options}".strip())
        elif name in ("SetVariableStatement", "DeclareVariableStatement"):
            if name == "DeclareVariableStatement":
                parts = [d for d in statement.Declarations if d.Value is not None and self.is_outside(d)]
                for part in parts:
                    self.say(depth, f"set {part.VariableName.Value.lower()} = {self.short(part.Value)}")
            elif self.is_outside(statement):
                self.say(depth, f"set {statement.Variable.Name.lower()} = {self.short(statement.Expression)}")

    def condition(self, predicate):
        # The parser does not count the word to the fragment.
        return "exists" * (kind(predicate) == "ExistsPredicate") + self.text(predicate)

    def is_outside(self, fragment):
        return bool(
            self.tables(fragment)
            or any(kind(node) == "NextValueForExpression" for node in walk(fragment))
            or OUTSIDE.search(self.text(fragment))
        )

    def tables(self, fragment):
        return [node for node in walk(fragment) if self.is_table(node)]

    def is_table(self, node):
        if kind(node) == "NamedTableReference":
            return True
        return kind(node).startswith("ChangeTable")

    def table(self, node):
        if kind(node).startswith("ChangeTable"):
            return self.text(node).split(")")[0] + ")"
        parts = [part.Value.lower() for part in node.SchemaObject.Identifiers]
        name = ".".join(parts).removeprefix("changefeed.")
        hints = sorted(self.hint(hint) for hint in node.TableHints)
        return f"{name}({','.join(hints)})" if hints else name

    def hint(self, hint):
        if kind(hint) == "IndexTableHint":
            return f"index {self.text(hint.IndexValues[0])}"
        if kind(hint) == "ForceSeekTableHint":
            return "forceseek"
        return str(hint.HintKind).lower()

    def data(self, statement, name):
        specification = {
            "SelectStatement": "QueryExpression",
            "InsertStatement": "InsertSpecification",
            "UpdateStatement": "UpdateSpecification",
            "DeleteStatement": "DeleteSpecification",
        }[name]
        spec = getattr(statement, specification)
        if not self.is_outside(statement):
            return None
        verb = name.removesuffix("Statement").lower()
        words = [verb]
        if verb == "select":
            words += self.query(spec)
            return " ".join(words)
        target = spec.Target
        aliases = self.aliases(spec)
        if kind(target) == "VariableTableReference":
            words.append(target.Variable.Name.lower())
        else:
            written = self.text(target.SchemaObject)
            words.append(self.table(aliases.get(written, target)))
        if verb == "update":
            sets = []
            for clause in spec.SetClauses:
                column = self.text(clause.Column) if clause.Column is not None else ""
                sets.append(f"{column} = {self.short(clause.NewValue)}")
            words.append("set " + ", ".join(sets))
        if spec.OutputIntoClause is not None:
            words.append(
                "output "
                + ", ".join(self.text(column) for column in spec.OutputIntoClause.SelectColumns)
                + " into "
                + self.text(spec.OutputIntoClause.IntoTable).split("(")[0].split(" ")[0]
            )
        if verb == "insert":
            source = spec.InsertSource
            if kind(source) == "ValuesInsertSource":
                words.append("values")
            else:
                words.append("select " + " ".join(self.query(source.Select)))
            return " ".join(words)
        if spec.FromClause is not None:
            others = self.from_tables(spec.FromClause)
            if words[1] in others:
                others.remove(words[1])
            if others:
                words.append("from " + ", ".join(others))
        words += self.where(spec.WhereClause)
        return " ".join(words)

    def aliases(self, spec):
        found = {}
        if getattr(spec, "FromClause", None) is not None:
            for node in walk(spec.FromClause):
                if kind(node) == "NamedTableReference":
                    if node.Alias is not None:
                        found[node.Alias.Value.lower()] = node
                    found.setdefault(self.text(node.SchemaObject), node)
        return found

    def from_tables(self, clause):
        found = []
        for node in walk(clause):
            if self.is_table(node):
                found.append(self.table(node))
            elif kind(node) == "VariableTableReference":
                found.append(node.Variable.Name.lower())
        return found

    def query(self, query):
        words = []
        if kind(query) == "BinaryQueryExpression":
            return [*self.query(query.FirstQueryExpression), "union", *self.query(query.SecondQueryExpression)]
        if kind(query) != "QuerySpecification":
            return [self.text(query)]
        if query.TopRowFilter is not None:
            words.append(self.text(query.TopRowFilter))
        wanted = []
        for element in query.SelectElements:
            if kind(element) == "SelectSetVariable" or self.is_outside(element):
                wanted.append(self.short(element))
        if wanted:
            words.append(", ".join(wanted))
        if query.FromClause is not None:
            words.append("from " + ", ".join(self.from_tables(query.FromClause)))
            for node in walk(query.FromClause):
                if kind(node) == "QuerySpecification" and self.from_tables(node):
                    top = [] if node.TopRowFilter is None else [self.text(node.TopRowFilter)]
                    inner = " ".join(top + self.where(node.WhereClause))
                    if inner:
                        words.append(f"({inner})")
        words += self.where(query.WhereClause)
        if query.OrderByClause is not None:
            words.append(self.text(query.OrderByClause))
        return words

    def where(self, clause):
        return [] if clause is None else [self.text(clause)]


def shapes(source):
    script, errors = parse(source, OLDEST)
    if errors:
        raise SystemExit(f"{source.name}: {errors[0]}")
    alone = Shape(source)
    for batch in script.Batches:
        for statement in batch.Statements:
            if MODULE.fullmatch(kind(statement)):
                shape = Shape(source)
                body = getattr(statement, "StatementList", None)
                if body is not None:
                    shape.all(body.Statements, 0)
                    yield module_name(statement), shape.lines
            else:
                alone.statement(statement, 0)
    yield source.name, alone.lines


def main():
    for line in sys.stdin:
        item = json.loads(line)
        for name, lines in shapes(Source(item["name"], item["sql"])):
            print(json.dumps({"of": item["name"], "name": name, "lines": lines}, ensure_ascii=False))


if __name__ == "__main__":
    main()

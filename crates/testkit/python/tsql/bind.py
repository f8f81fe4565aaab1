"""Microsoft's binder (DacFx): finds columns, variables, parameters and objects that do not exist.

A model of the database is made of catalog.sql, the migrations, and what the statements define.
Whatever is not a definition becomes the body of a procedure, because the binder looks into those.
"""

import re
from pathlib import Path

from Microsoft.SqlServer.Dac.Model import (
    DacModelException,
    SqlServerVersion,
    TSqlModel,
    TSqlModelOptions,
    TSqlObjectOptions,
)

from dom import OLDEST, Finding, Source, full_name, kind, parse, quote, walk

MODELS = {
    "SQL Server 2017": SqlServerVersion.Sql140,
    "SQL Server 2019": SqlServerVersion.Sql150,
    "Azure SQL": SqlServerVersion.SqlAzure,
}

MODULE = re.compile("(Create|Alter|CreateOrAlter)(Procedure|Trigger|Function|View)Statement")
DROP = re.compile("Drop(Procedure|Trigger|Function|View|Table|Sequence)Statement")
PLAIN = re.compile("(Create(Schema|Table|Index|Sequence|Role|Type.*|Synonym)|Grant)Statement")
# Of those, what makes things that other statements use; the rest is checked where it stands.
SHARED = re.compile("Create(Schema|Table|Sequence|Type.*)Statement")

PART = re.compile(r"\[((?:[^\]]|\]\])*)\]")
NAME = r"(?:\[(?:[^\]]|\]\])*\]\.?)+"
ELEMENT = re.compile(rf"Error validating element ({NAME}): (?:Sql\w+: {NAME} )?")


class Definition:
    """One script of the model: a statement of a source, and what can only come with it."""

    def __init__(self, source, fragment, text, prefix="", rest=()):
        self.source = source
        self.fragment = fragment
        text = prefix + text
        # How far the text of the first line has moved to the right.
        self.moved = len(prefix) - (fragment.StartColumn - 1)
        # The text stands at the line that it has in the source, so that errors name that line.
        self.script = "\n" * (fragment.StartLine - 1) + text
        self.support = []
        # The binder does not know the columns of CHANGETABLE.
        self.unknowable = [
            f"[{node.Alias.Value.lower()}]::"
            for part in (fragment, *rest)
            for node in walk(part)
            if kind(node).startswith("ChangeTable") and node.Alias is not None
        ]

    def text(self):
        return "\nGO\n".join([self.script, *self.support])

    def finding(self, message, version):
        """What Validate says, with the place where the missing name is first written."""
        message = ELEMENT.sub("", message)
        names = PART.findall(message)
        line, column = self.fragment.StartLine, self.fragment.StartColumn
        if names:
            written = re.escape(names[-1].replace("]]", "]"))
            found = re.search(rf"(?<![\w@#]){written}(?![\w@#])", self.script, re.IGNORECASE)
            if found:
                before = self.script[: found.start()]
                line = before.count("\n") + 1
                column = found.start() - before.rfind("\n")
                return self.at(line, column, message, version)
        return Finding(self.source.name, line, column, message, version)

    def at(self, line, column, message, version):
        if line == self.fragment.StartLine:
            column -= self.moved
        return Finding(self.source.name, line, column, message, version)

    def is_about_us(self, message):
        # The parameters that follow are named by the statement that it is given.
        if "[sp_executesql].[@" in message:
            return False
        return not any(alias in message.lower() for alias in self.unknowable)


class Database:
    """The definitions that sources make."""

    def __init__(self):
        self.definitions = {}
        # The modules of statements; a round for each time that a name is defined once more.
        self.rounds = [{}]
        self.count = 0
        catalog = Path(__file__).with_name("catalog.sql")
        self.add_catalog(Source(catalog.name, catalog.read_text(), migration=True))

    def add_catalog(self, source):
        script, errors = parse(source, OLDEST)
        if errors:
            raise SystemExit(errors[0])
        self.add(source, script)
        # The system's procedures are found without their schema, too.
        for batch in script.Batches:
            for statement in batch.Statements:
                if kind(statement) == "CreateProcedureStatement":
                    schema = statement.ProcedureReference.Name.SchemaIdentifier
                    text = source.text(statement, [(schema, "dbo")])
                    key = module_name(statement).replace("sys.", "dbo.", 1)
                    self.definitions[key] = Definition(source, statement, text)

    def add(self, source, script):
        for batch in script.Batches:
            loose = []
            for statement in batch.Statements:
                name = kind(statement)
                if MODULE.fullmatch(name):
                    self.module(source, statement)
                elif SHARED.fullmatch(name) and not is_temporary_table(statement):
                    self.plain(source, statement)
                elif not source.migration:
                    loose.append(statement)
                elif PLAIN.fullmatch(name):
                    self.plain(source, statement)
                elif name == "AlterTableAddTableElementStatement":
                    table = self.table(statement)
                    head, tail = table.script.rsplit(")", 1)
                    table.script = f"{head}, {source.text(statement.Definition)}){tail}"
                elif name.startswith("AlterTable"):
                    self.table(statement).support.append(source.text(statement))
                elif DROP.fullmatch(name):
                    for dropped in statement.Objects:
                        self.definitions.pop(full_name(dropped.Identifiers), None)
                else:
                    loose.append(statement)
            if loose:
                self.body(source, loose)

    def table(self, statement):
        return self.definitions[full_name(statement.SchemaObjectName.Identifiers)]

    def plain(self, source, statement):
        name = getattr(statement, "SchemaObjectName", None) or getattr(statement, "Name", None)
        if kind(statement) in ("CreateTableStatement", "CreateSequenceStatement"):
            key = full_name(name.Identifiers)
        elif kind(statement) == "CreateSchemaStatement":
            key = f"schema {name.Value.lower()}"
        else:
            key = f"{source.name} {statement.StartOffset}"
        self.definitions[key] = Definition(source, statement, source.text(statement))

    def module(self, source, statement):
        edits = self.local_tables(source, [statement])
        text = source.text(statement, edits)
        text = re.sub(r"\A(create\s+or\s+alter|alter)\b", "create", text, flags=re.IGNORECASE)
        definition = Definition(source, statement, text)
        key = module_name(statement)
        if source.migration:
            self.definitions[key] = definition
            return
        if all(key in round for round in self.rounds):
            self.rounds.append({})
        next(round for round in self.rounds if key not in round)[key] = definition

    def body(self, source, statements):
        """Makes a procedure of statements that stand alone, with a parameter for every @P1."""
        edits = self.local_tables(source, statements)
        self.count += 1
        key = f"dbo.statement {self.count}"
        parameters = {
            node.Name.upper(): None
            for statement in statements
            for node in walk(statement)
            if kind(node) == "VariableReference" and re.fullmatch("(?i)@P[0-9]+", node.Name)
        }
        declared = ", ".join(f"{name} sql_variant" for name in parameters)
        head = f"create procedure dbo.[statement {self.count}] {declared} as begin set nocount on;"
        text, first = "", statements[0]
        for statement in statements:
            line = first.StartLine + text.count("\n")
            text += "\n" * (statement.StartLine - line) + source.text(statement, edits) + ";"
        self.rounds[0][key] = Definition(
            source, first, text + " end", prefix=head, rest=statements[1:]
        )

    def local_tables(self, source, fragments):
        """Makes tables of table variables and temporary tables, because the binder does not look
        for columns in those. Returns the edits that use them instead."""
        edits, names = [], {}
        nodes = [node for fragment in fragments for node in walk(fragment)]
        for node in nodes:
            if kind(node) == "DeclareTableVariableStatement":
                name, table = node.Body.VariableName.Value, node.Body.Definition
            elif is_temporary_table(node):
                name, table = node.SchemaObjectName.BaseIdentifier.Value, node.Definition
            else:
                continue
            self.count += 1
            names[name.lower()] = f"dbo.{quote(f'{name[1:]} {self.count}')}"
            text = f"create table {names[name.lower()]} ({source.text(table)})"
            key = names[name.lower()].replace("[", "").replace("]", "")
            self.definitions[key] = Definition(source, node, text)
            edits.append((node, "set nocount on;"))
        for node in nodes:
            if kind(node) == "VariableTableReference":
                target, name = node.Variable, node.Variable.Name
            elif kind(node) == "NamedTableReference":
                target, name = node.SchemaObject, node.SchemaObject.BaseIdentifier.Value
            else:
                continue
            if name.lower() in names and name[0] in "@#":
                edits.append((target, names[name.lower()]))
        return edits

    def check(self, version):
        for round in self.rounds:
            yield from validate({**self.definitions, **round}, version)


def module_name(statement):
    if hasattr(statement, "ProcedureReference"):
        return full_name(statement.ProcedureReference.Name.Identifiers)
    if hasattr(statement, "SchemaObjectName"):
        return full_name(statement.SchemaObjectName.Identifiers)
    return full_name(statement.Name.Identifiers)


def is_temporary_table(node):
    return (
        kind(node) == "CreateTableStatement"
        and node.SchemaObjectName.BaseIdentifier.Value.startswith("#")
    )


def validate(definitions, version):
    """Adds all definitions to a model, and says what was refused and what does not resolve."""
    refused = True
    while refused:
        # A model that has refused something refuses everything, so the next try is without it.
        model = TSqlModel(MODELS[version], TSqlModelOptions())
        refused = None
        for key, definition in definitions.items():
            try:
                model.AddOrUpdateObjects(definition.text(), key, TSqlObjectOptions())
            except DacModelException as refusal:
                refused = key
                yield from refusals(model, definition, refusal, version)
                break
        definitions = {key: value for key, value in definitions.items() if key != refused}
        if refused:
            model.Dispose()
    for message in model.Validate():
        element = ELEMENT.match(message.Message)
        parts = PART.findall(element[1])[:2] if element else []
        definition = definitions.get(".".join(parts).replace("]]", "]").lower())
        if definition is None:
            yield Finding("the whole", 0, 0, message.Message, version)
        elif definition.is_about_us(message.Message):
            yield definition.finding(message.Message, version)
    model.Dispose()


def refusals(model, definition, refusal, version):
    errors = list(model.GetModelErrors())
    for error in errors:
        yield definition.at(error.Line, error.Column, error.Message, version)
    if not errors:
        yield definition.source.finding(definition.fragment, refusal.Message)

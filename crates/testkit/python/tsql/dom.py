"""T-SQL as Microsoft's parser sees it: text, errors, and the tree of fragments."""

from dataclasses import dataclass

import Microsoft.SqlServer.TransactSql.ScriptDom as dom
from System.IO import StringReader

# The oldest version that we promise to run on, and the newest that this parser knows.
VERSIONS = {"SQL Server 2017": dom.TSql140Parser, "SQL Server 2019": dom.TSql150Parser}
OLDEST = "SQL Server 2017"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and where."""

    name: str
    line: int
    column: int
    message: str
    # Of the server; None if it is wrong everywhere.
    version: str | None = None


def report(findings):
    """One line for each mistake, with the versions that object to it."""
    versions = {}
    for found in findings:
        place = f"{found.name}:{found.line}:{found.column}: {found.message}"
        versions.setdefault(place, {})[found.version] = None
    for place, objecting in versions.items():
        named = ", ".join(version for version in objecting if version)
        yield f"{place} ({named})" if named else place


class Source:
    """A named text. The parser counts in UTF-16 units, so it is kept as such."""

    def __init__(self, name, sql, migration=False):
        self.name = name
        self.sql = sql
        self.migration = migration
        self.units = sql.encode("utf-16-le")

    def text(self, fragment, edits=()):
        """The text of a fragment, with those (fragment, replacement) edits made that are in it."""
        at = fragment.StartOffset
        end = at + fragment.FragmentLength
        out = []
        for inner, replacement in sorted(edits, key=lambda edit: edit[0].StartOffset):
            if not at <= inner.StartOffset < end:
                continue
            # What was replaced keeps its lines, so that those of an error stay right.
            gone = self.text(inner).count("\n") - replacement.count("\n")
            out += [self._between(at, inner.StartOffset), replacement + "\n" * max(gone, 0)]
            at = inner.StartOffset + inner.FragmentLength
        return "".join([*out, self._between(at, end)])

    def _between(self, start, end):
        return self.units[2 * start : 2 * end].decode("utf-16-le")

    def finding(self, fragment, message):
        return Finding(self.name, fragment.StartLine, fragment.StartColumn, message)


def parse(source, version):
    """The script and what is wrong with it. QUOTED_IDENTIFIER is on, as our connections set it."""
    script, errors = VERSIONS[version](True).Parse(StringReader(source.sql), None)
    return script, [
        Finding(source.name, error.Line, error.Column, error.Message, version)
        for error in errors
    ]


def kind(fragment):
    return fragment.GetType().Name


_children = {}


def walk(fragment):
    """A fragment and everything below it."""
    yield fragment
    name = kind(fragment)
    if name not in _children:
        _children[name] = [
            property
            for property in fragment.GetType().GetProperties()
            if property.GetIndexParameters().Length == 0 and _holds_fragments(property.PropertyType)
        ]
    for property in _children[name]:
        value = property.GetValue(fragment, None)
        if value is None:
            continue
        if isinstance(value, dom.TSqlFragment):
            yield from walk(value)
        else:
            for child in value:
                yield from walk(child)


def _holds_fragments(type):
    if type.IsGenericType:
        type = type.GetGenericArguments()[0]
    while type is not None:
        if type.FullName == "Microsoft.SqlServer.TransactSql.ScriptDom.TSqlFragment":
            return True
        type = type.BaseType
    return False


def full_name(identifiers, default="dbo"):
    """schema.name in lower case: the names of our objects differ by more than case."""
    parts = [part.Value.lower() for part in identifiers]
    return ".".join([default, *parts][-2:])


def quote(name):
    return "[" + name.replace("]", "]]") + "]"

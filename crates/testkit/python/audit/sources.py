"""The statements in the sources of the store, and one form for them and for what the server has seen."""

import re

BLANK = "\0"
VERB = re.compile(
    r"""\s*(?:with\s+\w|select\s|insert\s+into\s|update\s+[\w.{]|delete\s+from\s|merge\s+into\s|lock\s+table\s|lock\s+\{
        |listen\s|unlisten\s|notify\s|fetch\s|declare\s+\w+\s|close\s|call\s|truncate\s|do\s+\$|analyze\s|explain\s
        |(?:create|drop|alter|comment\s+on)\s+(?:or\s+replace\s+)?(?:unique\s+|constraint\s+|unlogged\s+|temp\w*\s+)?
         (?:function|procedure|table|view|trigger|index|sequence|schema|type|role)\s+(?:if\s|[\w{"]+\.|\{)
        |(?:grant|revoke)\s+[\w{},\s]+\son\s+[\w{.]+
        |set\s+(?:local\s+)?\w+\s*(?:=|to\s)|set\s+transaction\s|reset\s+\w+$|discard\s
        |(?:begin|commit|rollback)(?:;|$|\s+isolation)|savepoint\s|release\s|rollback\s+to\s
        |\{\w*\}\s+(?:where|order\s+by)\s|(?:and|where|order\s+by)\s+[\w.{]+)""",
    re.I | re.X,
)
# What is put together to statements later.
PIECE = re.compile(r"changefeed\.\w+\(|pg_catalog\.\w+\(|_changefeed_\w|->>|\b\w\.\w+ = \{|\bis null\b|::regtype|\bselect\b.*\bfrom\b")
TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<constant>(?P<quote>\$(?:[a-z_]\w*)?\$).*?(?P=quote)|e'(?:\\.|''|[^'\\])*'|[bxn]?'(?:''|[^'])*'
                     |\$\d+|(?<![\w])\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)
      | (?P<blank>\{\w*\})
      | (?P<word>"(?:""|[^"{])*"|[a-z_][\w$]*)
      | (?P<other>.)""",
    re.I | re.X | re.S,
)
# Before these a minus belongs to the number after it.
NO_OPERAND = {"then", "else", "when", "and", "or", "not", "select", "limit", "return", "in", "between", "by", "as"}


def canonical(sql):
    """Without comments, constants and the spaces that say nothing. The body of a function is kept."""
    out = []
    kind = ""
    for token in TOKEN.finditer(sql.replace("{quote}", "$quote$")):
        text = token.group().lower()
        if token.lastgroup == "space":
            continue
        was, kind = kind, token.lastgroup
        if kind == "blank":
            text = BLANK
        elif token["quote"] and "".join(out[:1]) == "create":
            text = canonical(text[len(token["quote"]) : -len(token["quote"])])
        elif kind == "constant" or text in ("true", "false", "null"):
            # The server writes a number together with its sign.
            if out and out[-1] == "-" and len(out) > 1 and (out[-2] in NO_OPERAND or out[-2] in "(,=<>+*/|%["):
                out.pop()
            text, kind = "?", "word"
        if kind == "word" and was == "word" and token.start() > 0 and out and out[-1] != BLANK:
            out.append(" ")
        out.append(text)
    form = "".join(out).strip("; ")
    return re.sub(r"\bextract\(\w+ from\b", "extract(? from", form)


def pattern(form):
    """A judge of whether a statement that was seen is this one, or has this in it."""
    pieces = [piece.strip() for piece in re.split(f"{BLANK}+", form)]
    if len(pieces) == 1 and len(form) < 20:
        return lambda seen: seen == form
    longest = max(pieces, key=len)
    look = re.compile(".*?".join(map(re.escape, pieces)), re.S)
    return lambda seen: longest in seen and look.search(seen) is not None


def split(sql):
    """Splits at semicolons outside of quotes, comments and dollar quotes."""
    sql = sql.replace("{quote}", "$quote$")
    begin, parts = 0, []
    for token in TOKEN.finditer(sql):
        if token.group() == ";":
            parts.append(sql[begin : token.start()])
            begin = token.end()
    parts.append(sql[begin:])
    return parts


def statements(sql):
    return [part for part in split(sql) if VERB.match(re.sub(r"--[^\n]*", " ", part))]


def rust_strings(text):
    """The string literals of a Rust file outside of comments, with their lines and what is before them."""
    token = re.compile(r"""//[^\n]*|/\*.*?\*/|r(#*)"(.*?)"\1|"((?:\\.|[^"\\])*)"|'(?:\\.|[^\\'])'""", re.S)
    for match in token.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        before = text[max(0, match.start() - 80) : match.start()].rstrip()
        if match.group(2) is not None:
            yield match.group(2), line, before
        elif match.group(3) is not None:
            value = re.sub(r"\\\n\s*", "", match.group(3))
            value = value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
            yield value, line, before


# What is told to people may begin like a statement, and may be one for them to run.
PROSE = re.compile(r"""(?:advise|invalid|not_found|message|context|log|warn!|info!|debug!|error!|crash_point)\(\s*(?:format!\(\s*)?$
                       |Kind::\w+,\s*(?:format!\(\s*)?$""", re.X)


def wanted(root):
    for path in sorted(root.rglob("*.sql")):
        parts = statements(path.read_text()) or [path.read_text()]
        for n, part in enumerate(parts, 1):
            yield f"{path.relative_to(root)}#{n}", part
    for path in sorted(root.rglob("*.rs")):
        text = path.read_text().split("#[cfg(test)]", 1)[0]
        for value, line, before in rust_strings(text):
            if PROSE.search(before):
                continue
            parts = statements(value)
            if not parts and PIECE.search(value):
                parts = [value]
            for part in parts:
                # Of a few characters nobody can say whether they are seen again.
                if len(canonical(part).replace(BLANK, "").strip(" ?()=,.")) > 7:
                    yield f"{path.relative_to(root)}:{line}", part


def migrations(store):
    return [path.read_text() for path in sorted((store / "migrations").glob("*.sql"))]


def migrated(store):
    """How our migrations make functions, which says nothing about what is in them."""
    forms = {canonical(part) for text in migrations(store) for part in split(text)}
    return {form for form in forms if form.startswith(("create function", "create procedure"))}


def function_names(store):
    """The names of the functions that our migrations make."""
    made = re.compile(r"create (?:function|procedure) changefeed\.(\w+)")
    return {name for text in migrations(store) for name in made.findall(text)}

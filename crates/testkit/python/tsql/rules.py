"""What neither Microsoft's parser nor its binder looks at, found in the parser's tree."""

from dom import full_name, kind, walk

# Built-in functions that SQL Server 2017 has. The parser takes any name for a function, so one
# that came later would pass it; a name is added here after a look at its documentation.
FUNCTIONS = set(
    """
    abs app_name applock_mode applock_test ascii avg binary_checksum ceiling
    change_tracking_current_version change_tracking_is_column_in_mask
    change_tracking_min_valid_version char charindex checksum col_length col_name columnproperty
    columns_updated compress concat concat_ws connectionproperty count count_big
    crypt_gen_random current_transaction_id database_principal_id databasepropertyex datalength
    dateadd datediff datediff_big datefromparts datename datepart datetime2fromparts db_id
    db_name decompress dense_rank error_line error_message error_number error_procedure
    error_severity error_state first_value floor format formatmessage getdate getutcdate
    has_dbaccess has_perms_by_name hashbytes host_name index_col indexproperty is_member
    is_rolemember isjson isnull isnumeric json_modify json_query json_value lag last_value lead
    len log lower ltrim max min min_active_rowversion nchar newid ntile object_definition
    object_id object_name object_schema_name objectproperty objectpropertyex original_login
    parsename patindex power quotename rand rank replace replicate reverse round row_number
    rowcount_big rtrim schema_id schema_name scope_identity serverproperty session_context sign
    space sql_variant_property sqrt str string_agg string_escape string_split stuff substring sum
    suser_id suser_name suser_sname switchoffset sysdatetime sysdatetimeoffset sysutcdatetime todatetimeoffset
    translate trigger_nestlevel trim type_id type_name typeproperty unicode update upper user_id
    user_name xact_state
    """.split()
)
GLOBALS = set(
    """
    @@connections @@datefirst @@dbts @@error @@fetch_status @@identity @@language @@lock_timeout
    @@max_connections @@microsoftversion @@nestlevel @@options @@procid @@rowcount @@servername
    @@spid @@trancount @@version
    """.split()
)


class Signature:
    """The parameters of a procedure or function of ours."""

    def __init__(self, statement):
        self.names = [parameter.VariableName.Value.lower() for parameter in statement.Parameters]
        self.required = {
            parameter.VariableName.Value.lower()
            for parameter in statement.Parameters
            if parameter.Value is None
        }


def signatures(scripts):
    """Those of all procedures and functions that the scripts define, by name."""
    found = {}
    for script in scripts:
        for batch in script.Batches:
            for statement in batch.Statements:
                if kind(statement).endswith("ProcedureStatement") and hasattr(statement, "Parameters"):
                    name = statement.ProcedureReference.Name
                elif kind(statement).endswith("FunctionStatement") and hasattr(statement, "Parameters"):
                    name = statement.Name
                else:
                    continue
                found[full_name(name.Identifiers)] = Signature(statement)
    return found


def check(source, script, known):
    for fragment in walk(script):
        rule = RULES.get(kind(fragment))
        for message in rule(fragment, known) if rule else ():
            yield source.finding(fragment, message)


def function_call(call, known):
    name = call.FunctionName.Value.lower()
    if call.CallTarget is None:
        if name not in FUNCTIONS:
            yield f"{name} is not in the list of built-in functions of SQL Server 2017"
    elif kind(call.CallTarget) == "MultiPartIdentifierCallTarget":
        target = [*call.CallTarget.MultiPartIdentifier.Identifiers, call.FunctionName]
        yield from arguments_of_function(full_name(target), call.Parameters.Count, known)


def table_function(reference, known):
    name = full_name(reference.SchemaObject.Identifiers)
    yield from arguments_of_function(name, reference.Parameters.Count, known)


def arguments_of_function(name, given, known):
    # Even a parameter with a default has to be given to a function, as the word DEFAULT.
    if name in known and given != len(known[name].names):
        yield f"{name} takes {len(known[name].names)} arguments, not {given}"


def built_in_table_function(reference, known):
    name = reference.Name.Value.lower()
    if name not in FUNCTIONS:
        yield f"{name} is not in the list of built-in functions of SQL Server 2017"


def global_variable(expression, known):
    if expression.Name.lower() not in GLOBALS:
        yield f"{expression.Name} is not in the list of global variables that we use"


def execute(call, known):
    reference = call.ProcedureReference.ProcedureReference
    if reference is None:
        return
    name = full_name(reference.Name.Identifiers)
    if name not in known:
        return
    signature = known[name]
    given = set()
    for place, parameter in enumerate(call.Parameters):
        if parameter.Variable is not None:
            given.add(parameter.Variable.Name.lower())
        elif place < len(signature.names):
            given.add(signature.names[place])
        else:
            yield f"{name} takes {len(signature.names)} arguments, not {call.Parameters.Count}"
            return
    for missing in sorted(signature.required - given):
        yield f"{name} must be given {missing}"


def insert(specification, known):
    source = specification.InsertSource
    columns = specification.Columns.Count
    if columns == 0:
        return
    if kind(source) == "ValuesInsertSource":
        for row in source.RowValues:
            if row.ColumnValues.Count != columns:
                yield f"{columns} columns, but {row.ColumnValues.Count} values"
    elif kind(source) == "SelectInsertSource":
        given = width(source.Select)
        if given is not None and given != columns:
            yield f"{columns} columns, but {given} are selected"


def merged_row(action, known):
    columns, rows = action.Columns.Count, action.Source.RowValues
    for row in rows:
        if columns and row.ColumnValues.Count != columns:
            yield f"{columns} columns, but {row.ColumnValues.Count} values"


def output_into(clause, known):
    given, columns = clause.SelectColumns.Count, clause.IntoTableColumns.Count
    if columns and given != columns:
        yield f"{columns} columns, but {given} are put out"


def width(query):
    """How many columns a query returns, if that can be seen without knowing its tables."""
    while kind(query) in ("QueryParenthesisExpression", "BinaryQueryExpression"):
        query = getattr(query, "QueryExpression", None) or query.FirstQueryExpression
    elements = list(query.SelectElements)
    if any(kind(element) != "SelectScalarExpression" for element in elements):
        return None
    return len(elements)


def union(query, known):
    first, second = width(query.FirstQueryExpression), width(query.SecondQueryExpression)
    if first is not None and second is not None and first != second:
        yield f"one side has {first} columns, the other {second}"


RULES = {
    "FunctionCall": function_call,
    "SchemaObjectFunctionTableReference": table_function,
    "GlobalFunctionTableReference": built_in_table_function,
    "GlobalVariableExpression": global_variable,
    "ExecutableProcedureReference": execute,
    "InsertSpecification": insert,
    "InsertMergeAction": merged_row,
    "OutputIntoClause": output_into,
    "BinaryQueryExpression": union,
}

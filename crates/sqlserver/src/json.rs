//! Values of a row as text and as JSON, by expressions of SQL. `FOR JSON` is not used: it takes a
//! dot in a column's name for nesting, and loses digits.

use crate::quote;
use crate::source::Column;

/// `CONCAT` takes at most 254 arguments.
const MOST_PARTS: usize = 200;

/// The column of a row as text: a form that [`from_text`] reads back to the same value.
pub(crate) fn text(column: &Column, alias: &str) -> String {
    let value = format!("{alias}.{}", quote::identifier(&column.name));
    match column.base_type.as_str() {
        "date" => format!("convert(varchar(10), {value}, 23)"),
        "time" => format!("convert(varchar(16), {value})"),
        // The separator is a blank on Babelfish, whatever the style.
        "datetime" | "datetime2" | "smalldatetime" | "datetimeoffset" => {
            format!("replace(stuff(convert(varchar(40), {value}, 126), 11, 1, 'T'), ' ', '')")
        }
        // Babelfish rounds money where it makes it a text.
        "money" | "smallmoney" => {
            format!("convert(varchar(40), convert(decimal(19, 4), {value}))")
        }
        "float" | "real" => format!("ltrim(rtrim(convert(varchar(40), {value}, 3)))"),
        "binary" | "varbinary" | "timestamp" | "rowversion" | "image" => {
            format!("changefeed.hex(convert(varbinary(max), {value}))")
        }
        "tinyint" | "smallint" | "int" | "bigint" | "bit" | "decimal" | "numeric"
        | "uniqueidentifier" => format!("convert(varchar(50), {value})"),
        // Each type as a column of that type is written; the rest is text by itself. Bytes are no text, and not
        // everywhere made one.
        "sql_variant" => format!(
            "case convert(nvarchar(128), sql_variant_property({value}, 'BaseType')) \
             when N'binary' then changefeed.hex(convert(varbinary(8000), {value})) \
             when N'varbinary' then changefeed.hex(convert(varbinary(8000), {value})) \
             when N'float' then ltrim(rtrim(convert(nvarchar(40), convert(float, {value}), 3))) \
             when N'real' then ltrim(rtrim(convert(nvarchar(40), convert(real, {value}), 3))) \
             when N'money' then convert(nvarchar(40), convert(decimal(19, 4), {value})) \
             when N'smallmoney' then convert(nvarchar(40), convert(decimal(19, 4), {value})) \
             when N'date' then convert(nvarchar(10), convert(date, {value}), 23) \
             when N'datetime' then convert(nvarchar(40), convert(datetime, {value}), 126) \
             when N'smalldatetime' then convert(nvarchar(40), convert(smalldatetime, {value}), 126) \
             when N'datetime2' then convert(nvarchar(40), convert(datetime2(7), {value}), 126) \
             when N'datetimeoffset' then convert(nvarchar(40), convert(datetimeoffset(7), {value}), 126) \
             else convert(nvarchar(4000), {value}) end"
        ),
        // Of the types that are programs only the text is known.
        "geometry" | "geography" | "hierarchyid" => format!("{value}.ToString()"),
        // Texts that compare in different ways cannot be joined, unless somebody says how the whole does.
        _ if column.collation.is_some() => {
            format!("convert(nvarchar(max), {value}) collate database_default")
        }
        _ => format!("convert(nvarchar(max), {value})"),
    }
}

/// The value of a column from its text.
pub(crate) fn from_text(column: &Column, text: &str) -> String {
    // It says how to compare, and, where the type has a code page, which one.
    if let Some(collation) = &column.collation {
        return format!("convert({}, {text} collate {collation})", column.type_sql);
    }
    match column.base_type.as_str() {
        "binary" | "varbinary" | "timestamp" | "rowversion" => {
            format!("convert({}, {text}, 1)", column.type_sql)
        }
        "datetime" | "datetime2" | "smalldatetime" | "datetimeoffset" => {
            format!("convert({}, {text}, 126)", column.type_sql)
        }
        _ => format!("convert({}, {text})", column.type_sql),
    }
}

/// The value of a column as JSON, by its text; SQL NULL if that is.
fn value(column: &Column, text: &str) -> String {
    match column.base_type.as_str() {
        _ if column.is_number() => text.to_owned(),
        "bit" => format!("case {text} when '1' then 'true' when '0' then 'false' end"),
        // No character of these needs an escape.
        "date" | "time" | "datetime" | "datetime2" | "smalldatetime" | "datetimeoffset"
        | "uniqueidentifier" | "binary" | "varbinary" | "timestamp" | "rowversion" | "image" => {
            format!("'\"' + {text} + '\"'")
        }
        _ => escaped(text),
    }
}

fn escaped(text: &str) -> String {
    format!("N'\"' + string_escape({text}, 'json') + N'\"'")
}

/// The columns of a row as a JSON object.
pub(crate) fn object<'a>(columns: impl IntoIterator<Item = &'a Column>, alias: &str) -> String {
    members(columns.into_iter().map(|c| (c, value(c, &text(c, alias)))))
}

/// The texts of such an array as a JSON object, for these columns. One that is no number any more is a text.
pub(crate) fn object_of_texts(columns: &[Column], array: &str) -> String {
    members(columns.iter().enumerate().map(|(place, column)| {
        let text = format!("json_value({array}, '$[{place}]')");
        let json = match column.is_number() {
            true => format!(
                "case when {text} like N'%[^0-9.eE+-]%' then {} else {text} end",
                escaped(&text)
            ),
            false => value(column, &text),
        };
        (column, json)
    }))
}

fn members<'a>(members: impl Iterator<Item = (&'a Column, String)>) -> String {
    let mut parts = Vec::new();
    for (place, (column, json)) in members.enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let name = serde_json::Value::from(column.name.as_str());
        parts.push(quote::literal(&format!("{comma}{name}:")));
        parts.push(format!("isnull({json}, N'null')"));
    }
    enclosed("{", parts, "}")
}

/// The columns of a row as a JSON array of texts.
pub(crate) fn array<'a>(columns: impl IntoIterator<Item = &'a Column>, alias: &str) -> String {
    let mut parts = Vec::new();
    for (place, column) in columns.into_iter().enumerate() {
        parts.push(quote::literal(if place == 0 { "\"" } else { "\",\"" }));
        parts.push(format!("string_escape({}, 'json')", text(column, alias)));
    }
    parts.push(quote::literal("\""));
    enclosed("[", parts, "]")
}

fn enclosed(open: &str, mut parts: Vec<String>, close: &str) -> String {
    parts.push(quote::literal(close));
    // The first part makes all of it as long as it has to be.
    let mut whole = format!("convert(nvarchar(max), {})", quote::literal(open));
    for some in parts.chunks(MOST_PARTS) {
        whole = format!("concat({whole}, {})", some.join(", "));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, base_type: &str) -> Column {
        Column::plain(name, base_type)
    }

    #[test]
    fn a_name_is_escaped_for_json_and_for_sql() {
        let sql = object([&column("it's \"x\"", "int")], "t");
        assert!(sql.contains(r#"N'"it''s \"x\"":'"#), "{sql}");
        assert!(sql.contains(r#"t.[it's "x"]"#), "{sql}");
    }

    #[test]
    fn a_text_of_another_collation_is_joined_with_others_and_read_back_in_its_code_page() {
        let greek = Column {
            type_sql: "varchar(20)".to_owned(),
            collation: Some("Greek_CI_AS".to_owned()),
            ..column("letter", "varchar")
        };
        let joined = array([&greek, &column("plain", "varchar")], "t");
        assert!(
            joined.contains("convert(nvarchar(max), t.[letter]) collate database_default"),
            "{joined}"
        );
        assert_eq!(joined.matches("collate").count(), 1);
        assert_eq!(
            from_text(&greek, "@text"),
            "convert(varchar(20), @text collate Greek_CI_AS)"
        );
    }

    #[test]
    fn a_wide_row_does_not_need_more_arguments_than_there_may_be() {
        let columns: Vec<Column> = (0..1024).map(|n| column(&format!("c{n}"), "int")).collect();
        let sql = object(&columns, "t");
        assert_eq!(sql.matches("concat(").count(), 11);
    }
}

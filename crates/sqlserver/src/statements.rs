//! Every statement of ours, for those who want to judge them without a server: what lies in files,
//! and what is generated for a set of nasty tables.

use changefeed_core::{FeedId, TableName};

use crate::source::{Column, StoredSource, Table, captured, joined};
use crate::{backfill, capture, event_statements, quote, watch_statements};

/// Statements that are files. Those with blanks are judged when they are filled in, below.
const FILES: [(&str, &str); 15] = [
    ("announce.sql", include_str!("sql/announce.sql")),
    ("instances.sql", include_str!("sql/instances.sql")),
    ("tokens.sql", include_str!("sql/tokens.sql")),
    ("columns.sql", include_str!("sql/columns.sql")),
    ("consumers.sql", include_str!("sql/consumers.sql")),
    ("ends.sql", include_str!("sql/ends.sql")),
    ("feed_empty.sql", include_str!("sql/feed_empty.sql")),
    ("feeds.sql", include_str!("sql/feeds.sql")),
    ("foreign_tables.sql", include_str!("sql/foreign_tables.sql")),
    ("feed_triggers.sql", include_str!("sql/feed_triggers.sql")),
    ("rights.sql", include_str!("sql/rights.sql")),
    (
        "rights_to_install.sql",
        include_str!("sql/rights_to_install.sql"),
    ),
    ("server.sql", include_str!("sql/server.sql")),
    ("shard_states.sql", include_str!("sql/shard_states.sql")),
    ("trim.sql", include_str!("sql/trim.sql")),
];

/// Files with blanks, and parts of others.
#[cfg(test)]
const TEMPLATES: [&str; 8] = [
    "ulid_page.sql",
    "backfill.sql",
    "backfill_captured.sql",
    "backfill_forget.sql",
    "backfill_joined.sql",
    "capture.sql",
    "page.sql",
    // Its result is statements, which only a server can make.
    "uninstall.sql",
];

/// All statements, each with a name. The tables they are about are made by the first ones.
pub fn statements() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for (number, table) in nasty_tables().into_iter().enumerate() {
        let mut add = |what: &str, sql: String| all.push((format!("{what} {number}"), sql));
        if let Some(schema) = table.name.schema.as_deref().filter(|s| *s != "dbo") {
            add(
                "schema",
                format!("create schema {}", quote::identifier(schema)),
            );
        }
        add("table", create(&table));
        let by = table.columns.last().map(|c| c.name.as_str());
        // Every way to choose a shard for one table; for the others the one that is hardest to write.
        let ways = [(4, by), (1, None), (4, Some("change_id"))];
        let some = if number == 0 { ways.len() } else { 1 };
        for (shards, shard_by) in ways.into_iter().take(some) {
            let feed = FeedId(i16::try_from(number).unwrap_or_default() * 10 + shards);
            if let Ok(trigger) = capture::trigger(feed, &table, shard_by, shards) {
                add(&format!("capture by {shard_by:?} of"), trigger);
            }
            for is_captured in [true, false] {
                let source = StoredSource {
                    captured: is_captured,
                    table_id: 1,
                    change_id_column: Some("change_id".to_owned()),
                    shard_by: shard_by.map(str::to_owned),
                    shards,
                };
                if let Ok(step) = backfill::statement(&source, &table) {
                    add(&format!("backfill by {shard_by:?} {is_captured} of"), step);
                }
            }
        }
        add("captured page of", captured(&table));
        add("joined page of", joined(&table, "change_id"));
    }
    all.extend(FILES.map(|(name, sql)| (name.to_owned(), sql.to_owned())));
    // Names and types are those of the tables above; two of them show what is generated.
    let two = nasty_tables().into_iter().skip(3).collect();
    all.extend(event_statements::statements(two));
    let one = nasty_tables().into_iter().skip(4).collect();
    all.extend(watch_statements::statements(one));
    all
}

/// Tables with names and types that have broken somebody's generator.
pub(crate) fn nasty_tables() -> Vec<Table> {
    let names = [
        TableName::qualified("dbo", "order"),
        TableName::qualified("dbo", "weird]name"),
        TableName::qualified("sales \"2\"", "UPPER case"),
        TableName::qualified("it's", "quo\"te"),
        TableName::qualified("select", "{table} @P1 %s -- /*"),
    ];
    let every_type: Vec<Column> = [
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "bit",
        "decimal(38, 10)",
        "numeric(18, 0)",
        "money",
        "smallmoney",
        "float",
        "real",
        "date",
        "time(7)",
        "datetime",
        "smalldatetime",
        "datetime2(7)",
        "datetimeoffset(7)",
        "char(3)",
        "varchar(20)",
        "varchar(max)",
        "nchar(3)",
        "nvarchar(40)",
        "nvarchar(max)",
        "binary(16)",
        "varbinary(30)",
        "varbinary(max)",
        "uniqueidentifier",
        "xml",
        "sql_variant",
    ]
    .iter()
    .enumerate()
    .map(|(n, type_sql)| column(&format!("c{n} \"x]'{{key}}"), type_sql))
    .collect();
    names
        .into_iter()
        .enumerate()
        .map(|(number, name)| {
            let mut columns = vec![column("change_id", "bigint")];
            // One key of each kind that may be one, and a key of several.
            let key = match number {
                0 => vec![column("id", "int")],
                1 => vec![
                    column("select", "nvarchar(100)"),
                    column("from", "datetime2(7)"),
                ],
                2 => vec![column("key", "uniqueidentifier")],
                3 => vec![
                    column("a.b", "varbinary(16)"),
                    column("c d", "decimal(10, 2)"),
                ],
                _ => vec![column("\"", "datetimeoffset(7)"), column("'", "char(4)")],
            };
            columns.extend(key.clone());
            columns.extend(every_type.clone());
            columns.push(column("shard by", "varchar(20)"));
            Table {
                id: 1,
                sql: quote::table(&name),
                name,
                kind: "U".to_owned(),
                owners: None,
                key,
                columns,
            }
        })
        .collect()
}

fn column(name: &str, type_sql: &str) -> Column {
    let base = type_sql.split('(').next().unwrap_or(type_sql);
    Column {
        type_sql: type_sql.to_owned(),
        ..Column::plain(name, base)
    }
}

fn create(table: &Table) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|c| format!("{} {} not null", quote::identifier(&c.name), c.type_sql))
        .collect();
    let key: Vec<String> = table
        .key
        .iter()
        .map(|c| quote::identifier(&c.name))
        .collect();
    format!(
        "create table {} ({}, primary key ({}))",
        table.sql,
        columns.join(", "),
        key.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_forgotten() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let known = FILES
                .iter()
                .chain(&event_statements::FILES)
                .chain(&watch_statements::FILES)
                .any(|(file, _)| *file == name)
                || TEMPLATES
                    .iter()
                    .chain(&event_statements::TEMPLATES)
                    .chain(&watch_statements::TEMPLATES)
                    .any(|file| *file == name);
            assert!(known, "{name}");
        }
    }

    /// Only a plan for the very values begins at the last key, instead of looking for it.
    #[test]
    fn what_goes_on_after_a_key_begins_at_it() {
        let (mut plain, mut composite) = (0, 0);
        for (name, sql) in statements() {
            let Some(at) = sql.find("(@last is null or ") else {
                continue;
            };
            let after = &sql[at..];
            let end = after.find(";\nset @seen").unwrap();
            assert!(after[..end].ends_with("\noption (recompile)"), "{name}");
            if after[..end].contains("@key1") {
                composite += 1;
                assert!(after[..end].contains(" >= @key0 and (("), "{name}");
            } else {
                plain += 1;
            }
        }
        assert!(plain > 0 && composite > 0);
    }

    /// Azure SQL Database has other numbers for databases than `db_id()` there.
    #[test]
    fn the_database_is_asked_for_by_its_name() {
        let migrations = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let files = std::fs::read_dir(migrations).unwrap();
        let scripts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let texts = statements().into_iter().map(|(_, sql)| sql).chain(scripts);
        let mut asked = 0;
        for sql in texts {
            asked += sql.matches("sys.databases d").count();
            assert!(!sql.contains("d.database_id"), "{sql}");
        }
        assert!(asked > 0);
    }
}

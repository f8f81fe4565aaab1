//! Every statement of ours, for those who want to judge them without a server: what lies in files,
//! and what is generated for a set of nasty tables.

use changefeed_core::{FeedId, TableName};

use crate::source::{Column, StoredSource, Table, captured, joined};
use crate::{backfill, capture, event_statements, quote, watch_statements};

/// Statements that are files. Those with blanks are judged when they are filled in, below.
const FILES: [(&str, &str); 18] = [
    ("announce.sql", include_str!("sql/announce.sql")),
    ("instances.sql", include_str!("sql/instances.sql")),
    ("tokens.sql", include_str!("sql/tokens.sql")),
    ("columns.sql", include_str!("sql/columns.sql")),
    ("consumers.sql", include_str!("sql/consumers.sql")),
    ("ends.sql", include_str!("sql/ends.sql")),
    ("feed_empty.sql", include_str!("sql/feed_empty.sql")),
    ("feed_unlink.sql", include_str!("sql/feed_unlink.sql")),
    ("feeds.sql", include_str!("sql/feeds.sql")),
    ("foreign_tables.sql", include_str!("sql/foreign_tables.sql")),
    ("feed_triggers.sql", include_str!("sql/feed_triggers.sql")),
    ("left_triggers.sql", include_str!("sql/left_triggers.sql")),
    ("rights.sql", include_str!("sql/rights.sql")),
    (
        "rights_to_install.sql",
        include_str!("sql/rights_to_install.sql"),
    ),
    ("server.sql", include_str!("sql/server.sql")),
    ("shard_states.sql", include_str!("sql/shard_states.sql")),
    ("table_trigger.sql", include_str!("sql/table_trigger.sql")),
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
                    collated(column("select", "nvarchar(100)")),
                    column("from", "datetime2(7)"),
                ],
                2 => vec![column("key", "uniqueidentifier")],
                3 => vec![
                    column("a.b", "varbinary(16)"),
                    column("c d", "decimal(10, 2)"),
                ],
                _ => vec![
                    column("\"", "datetimeoffset(7)"),
                    collated(column("'", "char(4)")),
                ],
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

/// The same column in a way to compare that is hardly a database's own.
fn collated(column: Column) -> Column {
    Column {
        collation: Some("Greek_BIN2".to_owned()),
        ..column
    }
}

fn create(table: &Table) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|c| format!("{} {} not null", quote::identifier(&c.name), c.our_type()))
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
    use crate::platform::Platform;

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
                let first = [" >= @key0 and ((", "@key0 collate Greek_BIN2) and (("];
                let begins = first.iter().any(|first| after[..end].contains(first));
                assert!(begins, "{name}");
            } else {
                plain += 1;
            }
        }
        assert!(plain > 0 && composite > 0);
    }

    /// A number beyond those of `int` is no `bigint` to the server but a decimal: bits cannot be taken
    /// from it, what is reckoned with it is a decimal, too, and a column that is compared with that is
    /// not looked up but converted, row by row.
    #[test]
    fn nothing_is_reckoned_with_numbers_that_the_server_takes_for_decimals() {
        let mut large = 0;
        for (name, sql) in texts() {
            let sql = without_comments_and_texts(&Platform::SqlServer.script(&sql));
            let mut before = String::new();
            for word in sql.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
                let digits = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
                if digits.parse::<u64>().is_ok_and(|n| n > 2_147_483_647) {
                    large += 1;
                    let operand = before.trim_end().strip_suffix('-').unwrap_or(&before);
                    let operator = operand.trim_end().chars().next_back();
                    let reckoned = operator.is_some_and(|c| "&|^+-*/%".contains(c));
                    assert!(!reckoned, "{name}: {operand}{word}");
                }
                before.push_str(word);
            }
        }
        assert!(large > 5, "there are some: {large}");
    }

    /// A search through all events, or through the log of a watched table, would stop at the first row
    /// that somebody has written and not committed, with locks in its hand.
    #[test]
    fn what_is_written_to_tables_of_writers_is_found_by_its_key() {
        let mut written = 0;
        let files = event_statements::FILES.iter().chain(&FILES);
        let texts = files.map(|(name, sql)| (*name, *sql)).chain([
            ("redeliver", include_str!("sql/event_redeliver.sql")),
            ("noted", include_str!("sql/watch_changes_noted.sql")),
        ]);
        for (name, sql) in texts {
            let sql = without_comments_and_texts(sql);
            for statement in sql.split(';') {
                let verb = statement.trim_start();
                let writes = verb.starts_with("update ") || verb.starts_with("delete ");
                let theirs = [
                    "event\n",
                    "event e",
                    "event_attempt",
                    "change c",
                    "change_row",
                    "{log}",
                ]
                .iter()
                .any(|table| statement.contains(&format!("changefeed.{table}")));
                // One event, by its id.
                if writes && theirs && !statement.contains("change_id = @P1") {
                    written += 1;
                    assert!(statement.contains("forceseek"), "{name}: {statement}");
                }
            }
        }
        assert!(written > 8, "{written}");
    }

    /// With optimized locking the server lets a row go that an update has left as it was.
    #[test]
    fn what_is_updated_only_to_be_locked_is_locked_by_a_hint() {
        let mut locked = 0;
        for (name, sql) in texts() {
            let sql = without_comments_and_texts(&Platform::SqlServer.script(&sql));
            for statement in sql.split(';').filter(|part| part.contains("update ")) {
                let (_, sets) = statement.split_once("set ").unwrap_or_default();
                let mut words = sets.split_whitespace();
                let (column, _, value) = (words.next(), words.next(), words.next());
                let bare = value.map(|value| value.trim_start_matches("s."));
                if column.is_some() && column == bare && words.next() != Some("+") {
                    locked += 1;
                    assert!(statement.contains("updlock"), "{name}: {statement}");
                }
            }
        }
        assert!(locked > 3, "{locked}");
    }

    /// Everything that is sent, and everything that is installed.
    fn texts() -> Vec<(String, String)> {
        let migrations = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let files = std::fs::read_dir(migrations).unwrap();
        let scripts = files.map(|file| {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            (path.display().to_string(), text)
        });
        statements().into_iter().chain(scripts).collect()
    }

    fn without_comments_and_texts(sql: &str) -> String {
        let mut out = String::new();
        for line in sql.lines() {
            let mut quoted = false;
            let mut rest = line.chars().peekable();
            while let Some(c) = rest.next() {
                match c {
                    '\'' => quoted = !quoted,
                    '-' if !quoted && rest.peek() == Some(&'-') => break,
                    _ if quoted => {}
                    _ => out.push(c),
                }
            }
            out.push('\n');
        }
        out
    }

    /// Azure SQL Database has other numbers for databases than `db_id()` there.
    #[test]
    fn the_database_is_asked_for_by_its_name() {
        let mut asked = 0;
        for (_, sql) in texts() {
            asked += sql.matches("sys.databases d").count();
            assert!(!sql.contains("d.database_id"), "{sql}");
        }
        assert!(asked > 0);
    }
}

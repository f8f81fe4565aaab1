//! Every statement of ours, for those who want to judge them without a server: what lies in files,
//! and what is generated for a set of nasty tables.

use changefeed_core::{Error, FeedId, Result, ShardRange, Source, TableName, fill};

use crate::source::{Column, StoredSource, Table, captured, joined};
use crate::{
    backfill, capture, event_statements, feeds, quote, reshard, ulid_feeds, watch_statements,
};

/// Its result is statements, which only a server can make.
const UNJUDGED: [&str; 1] = ["uninstall.sql"];
/// Parts of other statements.
const PARTS: [&str; 4] = [
    "backfill_captured.sql",
    "backfill_forget.sql",
    "backfill_joined.sql",
    "watch_newer.sql",
];

/// All files with SQL, by their names.
fn sql_files() -> Result<Vec<(String, String)>> {
    let unreadable = |e: std::io::Error| Error::invalid("the SQL cannot be read").caused_by(e);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql");
    let mut files = Vec::new();
    for file in std::fs::read_dir(folder).map_err(unreadable)? {
        let file = file.map_err(unreadable)?;
        let sql = std::fs::read_to_string(file.path()).map_err(unreadable)?;
        files.push((file.file_name().to_string_lossy().into_owned(), sql));
    }
    files.sort();
    Ok(files)
}

/// Files that are statements as they are.
fn files() -> Result<Vec<(String, String)>> {
    let mut files = sql_files()?;
    files.retain(|(name, sql)| {
        let alone = !PARTS.contains(&name.as_str()) && !UNJUDGED.contains(&name.as_str());
        alone && fill(sql, &[]).is_ok()
    });
    Ok(files)
}

/// All statements, each with a name. The tables they are about are made by the first ones.
pub fn statements() -> Result<Vec<(String, String)>> {
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
            let shards = ShardRange {
                first: 4,
                count: shards,
            };
            let named: Vec<String> = table.columns.iter().map(|c| c.name.clone()).collect();
            let some = [(false, false), (true, false), (true, true)];
            let sources = some.map(|(images, filtered)| Source::Captured {
                table: table.name.clone(),
                shard_by: shard_by.map(str::to_owned),
                images,
                when: filtered
                    .then(|| format!("\"{}\" is not null", named[0].replace('"', "\"\""))),
                columns: filtered.then(|| named.clone()),
            });
            for source in &sources {
                if let Ok(trigger) = capture::trigger(feed, &table, source, shards) {
                    let (images, filtered) = (source.keeps_images(), source.is_filtered());
                    let what = format!("capture by {shard_by:?} {images} {filtered} of");
                    add(&what, trigger);
                }
            }
            for is_captured in [true, false] {
                let source = StoredSource {
                    captured: is_captured,
                    table_id: 1,
                    change_id_column: Some("change_id".to_owned()),
                    shard_by: shard_by.map(str::to_owned),
                    shards,
                    images: is_captured,
                    key_columns: None,
                };
                let shown = sources.last().filter(|_| is_captured);
                if let Ok(step) = backfill::statement(&source, &table, shown) {
                    add(&format!("backfill by {shard_by:?} {is_captured} of"), step);
                }
            }
        }
        add("captured page of", captured(&table)?);
        add("joined page of", joined(&table, "change_id")?);
        // Any columns do for the judge, which does not look at types.
        if let (Some(shard), Some(ulid)) = (table.columns.first(), by) {
            add(
                "ULID page of",
                ulid_feeds::page_sql(&table, &shard.name, ulid)?,
            );
            add(
                "newest ULID of",
                ulid_feeds::newest_sql(&table, &shard.name, ulid)?,
            );
        }
    }
    all.extend(files()?);
    all.push((
        "feed_insert.sql".to_owned(),
        feeds::insert_sql(Some("it's"))?,
    ));
    let (old, new) = (
        ShardRange { first: 0, count: 4 },
        ShardRange { first: 4, count: 8 },
    );
    all.push((
        "reshard_close.sql".to_owned(),
        reshard::close(FeedId(37), old, new)?,
    ));
    // Names and types are those of the tables above; two of them show what is generated.
    let two = nasty_tables().into_iter().skip(3).collect();
    all.extend(event_statements::statements(two)?);
    let one = nasty_tables().into_iter().skip(4).collect();
    all.extend(watch_statements::statements(one)?);
    Ok(all)
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

    /// What has blanks is judged where it is filled in.
    #[test]
    fn no_template_is_forgotten() {
        let all = statements().unwrap();
        for (name, sql) in sql_files().unwrap() {
            let whole = sql
                .lines()
                .filter(|l| !l.contains(['{', '}']) && !l.contains("--"));
            let line = whole
                .max_by_key(|line| line.trim().len())
                .unwrap_or_default();
            let judged = all.iter().any(|(_, sql)| sql.contains(line.trim()));
            assert!(
                judged || UNJUDGED.contains(&name.as_str()),
                "{name}: {line}"
            );
        }
    }

    /// Only a plan for the very values begins at the last key, instead of looking for it.
    #[test]
    fn what_goes_on_after_a_key_begins_at_it() {
        let (mut plain, mut composite) = (0, 0);
        for (name, sql) in statements().unwrap() {
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
        let files = files().unwrap();
        let texts = files
            .iter()
            .map(|(name, sql)| (name.as_str(), sql.as_str()))
            .chain([
                ("redeliver", include_str!("../src/sql/event_redeliver.sql")),
                ("noted", include_str!("../src/sql/watch_changes_noted.sql")),
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
        let installed = crate::MIGRATIONS.iter().map(|step| {
            let name = format!("migration {}", step.version);
            (name, step.sql())
        });
        statements().unwrap().into_iter().chain(installed).collect()
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

    /// The procedures of the migrations by their names, as SQL Server gets them, without comments and texts.
    fn procedures() -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (_, script) in texts() {
            for batch in crate::platform::batches(&Platform::SqlServer.script(&script)) {
                let batch = without_comments_and_texts(&batch);
                if let Some((_, rest)) = batch.split_once("create procedure changefeed.") {
                    let end = rest.find(|c: char| c.is_whitespace()).unwrap();
                    found.push((rest[..end].to_owned(), rest.to_owned()));
                }
            }
        }
        assert!(found.len() > 20, "{found:?}");
        found
    }

    /// Drivers that turn off auto-commit send SET IMPLICIT_TRANSACTIONS ON: the first statement that touches a table
    /// then begins a transaction, and BEGIN TRANSACTION begins two. A procedure of ours neither leaves one open nor
    /// refuses to work because none has begun yet.
    #[test]
    fn procedures_are_right_under_implicit_transactions() {
        // Parts of others, which have seen to it. Nobody else may call them.
        const PARTS: [&str; 8] = [
            "sweep_shard",
            "note_time",
            "ulid_enter",
            "ulid_locked",
            "ulid_silence",
            "ulid_try_lock",
            "ulid_unlock",
            "ulid_wait",
        ];
        // They belong to the caller's transaction, which may begin with them.
        const BEGIN: [(&str, &str); 2] = [
            ("longpoll", "longpoll"),
            ("begin_ulid_transaction", "ulid_enter"),
        ];
        const LIBRARY: [&str; 1] = ["ulid_begin"];
        // They end before they touch a table where there is no transaction.
        const WITHIN: [(&str, &str); 3] = [
            ("ulid_alive", "if xact_state() <> 1 return;"),
            ("new_ulid", "throw 55604"),
            ("commit_ulid_transaction", "if @@trancount = 0 or"),
        ];
        let all = procedures();
        let body = |wanted: &str| &all.iter().find(|(name, _)| name == wanted).unwrap().1;
        let granted = changefeed_grants();
        for (name, sql) in &all {
            if PARTS.contains(&name.as_str()) {
                assert!(!granted.contains(name), "{name} is granted");
                let calls = |(caller, sql): &&(String, String)| {
                    caller != name && sql.contains(&format!("changefeed.{name}"))
                };
                assert!(
                    all.iter().any(|p| calls(&p)) || name == "note_time",
                    "{name} is called by nobody"
                );
                continue;
            }
            let first = sql.find(" changefeed.").unwrap_or(sql.len());
            if let Some((_, part)) = BEGIN.iter().find(|(begins, _)| begins == name) {
                let words: Vec<&str> = body(part).split_whitespace().collect();
                let sql = words.join(" ");
                let touched = sql.find("from changefeed.").unwrap();
                let asked = sql.find("if @@trancount = 0 throw").unwrap();
                assert!(touched < asked, "{name} asks before it has touched a table");
                assert!(!sql.contains("implicit_transactions"), "{name}");
            } else if let Some((_, guard)) = WITHIN.iter().find(|(within, _)| within == name) {
                let touched = [
                    " from changefeed.",
                    "update changefeed.",
                    "insert into changefeed.",
                ]
                .iter()
                .filter_map(|words| sql.find(words))
                .min()
                .unwrap_or(sql.len());
                assert!(sql.find(guard).is_some_and(|at| at < touched), "{name}");
            } else if name == "invoke" {
                // It belongs to the caller's transaction, also to one that begins with it.
                assert!(!sql.contains("implicit_transactions"), "{name}");
            } else if !LIBRARY.contains(&name.as_str()) {
                for setting in ["set implicit_transactions off;", "set rowcount 0;"] {
                    let at = sql.find(setting);
                    assert!(at.is_some_and(|at| at < first), "{name}: {setting}");
                }
            }
        }
    }

    /// What the migrations grant on SQL Server, by name.
    fn changefeed_grants() -> Vec<String> {
        let words = "grant execute on changefeed.";
        let lines = texts().into_iter().flat_map(|(_, sql)| {
            let sql = Platform::SqlServer.script(&sql).into_owned();
            let lines: Vec<String> = sql.lines().map(str::to_owned).collect();
            lines
        });
        let names = lines.filter_map(|line| {
            let name = line.strip_prefix(words)?.split_whitespace().next()?;
            Some(name.to_owned())
        });
        names.collect()
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

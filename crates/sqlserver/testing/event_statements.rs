//! The T-SQL of event triggers, as it is generated for tables that are hard to get right: for
//! those who want to judge it without a server.

use changefeed_core::{
    Capture, Delivery, EventFilter, EventStatus, FeedBinding, FeedId, OrderBy, Result, TableName,
    TriggerDefinition, TriggerId, Updates,
};

use crate::event_capture::{Around, Binding, Plan};
use crate::source::{Column, Table};
use crate::{event_backfill, event_log, quote};

/// All statements, each with a name, for event triggers on these tables and on some more.
pub(crate) fn statements(tables: Vec<Table>) -> Result<Vec<(String, String)>> {
    let mut statements: Vec<(String, String)> = Vec::new();
    let filter = EventFilter {
        trigger: "t".parse().ok(),
        status: Some(EventStatus::DeadLetter),
        since: Some(std::time::SystemTime::UNIX_EPOCH),
        until: Some(std::time::SystemTime::UNIX_EPOCH),
        http_status: Some(503),
        error: Some("it's".to_owned()),
        before: Some(1),
    };
    statements.push(("event_log".to_owned(), event_log::listing(&filter, 100)?));
    statements.push((
        "event_redeliver".to_owned(),
        event_log::redelivering(&filter)?,
    ));
    let ours = hard_tables();
    for table in &ours {
        statements.push((format!("table {}", table.name), create(table)));
    }
    for (at, table) in tables.into_iter().chain(ours).enumerate() {
        for (kind, definition, around) in definitions(&table) {
            let id = TriggerId(i32::try_from(at).unwrap_or_default() + 1);
            let plan = match Plan::of(id, &definition, &table, around) {
                Ok(plan) => plan,
                // What is refused is not generated either.
                Err(_) => continue,
            };
            let name = |what: &str| format!("{what} of {} ({kind})", table.name);
            if let Ok(Some(trigger)) = plan.trigger() {
                statements.push((name("event trigger"), trigger));
            }
            if !table.key.is_empty()
                && let Ok(batch) = event_backfill::statement(&plan)
            {
                statements.push((name("event backfill"), batch));
            }
        }
    }
    Ok(statements)
}

fn create(table: &Table) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|c| {
            let null = if c.nullable { "null" } else { "not null" };
            format!("{} {} {null}", quote::identifier(&c.name), c.type_sql)
        })
        .collect();
    let key: Vec<String> = table
        .key
        .iter()
        .map(|c| quote::identifier(&c.name))
        .collect();
    let key = match key.is_empty() {
        true => String::new(),
        false => format!(", primary key ({})", key.join(", ")),
    };
    format!("create table {} ({}{key})", table.sql, columns.join(", "))
}

/// What a person may ask for: everything, and the least.
fn definitions(table: &Table) -> Vec<(&'static str, TriggerDefinition, Around)> {
    let plain = TriggerDefinition {
        name: match "t".parse() {
            Ok(name) => name,
            Err(_) => return Vec::new(),
        },
        table: table.name.clone(),
        capture: Capture::everything(),
        delivery: Delivery::default(),
    };
    let mut keyless = plain.clone();
    keyless.capture.update = Updates::Ignored;
    let mut full = plain.clone();
    let first = table.columns[0].name.clone();
    full.capture.payload = Some(vec![first.clone()]);
    full.capture.order_by = Some(OrderBy::Column(first.clone()));
    if let Ok(feed) = "f".parse() {
        full.capture.feed = Some(FeedBinding {
            feed,
            shard_by: Some(first.clone()),
        });
    }
    full.capture.not_for_replication = true;
    full.capture.condition = Some(format!(
        "new.{} is not null or old.{} is null",
        quote::identifier(&first),
        quote::identifier(&first)
    ));
    let bound = Around {
        binding: Some(Binding {
            feed: FeedId(1),
            shards: 3,
        }),
        identity: None,
    };
    let fixed = Around {
        identity: table.key.first().cloned(),
        ..Around::default()
    };
    vec![
        ("everything", plain.clone(), Around::default()),
        ("no updates", keyless, Around::default()),
        ("all options", full, bound),
        ("identity", plain, fixed),
    ]
}

fn hard_tables() -> Vec<Table> {
    let table = |name: TableName, columns: Vec<Column>, key: &[usize]| Table {
        id: 1,
        sql: quote::table(&name),
        name,
        kind: "U".to_owned(),
        owners: None,
        key: key.iter().map(|at| columns[*at].clone()).collect(),
        columns,
    };
    let column = |name: &str, type_sql: &str| Column {
        type_sql: type_sql.to_owned(),
        nullable: false,
        ..Column::plain(name, type_sql.split('(').next().unwrap_or(type_sql))
    };
    let programs = ["int", "hierarchyid", "geography", "geometry", "rowversion"];
    let programs: Vec<Column> = programs.map(|kind| column(kind, kind)).into();
    let reserved = ["select", "old", "new", "i", "d", "k", "inserted", "{new}"];
    let reserved: Vec<Column> = reserved.map(|name| column(name, "nvarchar(50)")).into();
    let wide = (0..1000)
        .map(|at| column(&format!("column_{at}"), "int"))
        .collect();
    vec![
        table(
            TableName::qualified("dbo", "event_programs"),
            programs,
            &[0],
        ),
        table(
            TableName::qualified("dbo", "event_reserved"),
            reserved,
            &[0, 1],
        ),
        table(
            TableName::qualified("dbo", "event_keyless"),
            vec![column("a", "int"), column("b", "varchar(10)")],
            &[],
        ),
        table(TableName::qualified("dbo", "event_wide"), wide, &[0]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_a_key_is_not_captured_wrongly() {
        let statements = statements(Vec::new()).unwrap();
        let of_keyless: Vec<&String> = statements
            .iter()
            .filter(|(name, _)| name.contains("trigger of dbo.event_keyless"))
            .map(|(_, sql)| sql)
            .collect();
        assert!(!of_keyless.is_empty());
        assert!(of_keyless.iter().all(|sql| !sql.contains("'U'")));
    }

    /// `Michal` and `Michał` are the same text in the code page of another collation, and a text of a variant has fewer
    /// digits than its value.
    #[test]
    fn texts_of_a_code_page_are_compared_by_their_bytes() {
        let columns: Vec<Column> = [
            "int",
            "char",
            "varchar",
            "nvarchar",
            "varbinary",
            "sql_variant",
        ]
        .map(|kind| Column::plain(kind, kind))
        .into();
        let name = TableName::qualified("dbo", "texts");
        let table = Table {
            id: 1,
            sql: quote::table(&name),
            name,
            kind: "U".to_owned(),
            owners: None,
            key: vec![columns[0].clone()],
            columns,
        };
        for (kind, definition, around) in definitions(&table) {
            let plan = Plan::of(TriggerId(1), &definition, &table, around).unwrap();
            let sql = plan.trigger().unwrap().unwrap();
            if !sql.contains("except") {
                assert_eq!(kind, "no updates");
                continue;
            }
            for row in ["d", "i"] {
                let compared = format!(
                    "{row}.[int], \
                     convert(varbinary(max), {row}.[char]), datalength({row}.[char]), \
                     convert(varbinary(max), {row}.[varchar]), datalength({row}.[varchar]), \
                     {row}.[nvarchar] collate Latin1_General_BIN2, datalength({row}.[nvarchar]), \
                     {row}.[varbinary], datalength({row}.[varbinary]), \
                     convert(nvarchar(128), sql_variant_property({row}.[sql_variant], 'BaseType')), \
                     convert(nvarchar(128), sql_variant_property({row}.[sql_variant], 'Collation')), \
                     convert(varbinary(8000), {row}.[sql_variant])"
                );
                assert!(sql.contains(&compared), "{kind}: {sql}");
            }
        }
    }
}

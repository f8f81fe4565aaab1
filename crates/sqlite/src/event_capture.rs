//! The database triggers that write events.
//!
//! Like those of feeds (`capture.rs`) they run in whatever connection writes to the table, so they
//! use built-in functions only and rely on no conflict clause of their own. They write whole rows,
//! so the rows that a REPLACE may remove are noted with all their values before the statement, and
//! become DELETE events after it if they have left.

use changefeed_core::{
    Error, FeedId, FeedName, Kind, OrderBy, Result, TriggerDefinition, TriggerId, Updates,
};
use rusqlite::Connection;

use crate::condition::{Condition, Row};
use crate::error::Explain;
use crate::event_row::joined;
use crate::inspect::{MAX_KEY, Primary, Table, UniqueIndex};
use crate::quote::{self, fill};
use crate::{capture, event_row, feeds};

/// All database triggers an event trigger may have.
const TRIGGERS: [&str; 8] = [
    "stage_insert",
    "stage_update",
    "insert",
    "update",
    "delete",
    "settle_insert",
    "settle_update",
    "settle_delete",
];

/// The longest statement that every SQLite program reads. A longer one in the schema would keep the
/// others from opening the file at all.
const MAX_SQL: usize = 900_000;

/// The name of a database trigger of an event trigger.
pub(crate) fn trigger_name(id: TriggerId, event: &str) -> String {
    format!("changefeed_event_{}_{event}", id.0)
}

/// The feed that events enter, and how.
pub(crate) struct Binding {
    pub(crate) feed: FeedId,
    shard_by: Option<String>,
    shards: i16,
}

/// An event trigger, with every name of its definition found in its table.
pub(crate) struct Plan {
    pub(crate) id: TriggerId,
    pub(crate) table: Table,
    definition: TriggerDefinition,
    /// The columns that events carry.
    payload: Vec<String>,
    /// The columns whose change makes an event.
    listened: Vec<String>,
    condition: Option<Condition>,
    /// The columns whose values make up the order key.
    order: Option<Vec<String>>,
    pub(crate) binding: Option<Binding>,
    unique: Vec<UniqueIndex>,
    /// What tells a row from another, to be quoted.
    identity: Vec<String>,
}

/// A database trigger as it should be.
pub(crate) struct DatabaseTrigger {
    pub(crate) name: String,
    pub(crate) sql: String,
}

impl Plan {
    /// Finds what a definition names, or says what is missing.
    pub(crate) fn of(
        connection: &Connection,
        id: TriggerId,
        definition: &TriggerDefinition,
        table: Table,
    ) -> Result<Plan> {
        table.check_triggers(connection)?;
        let capture = &definition.capture;
        let find = |names: &[String]| -> Result<Vec<String>> {
            let mut found: Vec<String> = Vec::new();
            for name in names {
                let name = table.column(name)?.to_owned();
                // Named twice is meant once: JSON must not have a name twice.
                if !found.contains(&name) {
                    found.push(name);
                }
            }
            Ok(found)
        };
        let payload = match &capture.payload {
            Some(names) => find(names)?,
            None => table.columns.clone(),
        };
        let listened = match &capture.update {
            Updates::Of(names) => find(names)?,
            Updates::Any => table.columns.clone(),
            Updates::Ignored => Vec::new(),
        };
        let condition = capture
            .condition
            .as_deref()
            .map(|text| Condition::parse(text, &table))
            .transpose()?;
        let order = match &capture.order_by {
            None => None,
            Some(OrderBy::Column(name)) => Some(vec![table.column(name)?.to_owned()]),
            Some(OrderBy::Key) if table.key.is_empty() => {
                return Err(Error::invalid(format!(
                    "table {} has no primary key to order its events by",
                    table.name
                ))
                .advise("add a primary key to it, or order by a column"));
            }
            Some(OrderBy::Key) => Some(table.key.clone()),
        };
        let binding = match &capture.feed {
            None => None,
            Some(bound) => Some(Binding::find(
                connection,
                &bound.feed,
                bound.shard_by.as_deref(),
                &table,
            )?),
        };
        let mut identity = table.identity();
        if identity.len() > MAX_KEY {
            tracing::warn!(
                table = table.name,
                "rows that a REPLACE removes from a table with so long a key are not captured"
            );
            identity.clear();
        }
        Ok(Plan {
            id,
            unique: table.unique_indexes(connection, Primary::Included)?,
            definition: definition.clone(),
            table,
            payload,
            listened,
            condition,
            order,
            binding,
            identity,
        })
    }

    /// The database triggers as they should be now.
    pub(crate) fn triggers(&self) -> Vec<DatabaseTrigger> {
        let capture = &self.definition.capture;
        let conflicts = self.conflicts();
        let stages = capture.delete && !conflicts.is_empty();
        let mut all = Vec::new();
        let mut add = |event: &str, sql: String| {
            all.push(DatabaseTrigger {
                name: trigger_name(self.id, event),
                sql,
            });
        };
        if stages {
            add("stage_insert", self.stage("insert", &conflicts));
            let mine = same(
                &self.identity_of("changefeed_row"),
                &self.identity_of("old"),
            );
            let others: Vec<String> = conflicts
                .iter()
                .map(|conflict| format!("{conflict} and not ({mine})"))
                .collect();
            add("stage_update", self.stage("update", &others));
        }
        for (event, wanted) in [
            ("insert", capture.insert),
            ("update", capture.update != Updates::Ignored),
            ("delete", capture.delete),
        ] {
            if wanted {
                add(event, self.after(event, event, "", &self.write(event)));
            }
        }
        if stages {
            // SQLite runs the newest trigger first, so that the rows a REPLACE removed come before
            // the one it wrote. Where nothing was noted, looking is all that these cost.
            let noted = format!(
                "when exists (select 1 from changefeed_event_staged where trigger_id = {})\n",
                self.id.0
            );
            let (unstage, insert, update) =
                (self.unstage(), self.settle("insert"), self.settle("update"));
            for (name, event, body) in [
                ("settle_insert", "insert", insert),
                ("settle_update", "update", format!("{unstage}\n{update}")),
                ("settle_delete", "delete", unstage),
            ] {
                add(name, self.after(name, event, &noted, &body));
            }
        }
        all
    }

    /// Creates the database triggers in place of any that are there.
    pub(crate) fn install(&self, connection: &Connection) -> Result<()> {
        remove(connection, self.id)?;
        if self.binding.as_ref().is_some_and(|b| b.shards > 1) {
            capture::check_encoding(connection)?;
        }
        for trigger in self.triggers() {
            if trigger.sql.len() > MAX_SQL {
                return Err(Error::new(
                    Kind::Unsupported,
                    format!(
                        "table {} has too many columns to capture all of them",
                        self.table.name
                    ),
                )
                .advise("name the columns that events shall carry, and those to listen to"));
            }
            connection
                .execute_batch(&trigger.sql)
                .explained()
                .map_err(|error| self.refused(error))?;
        }
        // Compiling a write compiles the triggers with it. What is wrong with them must show here
        // and not in the application.
        let column = self
            .table
            .columns
            .iter()
            .find(|c| !self.table.is_generated(c))
            .map_or_else(String::new, |c| quote::identifier(c));
        for write in [
            format!("insert into {} default values", self.table.sql()),
            format!("update {} set {column} = {column}", self.table.sql()),
            format!("delete from {}", self.table.sql()),
        ] {
            connection
                .prepare(&write)
                .explained()
                .map_err(|error| self.refused(error))?;
        }
        Ok(())
    }

    fn refused(&self, error: Error) -> Error {
        let Some(condition) = &self.definition.capture.condition else {
            return error;
        };
        Error::invalid(format!(
            "SQLite does not accept the condition '{condition}' (it says: {error})"
        ))
    }

    /// The statement that makes events of existing rows, in batches, and the columns it walks by.
    pub(crate) fn existing(&self) -> Existing {
        let wanted = match &self.condition {
            Some(condition) => condition.sql(Row::Missing, Row::Called("changefeed_row")),
            None => "1".to_owned(),
        };
        Existing {
            identity: self.identity_of("changefeed_row"),
            table: self.table.sql(),
            new: self.row("changefeed_row"),
            order_key: self.order_key("changefeed_row"),
            shard: self.shard("changefeed_row"),
            wanted,
        }
    }

    /// The order key of an event that has no row.
    pub(crate) fn keyless_order(&self) -> Option<&'static str> {
        self.order.as_ref().map(|_| "manual")
    }

    /// Whether rows that a REPLACE removes are not all seen.
    pub(crate) fn misses_replaced(&self) -> bool {
        self.definition.capture.delete && self.conflicts().is_empty()
    }

    fn identity_of(&self, alias: &str) -> Vec<String> {
        self.identity
            .iter()
            .map(|c| format!("{alias}.{}", quote::identifier(c)))
            .collect()
    }

    /// How a row called `changefeed_row` may be in the way of `new`.
    fn conflicts(&self) -> Vec<String> {
        if self.identity.is_empty() {
            return Vec::new();
        }
        let mut conflicts: Vec<String> = self.unique.iter().map(capture::in_conflict).collect();
        if self.identity != self.table.key {
            conflicts.push(capture::pairs(
                &self.identity_of("changefeed_row"),
                "=",
                &self.identity_of("new"),
                " and ",
            ));
        }
        conflicts
    }

    fn after(&self, name: &str, event: &str, when: &str, body: &str) -> String {
        fill(
            include_str!("../sql/event_trigger.sql"),
            &[
                ("trigger", &quote::identifier(&trigger_name(self.id, name))),
                ("event", event),
                ("table", &self.table.sql()),
                ("when", when),
                ("body", body),
            ],
        )
    }

    fn unstage(&self) -> String {
        let keys = capture::key_columns("", self.identity.len());
        fill(
            include_str!("../sql/event_unstage.sql"),
            &[
                ("id", &self.id.0.to_string()),
                ("staged_is_old", &same(&self.identity_of("old"), &keys)),
                ("old", &self.row("old")),
            ],
        )
    }

    fn stage(&self, event: &str, conflicts: &[String]) -> String {
        let table = self.table.sql();
        let any: Vec<String> = conflicts
            .iter()
            .map(|c| format!("exists (select 1 from {table} as changefeed_row where {c})"))
            .collect();
        let all: Vec<String> = conflicts.iter().map(|c| format!("({c})")).collect();
        let wanted = match &self.condition {
            Some(condition) => format!(
                "\n     and {}",
                condition.sql(Row::Called("changefeed_row"), Row::Missing)
            ),
            None => String::new(),
        };
        let name = trigger_name(self.id, &format!("stage_{event}"));
        fill(
            include_str!("../sql/event_stage.sql"),
            &[
                ("trigger", &quote::identifier(&name)),
                ("event", event),
                ("table", &table),
                ("any_conflict", &joined(&any, " or ")),
                ("conflicts", &joined(&all, " or ")),
                ("id", &self.id.0.to_string()),
                (
                    "keys",
                    &capture::key_columns("", self.identity.len()).join(", "),
                ),
                ("identity", &self.identity_of("changefeed_row").join(", ")),
                ("old", &self.row("changefeed_row")),
                ("order_key", &self.order_key("changefeed_row")),
                ("shard", &self.shard("changefeed_row")),
                ("wanted", &wanted),
            ],
        )
    }

    fn settle(&self, event: &str) -> String {
        let staged = capture::key_columns("s.", self.identity.len());
        // The column stands first, because its collation counts.
        let mut taken = same(&self.identity_of("new"), &staged);
        if event == "update" {
            // By this update; or before it, when it comes from a trigger of the application on the
            // statement that did it.
            let stayed = same(&self.identity_of("new"), &self.identity_of("old"));
            let replaced = same(&self.identity_of("old"), &staged);
            let old = self.row("old");
            taken = format!(
                "({taken} and not ({stayed}))\n          or ({replaced} and s.old is not {old})"
            );
        }
        fill(
            include_str!("../sql/event_settle.sql"),
            &[
                ("id", &self.id.0.to_string()),
                ("feed", &self.feed()),
                ("table", &self.table.sql()),
                ("taken", &taken),
                ("same", &same(&self.identity_of("changefeed_row"), &staged)),
            ],
        )
    }

    fn write(&self, event: &str) -> String {
        let (op, old, new) = match event {
            "insert" => ("I", Row::Missing, Row::Itself),
            "update" => ("U", Row::Itself, Row::Itself),
            _ => ("D", Row::Itself, Row::Missing),
        };
        let row = |side: Row<'_>, alias: &str| match side {
            Row::Missing => "null".to_owned(),
            Row::Itself | Row::Called(_) => self.row(alias),
        };
        let alias = if new == Row::Missing { "old" } else { "new" };
        let mut wanted = Vec::new();
        if event == "update" {
            wanted.push(format!("({})", self.changed()));
        }
        if let Some(condition) = &self.condition {
            wanted.push(condition.sql(old, new));
        }
        let template = if wanted.is_empty() {
            include_str!("../sql/event_write.sql")
        } else {
            include_str!("../sql/event_write_if.sql")
        };
        fill(
            template,
            &[
                ("id", &self.id.0.to_string()),
                ("op", op),
                ("old", &row(old, "old")),
                ("new", &row(new, "new")),
                ("order_key", &self.order_key(alias)),
                ("feed", &self.feed()),
                ("shard", &self.shard(alias)),
                ("wanted", &wanted.join("\n     and ")),
            ],
        )
    }

    /// Whether an update changed a listened column. The column's own collation may take different
    /// texts for the same, and 1 and 1.0 are equal.
    fn changed(&self) -> String {
        let changes: Vec<String> = self
            .listened
            .iter()
            .map(|column| {
                let column = quote::identifier(column);
                format!(
                    "old.{column} is not new.{column} collate binary \
                     or typeof(old.{column}) <> typeof(new.{column})"
                )
            })
            .collect();
        joined(&changes, " or ")
    }

    fn feed(&self) -> String {
        self.binding
            .as_ref()
            .map_or_else(|| "null".to_owned(), |binding| binding.feed.to_string())
    }

    fn shard(&self, alias: &str) -> String {
        self.binding.as_ref().map_or_else(
            || "null".to_owned(),
            |binding| capture::row_shard(alias, binding.shard_by.as_deref(), binding.shards),
        )
    }

    /// The values that decide what is delivered in order, as text.
    fn order_key(&self, alias: &str) -> String {
        let Some(order) = &self.order else {
            return "null".to_owned();
        };
        let values: Vec<String> = order.iter().map(|c| event_row::value(alias, c)).collect();
        format!(
            "printf('{}', {})",
            vec!["%s"; order.len()].join(","),
            values.join(", ")
        )
    }

    /// The row behind an alias as a JSON object.
    fn row(&self, alias: &str) -> String {
        event_row::object(alias, &self.payload)
    }
}

/// How to make events of rows that are there already.
pub(crate) struct Existing {
    pub(crate) identity: Vec<String>,
    pub(crate) table: String,
    pub(crate) new: String,
    pub(crate) order_key: String,
    pub(crate) shard: String,
    pub(crate) wanted: String,
}

impl Binding {
    fn find(
        connection: &Connection,
        name: &FeedName,
        shard_by: Option<&str>,
        table: &Table,
    ) -> Result<Binding> {
        let feed = feeds::list(connection)?
            .into_iter()
            .find(|feed| feed.name == *name)
            .ok_or_else(|| {
                Error::not_found(format!("there is no feed '{name}'"))
                    .advise("`changefeed feed list` shows the feeds")
            })?;
        let shards = i16::try_from(feed.shards.len()).unwrap_or(i16::MAX);
        if shards > 1 && shard_by.is_none() {
            return Err(Error::invalid(format!(
                "feed '{name}' has {shards} shards, so a column has to decide the shard"
            ))
            .advise("add --shard-by COLUMN"));
        }
        Ok(Binding {
            feed: feed.id,
            shard_by: shard_by
                .map(|c| table.column(c).map(str::to_owned))
                .transpose()?,
            shards,
        })
    }
}

/// Removes the database triggers of an event trigger, wherever its table is by now.
pub(crate) fn remove(connection: &Connection, id: TriggerId) -> Result<()> {
    for event in TRIGGERS {
        let name = quote::identifier(&trigger_name(id, event));
        connection
            .execute_batch(&format!("drop trigger if exists {name}"))
            .explained()?;
    }
    Ok(())
}

/// Removes the database triggers of all event triggers.
pub(crate) fn remove_all(connection: &Connection) -> Result<()> {
    let names: Vec<String> = connection
        .prepare("select name from sqlite_master where type = 'trigger'")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .explained()?;
    let ids = names.iter().filter_map(|name| {
        let (id, event) = name.strip_prefix("changefeed_event_")?.split_once('_')?;
        TRIGGERS.contains(&event).then(|| id.parse().ok()).flatten()
    });
    for id in ids {
        remove(connection, TriggerId(id))?;
    }
    Ok(())
}

/// `a1 is b1 and a2 is b2`.
fn same(left: &[String], right: &[String]) -> String {
    capture::pairs(left, "is", right, " and ")
}

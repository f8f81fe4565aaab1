//! The database triggers that write events.
//!
//! Like those of feeds (`capture.rs`) they run in whatever connection writes to the table, so they
//! use built-in functions only and rely on no conflict clause of their own. They write whole rows,
//! so the rows that a REPLACE may remove are noted with all their values (`staging.rs`).

use changefeed_core::{
    Error, FeedId, FeedName, Kind, OrderBy, Result, ShardRange, TriggerDefinition, TriggerId,
    Updates,
};
use rusqlite::Connection;

use crate::condition::{Condition, Row};
use crate::error::Explain;
use crate::event_row::joined;
use crate::quote::{self, fill};
use crate::source::{MAX_KEY, Table};
use crate::staging::{self, Staging, Trigger};
use crate::unique::{Primary, Uniques};
use crate::{arrange, capture, event_row, feeds};

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
pub(crate) const MAX_SQL: usize = 900_000;

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
    /// How a row called `changefeed_row` may be in the way of `new`.
    conflicts: Vec<String>,
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
        let mut conflicts = Uniques::of(connection, &table, Primary::Included)?.conflicts;
        conflicts.extend(staging::by_place(&table));
        if table.identity().len() > MAX_KEY {
            tracing::warn!(
                table = table.name,
                "rows that a REPLACE removes from a table with so long a key are not captured"
            );
        }
        Ok(Plan {
            id,
            definition: definition.clone(),
            table,
            payload,
            listened,
            condition,
            order,
            binding,
            conflicts,
        })
    }

    /// The database triggers as they should be now.
    pub(crate) fn triggers(&self) -> Result<Vec<Trigger>> {
        let capture = &self.definition.capture;
        let payload = ["old", "order_key", "shard", "wanted"];
        let owner = staging::EVENTS + i64::from(self.id.0);
        let tell = fill(
            include_str!("sql/event_tell.sql"),
            &[
                ("id", &self.id.0.to_string()),
                ("owner", &owner.to_string()),
                ("feed", &self.feed()),
            ],
        )?;
        let staging = Staging {
            owner,
            table: &self.table,
            conflicts: match capture.delete {
                true => self.conflicts.clone(),
                false => Vec::new(),
            },
            payload: payload.map(str::to_owned).to_vec(),
            values: &|alias| {
                let wanted = match &self.condition {
                    Some(condition) => condition.sql(Row::Called(alias), Row::Missing),
                    None => "1".to_owned(),
                };
                Ok(vec![
                    self.row(alias)?,
                    self.order_key(alias)?,
                    self.shard(alias)?,
                    wanted,
                ])
            },
            telling: 1,
            tell: &|_| Ok(tell.clone()),
            name: &|event| trigger_name(self.id, event),
        };
        let mut all = staging.before()?;
        for (event, wanted) in [
            ("insert", capture.insert),
            ("update", capture.update != Updates::Ignored),
            ("delete", capture.delete),
        ] {
            if wanted {
                all.push(Trigger {
                    name: trigger_name(self.id, event),
                    sql: self.after(event, &staging.untold()?, &self.write(event)?)?,
                });
            }
        }
        all.extend(staging.after()?);
        Ok(all)
    }

    /// Creates the database triggers in place of any that are there.
    pub(crate) fn install(&self, connection: &Connection) -> Result<()> {
        remove(connection, self.id)?;
        if self.binding.as_ref().is_some_and(|b| b.shards > 1) {
            capture::check_encoding(connection)?;
        }
        for trigger in self.triggers()? {
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
        arrange::arrange(connection, &self.table.name)?;
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
    pub(crate) fn existing(&self) -> Result<Existing> {
        let wanted = match &self.condition {
            Some(condition) => condition.sql(Row::Missing, Row::Called("changefeed_row")),
            None => "1".to_owned(),
        };
        Ok(Existing {
            identity: self.identity_of("changefeed_row"),
            table: self.table.sql(),
            new: self.row("changefeed_row")?,
            order_key: self.order_key("changefeed_row")?,
            shard: self.shard("changefeed_row")?,
            wanted,
        })
    }

    /// The order key of an event that has no row.
    pub(crate) fn keyless_order(&self) -> Option<&'static str> {
        self.order.as_ref().map(|_| "manual")
    }

    /// Whether rows that a REPLACE removes are not all seen.
    pub(crate) fn misses_replaced(&self) -> bool {
        self.definition.capture.delete && self.table.identity().len() > MAX_KEY
    }

    fn identity_of(&self, alias: &str) -> Vec<String> {
        self.table
            .identity()
            .iter()
            .map(|c| format!("{alias}.{}", quote::identifier(c)))
            .collect()
    }

    fn after(&self, event: &str, untold: &str, body: &str) -> Result<String> {
        let untold = if event == "delete" { untold } else { "" };
        fill(
            include_str!("sql/event_trigger.sql"),
            &[
                ("trigger", &quote::identifier(&trigger_name(self.id, event))),
                ("event", event),
                ("table", &self.table.sql()),
                ("untold", untold),
                ("body", body),
            ],
        )
    }

    fn write(&self, event: &str) -> Result<String> {
        let (op, old, new) = match event {
            "insert" => ("I", Row::Missing, Row::Itself),
            "update" => ("U", Row::Itself, Row::Itself),
            _ => ("D", Row::Itself, Row::Missing),
        };
        let row = |side: Row<'_>, alias: &str| match side {
            Row::Missing => Ok("null".to_owned()),
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
            include_str!("sql/event_write.sql")
        } else {
            include_str!("sql/event_write_if.sql")
        };
        fill(
            template,
            &[
                ("id", &self.id.0.to_string()),
                ("op", op),
                ("old", &row(old, "old")?),
                ("new", &row(new, "new")?),
                ("order_key", &self.order_key(alias)?),
                ("feed", &self.feed()),
                ("shard", &self.shard(alias)?),
                ("wanted", &wanted.join("\n     and ")),
                ("wait_ms", &self.definition.delivery.wait_ms().to_string()),
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

    fn shard(&self, alias: &str) -> Result<String> {
        self.binding.as_ref().map_or_else(
            || Ok("null".to_owned()),
            |binding| {
                let shards = ShardRange {
                    first: 0,
                    count: binding.shards,
                };
                capture::row_shard(alias, binding.shard_by.as_deref(), shards)
            },
        )
    }

    /// The values that decide what is delivered in order, as text.
    fn order_key(&self, alias: &str) -> Result<String> {
        let Some(order) = &self.order else {
            return Ok("null".to_owned());
        };
        let values: Result<Vec<String>> =
            order.iter().map(|c| event_row::value(alias, c)).collect();
        Ok(format!(
            "printf('{}', {})",
            vec!["%s"; order.len()].join(","),
            values?.join(", ")
        ))
    }

    /// The row behind an alias as a JSON object.
    fn row(&self, alias: &str) -> Result<String> {
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

//! The database triggers that write events.
//!
//! One trigger per event trigger, in the schema of the table, for whole statements. Which old row
//! belongs to which new one is told by an identity column, which nobody can change, or else by the
//! primary key.

use changefeed_core::{
    Error, FeedId, OrderBy, Result, ShardRange, TriggerDefinition, TriggerId, Updates, fill,
};

use crate::capture;
use crate::condition::{Condition, Row};
use crate::source::{Column, Table};
use crate::{json, quote};

/// The feed that events enter, and how.
#[derive(Debug, Clone)]
pub(crate) struct Binding {
    pub(crate) feed: FeedId,
    pub(crate) shards: i16,
}

/// What else has to be known of a table and its feed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Around {
    pub(crate) binding: Option<Binding>,
    /// The table's identity column, if no two rows can have the same.
    pub(crate) identity: Option<Column>,
}

/// An event trigger, with every name of its definition found in its table.
pub(crate) struct Plan<'a> {
    pub(crate) id: TriggerId,
    pub(crate) table: &'a Table,
    pub(crate) definition: &'a TriggerDefinition,
    payload: Vec<Column>,
    listened: Vec<Column>,
    /// What tells which row is which, and whether that can change.
    identity: Vec<Column>,
    can_move: bool,
    pub(crate) condition: Option<Condition>,
    order: Option<Vec<Column>>,
    pub(crate) binding: Option<Binding>,
}

/// The name of the database trigger; `uninstall` knows it by its beginning.
pub(crate) fn trigger_name(id: TriggerId) -> String {
    format!("changefeed_event_{}", id.0)
}

impl<'a> Plan<'a> {
    /// Finds what a definition names, or says what is missing.
    pub(crate) fn of(
        id: TriggerId,
        definition: &'a TriggerDefinition,
        table: &'a Table,
        around: Around,
    ) -> Result<Self> {
        capture::check_kind(table)?;
        let capture = &definition.capture;
        let find = |names: &[String]| -> Result<Vec<Column>> {
            let mut found: Vec<Column> = Vec::new();
            for name in names {
                let column = table.column(name)?;
                // Named twice is meant once: JSON must not have a name twice.
                if !found.contains(column) {
                    found.push(column.clone());
                }
            }
            found.sort_by_key(|c| c.place);
            Ok(found)
        };
        let payload = match &capture.payload {
            Some(names) => find(names)?,
            None => table.columns.clone(),
        };
        let listened = match &capture.update {
            Updates::Of(names) => find(names)?,
            // A version of the row changes even when nothing else does.
            Updates::Any => {
                let columns = table.columns.iter();
                columns
                    .filter(|c| !matches!(c.base_type.as_str(), "timestamp" | "rowversion"))
                    .cloned()
                    .collect()
            }
            Updates::Ignored => Vec::new(),
        };
        let order = match &capture.order_by {
            None => None,
            Some(OrderBy::Column(name)) => Some(vec![table.column(name)?.clone()]),
            Some(OrderBy::Key) if table.key.is_empty() => {
                return Err(Error::invalid(format!(
                    "table {} has no primary key to order its events by",
                    table.name
                ))
                .advise("name a column instead"));
            }
            Some(OrderBy::Key) => Some(table.key.clone()),
        };
        if let Some(column) = capture.feed.as_ref().and_then(|f| f.shard_by.as_deref()) {
            table.column(column)?;
        }
        let condition = capture
            .condition
            .as_deref()
            .map(|text| Condition::parse(text, table))
            .transpose()?;
        let (identity, can_move) = match &around.identity {
            Some(column) => (vec![column.clone()], false),
            None => (table.key.clone(), true),
        };
        if capture.update != Updates::Ignored && identity.is_empty() {
            return Err(Error::invalid(format!(
                "table {} has no primary key, so an updated row could not be told from another",
                table.name
            ))
            .advise(
                "add a primary key or a unique identity column to it, or capture only inserts and \
                 deletes",
            ));
        }
        let plan = Plan {
            id,
            table,
            definition,
            payload,
            listened,
            identity,
            can_move,
            condition,
            order,
            binding: around.binding,
        };
        plan.check_types()?;
        if plan.captures() {
            capture::check_owner(table)?;
        }
        Ok(plan)
    }

    /// A trigger cannot see columns of the oldest types, and we do not know how to write those of
    /// somebody's own program. That must show now, not in the application's next write.
    fn check_types(&self) -> Result<()> {
        if !self.captures() {
            return Ok(());
        }
        let used = self
            .payload
            .iter()
            .chain(&self.listened)
            .chain(self.order.iter().flatten());
        capture::check_types(
            self.table,
            used,
            "name the columns that events carry (--payload) and those whose updates count (--update COLUMNS)",
        )
    }

    /// Whether anything but a person makes events.
    pub(crate) fn captures(&self) -> bool {
        let capture = &self.definition.capture;
        capture.insert || capture.delete || capture.update != Updates::Ignored
    }

    /// The database trigger as SQL; none if only people make events.
    pub(crate) fn trigger(&self) -> Result<Option<String>> {
        if !self.captures() {
            return Ok(None);
        }
        let capture = &self.definition.capture;
        let mut operations = Vec::new();
        let mut statements = Vec::new();
        if capture.insert {
            operations.push("insert");
            statements.push(self.rows("I")?);
        }
        if capture.update != Updates::Ignored {
            operations.push("update");
            statements.push(self.update()?);
        }
        if capture.delete {
            operations.push("delete");
            statements.push(self.rows("D")?);
        }
        let (declare, publish) = match &self.binding {
            Some(binding) => (
                "declare @published table (change_id bigint not null primary key, \
                 shard smallint not null);",
                format!(
                    "insert into changefeed.change (feed_id, shard, change_id) \
                     select {}, p.shard, p.change_id from @published p;",
                    binding.feed
                ),
            ),
            None => ("", String::new()),
        };
        let schema = self.table.name.schema.as_deref().unwrap_or("dbo");
        let wait = self.definition.delivery.wait_ms();
        Ok(Some(fill(
            include_str!("sql/event_capture.sql"),
            &[
                ("schema", &quote::identifier(schema)),
                ("trigger", &quote::identifier(&trigger_name(self.id))),
                ("table", &self.table.sql),
                ("operations", &operations.join(", ")),
                (
                    "replication",
                    if capture.not_for_replication {
                        " not for replication"
                    } else {
                        ""
                    },
                ),
                ("wait_seconds", &(wait / 1000).to_string()),
                ("wait_milliseconds", &(wait % 1000).to_string()),
                ("declare", declare),
                ("statements", &statements.concat()),
                ("publish", &publish),
            ],
        )?))
    }

    fn rows(&self, op: &str) -> Result<String> {
        let (image, rows, alias, when) = match op {
            "I" => ("new", "inserted", "i", "not exists (select 1 from deleted)"),
            _ => ("old", "deleted", "d", "not exists (select 1 from inserted)"),
        };
        let (old, new) = match op {
            "I" => (Row::Missing, Row::Called("i")),
            _ => (Row::Called("d"), Row::Missing),
        };
        let wanted = match &self.condition {
            Some(condition) => format!("where {}", condition.sql(old, new)),
            None => String::new(),
        };
        fill(
            include_str!("sql/event_capture_rows.sql"),
            &[
                ("when", when),
                ("image", image),
                ("output", self.output()),
                ("id", &self.id.0.to_string()),
                ("op", op),
                ("row", &self.row(alias)),
                ("order_key", &self.order_key(alias)),
                ("feed", &self.feed()),
                ("shard", &self.shard(alias)?),
                ("rows", rows),
                ("alias", alias),
                ("wanted", &wanted),
            ],
        )
    }

    fn update(&self) -> Result<String> {
        let wanted = match &self.condition {
            Some(condition) => format!(
                "\n          and {}",
                condition.sql(Row::Called("d"), Row::Called("i"))
            ),
            None => String::new(),
        };
        let same = |a: &str, b: &str| self.same(a, b);
        let id = self.id.0.to_string();
        let (old, new) = (self.row("d"), self.row("i"));
        let (order_key, feed, shard) = (self.order_key("i"), self.feed(), self.shard("i")?);
        let (old_listened, new_listened) = (self.listened("d"), self.listened("i"));
        let common = [
            ("output", self.output()),
            ("id", &id),
            ("old", &old),
            ("new", &new),
            ("order_key", &order_key),
            ("feed", &feed),
            ("shard", &shard),
            ("old_listened", &old_listened),
            ("new_listened", &new_listened),
            ("wanted", &wanted),
        ];
        let (same_key, same_old, same_new) = (same("d", "i"), same("k", "d"), same("k", "i"));
        let with = |more: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            let all = common.iter().chain(more);
            all.map(|(name, value)| (*name, (*value).to_owned()))
                .collect()
        };
        let filled = |template: &str, values: &[(&'static str, String)]| {
            let values: Vec<(&str, &str)> = values.iter().map(|(n, v)| (*n, v.as_str())).collect();
            fill(template, &values)
        };
        let (count_moved, moved) = if self.can_move {
            (
                format!(
                    "declare @moved int = (select count(*) from inserted i \
                     where not exists (select 1 from deleted k where {same_new}));"
                ),
                filled(
                    include_str!("sql/event_capture_moved.sql").trim_end(),
                    &with(&[("same_old_key", &same_old), ("same_new_key", &same_new)]),
                )?,
            )
        } else {
            (String::new(), String::new())
        };
        filled(
            include_str!("sql/event_capture_update.sql"),
            &with(&[
                ("same_key", &same_key),
                ("count_moved", &count_moved),
                ("moved", &moved),
            ]),
        )
    }

    /// How events of existing rows are made: row, order key, shard, and whether it is wanted.
    pub(crate) fn existing(&self, alias: &str) -> Result<Existing> {
        let wanted = match &self.condition {
            Some(condition) => condition.sql(Row::Missing, Row::Called(alias)),
            None => "1 = 1".to_owned(),
        };
        Ok(Existing {
            row: self.row(alias),
            order_key: self.order_key(alias),
            shard: self.shard(alias)?,
            wanted,
        })
    }

    /// The feed that events also enter.
    pub(crate) fn feed(&self) -> String {
        match &self.binding {
            Some(binding) => binding.feed.to_string(),
            None => "null".to_owned(),
        }
    }

    fn output(&self) -> &'static str {
        match self.binding {
            Some(_) => {
                "output inserted.change_id, inserted.shard into @published (change_id, shard)"
            }
            None => "",
        }
    }

    fn same(&self, a: &str, b: &str) -> String {
        let parts: Vec<String> = self
            .identity
            .iter()
            .map(|c| {
                let name = quote::identifier(&c.name);
                format!("{a}.{name} = {b}.{name}")
            })
            .collect();
        parts.join(" and ")
    }

    /// The values whose change makes an event, so that EXCEPT compares them exactly: NULL is as
    /// good as any value, and 'a' is neither 'A' nor 'a '. Texts of a code page are compared by their
    /// bytes: another collation would have another code page, in which many letters are the same.
    fn listened(&self, alias: &str) -> String {
        let values: Vec<String> = self
            .listened
            .iter()
            .map(|c| {
                let value = format!("{alias}.{}", quote::identifier(&c.name));
                let exactly = |text: String| {
                    format!("{text} collate Latin1_General_BIN2, datalength({text})")
                };
                match c.base_type.as_str() {
                    "char" | "varchar" => {
                        format!("convert(varbinary(max), {value}), datalength({value})")
                    }
                    // Bytes of zero at the end may count for nothing in a comparison.
                    "varbinary" => format!("{value}, datalength({value})"),
                    "nchar" | "nvarchar" | "sysname" => exactly(value),
                    "xml" | "json" => exactly(format!("convert(nvarchar(max), {value})")),
                    // By its own type and its bytes: a text of it has fewer digits, and '1' would be 1.
                    "sql_variant" => format!(
                        "convert(nvarchar(128), sql_variant_property({value}, 'BaseType')), \
                         convert(nvarchar(128), sql_variant_property({value}, 'Collation')), \
                         convert(varbinary(8000), {value}), datalength({value})"
                    ),
                    "geometry" | "geography" | "hierarchyid" => {
                        format!("convert(varbinary(max), {value})")
                    }
                    _ => value,
                }
            })
            .collect();
        values.join(", ")
    }

    /// What is equal to the table is equal here, as far as case and blanks at the end go: events
    /// of one key wait for each other even if it is spelt in two ways.
    fn order_key(&self, alias: &str) -> String {
        let Some(order) = &self.order else {
            return "null".to_owned();
        };
        let parts: Vec<String> = order
            .iter()
            .map(|c| {
                format!(
                    "isnull(rtrim({}), nchar(30)), nchar(31)",
                    json::text(c, alias)
                )
            })
            .collect();
        format!(
            "convert(bigint, substring(hashbytes('SHA2_256', upper(concat({}))), 1, 8))",
            parts.join(", ")
        )
    }

    fn shard(&self, alias: &str) -> Result<String> {
        let Some(binding) = &self.binding else {
            return Ok("null".to_owned());
        };
        let column = self.definition.capture.feed.as_ref();
        let column = column.and_then(|f| f.shard_by.as_deref());
        let shards = ShardRange {
            first: 0,
            count: binding.shards,
        };
        self.table.shard_expression(alias, column, shards)
    }

    fn row(&self, alias: &str) -> String {
        json::object(&self.payload, alias)
    }
}

/// How events of existing rows are made, as SQL.
pub(crate) struct Existing {
    pub(crate) row: String,
    pub(crate) order_key: String,
    pub(crate) shard: String,
    pub(crate) wanted: String,
}

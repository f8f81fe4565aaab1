//! The triggers of a watched table.

use changefeed_core::{Error, Kind, Result};
use tokio_postgres::GenericClient;

use super::{Tracked, owners_work};
use crate::error::db;
use crate::patience::trigger_right;
use crate::quote;
use crate::row::Cells;
use crate::template::{dollar_quote, fill};
use crate::watch_key::{KeyColumn, join};

/// A trigger, and the function that it calls.
struct Trigger {
    name: String,
    function: String,
    /// The statement that makes the function, and the function's body in it.
    function_sql: String,
    body: String,
    create: &'static str,
}

impl Tracked {
    pub(super) async fn ensure_trigger(&self, client: &impl GenericClient) -> Result<()> {
        for trigger in [self.row_trigger()?, self.truncate_trigger()?] {
            self.ensure_one(client, &trigger).await?;
        }
        Ok(())
    }

    async fn ensure_one(&self, client: &impl GenericClient, trigger: &Trigger) -> Result<()> {
        // Only if it differs: one must own a function to replace it.
        let current: Option<String> = client
            .query_opt(
                "select prosrc from pg_proc where pronamespace = 'changefeed'::regnamespace \
                 and proname = $1",
                &[&trigger.function],
            )
            .await
            .map_err(db)?
            .map(|row| row.take(0))
            .transpose()?;
        if current.as_ref() != Some(&trigger.body) {
            let made = client.batch_execute(&trigger.function_sql).await;
            made.map_err(|e| {
                let what = format!(
                    "what the trigger on {} notes has to change",
                    self.table.name
                );
                owners_work(db(e), &what)
            })?;
        }
        if !self.has(client, trigger).await? {
            if current.is_some() {
                tracing::warn!(
                    table = %self.table.name, trigger = trigger.name,
                    "a trigger of a watched table was gone, and is made again: what was changed meanwhile \
                     is not known; `changefeed watch reset --from beginning` hands over all rows"
                );
            }
            self.create(client, trigger).await?;
            // It was made by the table's name, which may be another table's by now.
            if !self.has(client, trigger).await? {
                return Err(Error::new(
                    Kind::Busy,
                    format!("table {} was renamed at this moment", self.table.name),
                )
                .advise("try again; nothing was changed"));
            }
        }
        Ok(())
    }

    async fn has(&self, client: &impl GenericClient, trigger: &Trigger) -> Result<bool> {
        let calls: Option<bool> = client
            .query_opt(
                "select tgfoid = to_regproc('changefeed.' || $3) from pg_trigger \
                 where tgrelid = $1 and tgname = $2",
                &[&self.table.oid, &trigger.name, &trigger.function],
            )
            .await
            .map_err(db)?
            .map(|row| row.take(0))
            .transpose()?;
        if calls == Some(false) {
            return Err(Error::invalid(format!(
                "{} has a trigger of somebody else by the name of ours, {}",
                self.table.name, trigger.name
            ))
            .advise("drop it, or give it another name"));
        }
        Ok(calls.is_some())
    }

    async fn create(&self, client: &impl GenericClient, trigger: &Trigger) -> Result<()> {
        let create = fill(
            trigger.create,
            &[
                ("trigger", &quote::identifier(&trigger.name)),
                ("table", &self.table.sql),
                ("function", &trigger.function),
            ],
        )?;
        client
            .batch_execute(&create)
            .await
            .map_err(|e| trigger_right(db(e), &self.table))
    }

    fn truncate_trigger(&self) -> Result<Trigger> {
        let (log, function) = (self.log(), format!("truncate_{}", self.table_id));
        Trigger::new(
            format!("{}_truncate", self.trigger()),
            function.clone(),
            include_str!("../sql/watch_truncate.sql"),
            &[
                ("log", log),
                ("function", function),
                ("source", self.table.oid.to_string()),
                ("places", self.places_sql()),
                (
                    "only",
                    match self.table.relkind.as_str() {
                        "r" => "only".to_owned(),
                        _ => String::new(),
                    },
                ),
            ],
            include_str!("../sql/watch_trigger_truncate.sql"),
        )
    }

    /// The numbers of the key columns, as SQL: they stay when columns are renamed.
    fn places_sql(&self) -> String {
        let places = join(&self.key, ",", |_, c| c.place.to_string());
        format!("'{{{places}}}'::pg_catalog.int2[]")
    }

    fn row_trigger(&self) -> Result<Trigger> {
        let each = |make: &dyn Fn(usize, &KeyColumn) -> String| join(&self.key, " ", make);
        let numbered = |alias: &str| join(&self.key, ", ", |n, _| format!("{alias}_{n}"));
        let take = |alias: &str| each(&|n, c| format!("{alias}_{n} := {};", c.ours(alias)));
        let altered = |alias: &str| {
            let known = self.key.iter().map(|c| {
                format!(
                    "pg_catalog.pg_typeof({alias}.{})::pg_catalog.oid \
                     operator(pg_catalog.<>) {}::pg_catalog.oid",
                    c.sql(),
                    c.type_oid
                )
            });
            known.collect::<Vec<_>>().join(" or ")
        };
        let values = [
            (
                "variables",
                each(&|n, c| format!("old_{n} {0}; new_{n} {0};", c.type_sql)),
            ),
            ("old_altered", altered("old")),
            ("new_altered", altered("new")),
            ("take_old", take("old")),
            ("take_new", take("new")),
            (
                "forget",
                each(&|n, _| format!("old_{n} := null; new_{n} := null;")),
            ),
            ("keys", self.keys("")),
            ("old", numbered("old")),
            ("new", numbered("new")),
            ("log", self.log()),
            ("function", self.function()),
            ("source", self.table.oid.to_string()),
            ("places", self.places_sql()),
            ("note_columns", self.columns.note(&self.table)),
            ("note_before", self.before.note().to_owned()),
            ("no_row", self.before.no_row().to_owned()),
        ];
        Trigger::new(
            self.trigger(),
            self.function(),
            include_str!("../sql/watch_trigger.sql"),
            &values,
            include_str!("../sql/watch_trigger_rows.sql"),
        )
    }
}

impl Trigger {
    fn new(
        name: String,
        function: String,
        template: &str,
        values: &[(&str, String)],
        create: &'static str,
    ) -> Result<Trigger> {
        let texts: Vec<&str> = values.iter().map(|(_, v)| v.as_str()).collect();
        let quote = dollar_quote(&texts);
        let mut all: Vec<(&str, &str)> = values.iter().map(|(k, v)| (*k, v.as_str())).collect();
        all.push(("quote", &quote));
        let function_sql = fill(template, &all)?;
        Ok(Trigger {
            name,
            function,
            body: (function_sql.split(&quote).nth(1).unwrap_or_default()).to_owned(),
            function_sql,
            create,
        })
    }
}

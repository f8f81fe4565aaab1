//! Tables that were altered after their event trigger was made: following them, and saying what
//! cannot be followed or captured at all.

use std::collections::{BTreeMap, BTreeSet};

use changefeed_core::{
    EventTrigger, Finding, Kind, OrderBy, Result, Severity, TriggerDefinition, Updates, words,
};
use tokio_postgres::{GenericClient, Row};

use crate::error::db;
use crate::event_capture::{self, Plan, Shape};
use crate::patience::Patience;
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;
use crate::triggers::trigger;

/// An event trigger beside its table as it is now.
struct Look {
    trigger: EventTrigger,
    /// None if the table is gone.
    table: Option<Table>,
    /// Whether the table was called something else.
    renamed: bool,
    /// Whether it was restored from a dump, so that its columns have other numbers.
    restored: bool,
    /// The columns when the functions were written.
    known: Vec<String>,
    shape: Shape,
    plan: Plan,
    installed: BTreeMap<String, (bool, i64)>,
}

impl Look {
    async fn at(client: &impl GenericClient, row: &Row) -> Result<Option<Self>> {
        let trigger = trigger(row)?;
        let Some(table) = Table::load(client, row.take(5)?).await? else {
            return Ok(Some(Look {
                plan: Plan::none(),
                shape: Shape::none(),
                trigger,
                table: None,
                renamed: false,
                restored: false,
                known: Vec::new(),
                installed: BTreeMap::new(),
            }));
        };
        // Dropped between the two looks.
        let Some(shape) = Shape::load(client, table.oid).await? else {
            return Ok(None);
        };
        let installed = client
            .query(
                include_str!("sql/event_installed.sql"),
                &[
                    &table.oid,
                    &format!("!changefeed\\_event\\_{}\\_%", trigger.id.0),
                ],
            )
            .await
            .map_err(db)?;
        Ok(Some(Look {
            plan: Plan::new(&trigger.definition, &shape),
            known: row.take(6)?,
            renamed: row.take(7)?,
            restored: row.take(8)?,
            installed: installed
                .iter()
                .map(|r| Ok((r.take(0)?, (r.take(1)?, r.take(2)?))))
                .collect::<Result<_>>()?,
            trigger,
            table: Some(table),
            shape,
        }))
    }

    fn columns_changed(&self) -> bool {
        let known: BTreeSet<&String> = self.known.iter().collect();
        known != self.shape.signatures.iter().collect()
    }

    fn triggers_differ(&self) -> bool {
        let wanted: BTreeSet<String> = self.plan.triggers(self.trigger.id).into_iter().collect();
        let everywhere = 1 + i64::try_from(self.shape.partitions.len()).unwrap_or(0);
        wanted != self.installed.keys().cloned().collect()
            || self
                .installed
                .iter()
                .any(|(name, (_, tables))| name.ends_with("_truncate") && *tables < everywhere)
    }

    fn disabled(&self) -> Vec<&str> {
        self.installed
            .iter()
            .filter(|(_, (fires, _))| !fires)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    fn finding(
        &self,
        severity: Severity,
        message: String,
        advice: impl Into<Option<String>>,
    ) -> Finding {
        Finding {
            severity,
            subject: format!("trigger {}", self.trigger.definition.name),
            message,
            advice: advice.into(),
        }
    }

    fn replace_advice(&self) -> String {
        format!(
            "look at it, and run `changefeed trigger create {} … --replace`",
            self.trigger.definition.name
        )
    }

    /// Columns that the definition names and the table has no more.
    fn missing_columns(&self) -> Vec<String> {
        let Some(table) = &self.table else {
            return Vec::new();
        };
        let mut definition = self.trigger.definition.clone();
        let mut missing = Vec::new();
        each_column(&mut definition, |name| {
            if table.column(name).is_err() {
                missing.push(name.clone());
            }
        });
        missing.sort();
        missing.dedup();
        missing
    }
}

/// Visits every column that a definition names.
fn each_column(definition: &mut TriggerDefinition, mut visit: impl FnMut(&mut String)) {
    let capture = &mut definition.capture;
    if let Updates::Of(columns) = &mut capture.update {
        columns.iter_mut().for_each(&mut visit);
    }
    capture
        .payload
        .iter_mut()
        .flatten()
        .chain(capture.feed.iter_mut().filter_map(|f| f.shard_by.as_mut()))
        .for_each(&mut visit);
    if let Some(OrderBy::Column(column)) = &mut capture.order_by {
        visit(column);
    }
}

impl Session {
    pub(crate) async fn follow_altered_tables(&mut self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for look in self.looks().await? {
            let altered = look.columns_changed() || look.triggers_differ() || look.restored;
            if look.table.is_none() || !(altered || look.renamed) {
                continue;
            }
            match self.follow(&look).await {
                Ok(true) => findings.push(look.finding(
                    Severity::Ok,
                    words::CAPTURE_RECREATED.to_owned(),
                    None,
                )),
                Ok(false) => {}
                Err(error) => findings.push(
                    look.finding(
                        Severity::Warning,
                        words::capture_not_recreated(&error),
                        error
                            .advice()
                            .map_or_else(|| look.replace_advice(), str::to_owned),
                    ),
                ),
            }
        }
        Ok(findings)
    }

    /// Creates functions and triggers anew for the table as it is. False if another instance does so.
    async fn follow(&mut self, look: &Look) -> Result<bool> {
        let Some(table) = &look.table else {
            return Ok(false);
        };
        let id = look.trigger.id;
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        let Some(row) = transaction
            .query_opt(
                "select columns::text from changefeed.event_trigger \
                 where trigger_id = $1 and dropped_at is null for update skip locked",
                &[&id.0],
            )
            .await
            .map_err(db)?
        else {
            return Ok(false);
        };
        let places: BTreeMap<String, i16> = serde_json::from_str(row.take(0)?).unwrap_or_default();
        let mut definition = look.trigger.definition.clone();
        each_column(&mut definition, |name| {
            let now = places
                .get(name.as_str())
                .filter(|_| !look.restored)
                .and_then(|place| table.columns.iter().find(|c| c.place == *place));
            if let Some(column) = now {
                name.clone_from(&column.name);
            }
        });
        crate::triggers::rewrite(&*transaction, id, &definition, table).await?;
        if look.triggers_differ() {
            event_capture::uninstall(&*transaction, id, Patience::Moment).await?;
            event_capture::install(&*transaction, id, &definition, table, Patience::Moment).await?;
        } else {
            event_capture::write_functions(
                &*transaction,
                id,
                &definition,
                table,
                &look.shape,
                &look.plan,
            )
            .await?;
        }
        transaction.commit().await.map_err(db)?;
        Ok(true)
    }

    async fn looks(&self) -> Result<Vec<Look>> {
        let client = &**self;
        let rows = client
            .query(include_str!("sql/event_triggers.sql"), &[])
            .await
            .map_err(db)?;
        let mut looks = Vec::new();
        for row in &rows {
            match Look::at(&**client, row).await {
                Ok(look) => looks.extend(look),
                // One that cannot be looked at must not hide the others.
                Err(error) if error.kind() != Kind::Unavailable => {
                    tracing::warn!(trigger = row.take::<i32>(0)?, %error, "cannot be looked at");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(looks)
    }

    pub(crate) async fn capture_findings(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for look in self.looks().await? {
            let before = findings.len();
            describe(&look, &mut findings);
            if let Some(gap) = self.newest_gap(&look).await? {
                findings.push(gap);
            }
            if findings.len() == before {
                findings.push(look.finding(
                    Severity::Ok,
                    format!("captures {}", look.trigger.definition.table),
                    None,
                ));
            }
        }
        findings.extend(LIMITS.map(|(message, advice)| Finding {
            severity: Severity::Note,
            subject: "PostgreSQL".to_owned(),
            message: message.to_owned(),
            advice: Some(advice.to_owned()),
        }));
        Ok(findings)
    }

    async fn newest_gap(&self, look: &Look) -> Result<Option<Finding>> {
        let client = &**self;
        let row = client
            .query_opt(
                "select what, to_char(happened_at at time zone 'UTC', \
                                      'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), by_user, \
                        count(*) over () \
                 from changefeed.event_gap where trigger_id = $1 \
                 order by happened_at desc limit 1",
                &[&look.trigger.id.0],
            )
            .await
            .map_err(db)?;
        let gap = |row: Row| {
            let (what, at, user, count): (String, String, String, i64) =
                (row.take(0)?, row.take(1)?, row.take(2)?, row.take(3)?);
            Ok(look.finding(
                Severity::Warning,
                format!("{what} by {user} at {at}: no event knows of it ({count} in all)"),
                "delete from changefeed.event_gap once the receivers know".to_owned(),
            ))
        };
        row.map(gap).transpose()
    }
}

fn describe(look: &Look, findings: &mut Vec<Finding>) {
    let name = &look.trigger.definition.name;
    if look.table.is_none() {
        findings.push(look.finding(
            Severity::Problem,
            format!("its table {} was dropped", look.trigger.definition.table),
            format!("`changefeed trigger drop {name}` removes it"),
        ));
        return;
    }
    if look.triggers_differ() {
        findings.push(look.finding(
            Severity::Problem,
            "its database triggers are not those that its table needs now".to_owned(),
            "a running `changefeed serve` or `changefeed deliver` mends that, where its user may"
                .to_owned(),
        ));
    } else if look.columns_changed() {
        let advice =
            "a running `changefeed serve` or `changefeed deliver` makes it fast again".to_owned();
        let message = match look.trigger.definition.capture.condition {
            None => "its table was altered: capture goes on, more slowly",
            Some(_) => {
                "its table was altered: capture goes on, more slowly and without its condition"
            }
        };
        findings.push(look.finding(Severity::Warning, message.to_owned(), advice));
    }
    for disabled in look.disabled() {
        findings.push(look.finding(
            Severity::Problem,
            format!("the database trigger {disabled} is disabled"),
            format!(
                "alter table {} enable trigger \"{disabled}\"",
                look.trigger.definition.table
            ),
        ));
    }
    if look.shape.has_heirs {
        findings.push(look.finding(
            Severity::Warning,
            "other tables inherit from its table, and what is in them is not captured".to_owned(),
            "create a trigger on each of them, or use partitions".to_owned(),
        ));
    }
    let missing = look.missing_columns();
    if !missing.is_empty() {
        findings.push(look.finding(
            Severity::Warning,
            format!("it names columns that are gone: {}", missing.join(", ")),
            look.replace_advice(),
        ));
    }
}

/// What no trigger on PostgreSQL can see.
const LIMITS: [(&str, &str); 3] = [
    (
        "TRUNCATE makes no events; it is remembered and shown here",
        "use DELETE where receivers must know of every row",
    ),
    (
        "writes with session_replication_role = replica, logical replication among them, fire no \
         triggers and make no events",
        "capture on the publishing side",
    ),
    (
        "an update that moves a row to another partition is a DELETE and an INSERT",
        "choose partition keys that do not change",
    ),
];

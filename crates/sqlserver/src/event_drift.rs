//! Tables that were altered after their event trigger was made: following them, and saying what
//! cannot be followed or captured at all.
//!
//! A trigger on SQL Server names its columns and is bound to them when it runs: a column that it
//! names and that was renamed or dropped makes every write fail until the trigger is recreated. It
//! is found by its number, and making the trigger anew is the first thing that a dispatcher does.

use std::collections::{BTreeMap, BTreeSet};

use changefeed_core::{
    Error, EventTrigger, Finding, Kind, OrderBy, Result, Severity, TriggerDefinition, Updates,
    words,
};
use tiberius::Row;

use crate::connection::Connection;
use crate::event_capture::{Around, Plan, trigger_name};
use crate::platform::Platform;
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;
use crate::table_trigger::{self, Patience};
use crate::triggers::{rewrite, trigger};
use crate::{event_feeds, event_install};

/// An event trigger beside its table as it is now.
struct Look {
    trigger: EventTrigger,
    /// None if the table is gone.
    table: Option<Table>,
    /// Whether the table was called something else.
    renamed: bool,
    /// The definition, with the names that its columns have now.
    definition: TriggerDefinition,
    around: Around,
    /// Columns that were there when the trigger was made and are called differently now, or gone.
    lost: Vec<String>,
    /// The database trigger as it was made, and as it should be.
    known: Option<String>,
    wanted: Result<Option<String>>,
    /// Whether it is on its table, and whether it is switched off.
    installed: bool,
    disabled: bool,
    /// It may be there, but is not for this user to see.
    hidden: bool,
}

impl Look {
    async fn at(connection: &mut Connection, row: &Row) -> Result<Self> {
        let trigger = trigger(row)?;
        let table_id: i32 = row.take(5)?;
        let table = Table::load(connection, table_id).await?;
        let known = row.maybe_text(6)?;
        let mut look = Look {
            definition: trigger.definition.clone(),
            renamed: row.says(7)?,
            table: None,
            around: Around::default(),
            lost: Vec::new(),
            known,
            wanted: Ok(None),
            installed: false,
            disabled: false,
            hidden: false,
            trigger,
        };
        let Some(table) = table else {
            return Ok(look);
        };
        let places: BTreeMap<String, i32> =
            serde_json::from_str(row.maybe::<&str>(9)?.unwrap_or("{}")).unwrap_or_default();
        each_column(&mut look.definition, |name| {
            let place = places.get(name.as_str());
            if let Some(column) = table.columns.iter().find(|c| Some(&c.place) == place) {
                name.clone_from(&column.name);
            }
        });
        let now: BTreeSet<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
        look.lost = places
            .into_keys()
            .filter(|name| !now.contains(name.as_str()))
            .collect();
        let installed = connection
            .query(
                include_str!("sql/event_installed.sql"),
                &[&table_id, &trigger_name(look.trigger.id)],
            )
            .await?;
        if let Some(there) = installed.first() {
            look.installed = there.maybe(0)? == Some(table_id);
            look.disabled = there.says(1)?;
            look.hidden = there.says(2)?;
        }
        look.around = Around {
            binding: event_feeds::binding(connection, &look.definition, row.maybe(8)?).await?,
            identity: event_install::identity_of(connection, &table).await?,
        };
        look.wanted = Plan::of(
            look.trigger.id,
            &look.definition,
            &table,
            look.around.clone(),
        )
        .and_then(|plan| plan.trigger());
        look.table = Some(table);
        Ok(look)
    }

    /// Whether the database trigger is not the one that the table needs now.
    fn is_stale(&self) -> bool {
        match &self.wanted {
            Ok(wanted) => *wanted != self.known || self.is_missing(),
            Err(_) => true,
        }
    }

    fn is_missing(&self) -> bool {
        matches!(&self.wanted, Ok(Some(_))) && !self.installed && !self.hidden
    }

    fn finding(
        &self,
        severity: Severity,
        message: impl Into<String>,
        advice: impl Into<Option<String>>,
    ) -> Finding {
        Finding {
            severity,
            subject: format!("trigger {}", self.trigger.definition.name),
            message: message.into(),
            advice: advice.into(),
        }
    }

    fn stuck(&self, error: &Error) -> Finding {
        let name = &self.trigger.definition.name;
        self.finding(
            Severity::Problem,
            format!("its table was altered, and its database trigger no longer fits it: {error}"),
            format!(
                "run `changefeed trigger create {name} … --replace` with the names of today; until \
                 then writes may fail: `disable trigger {} on {}` lets them pass, without events",
                trigger_name(self.trigger.id),
                self.trigger.definition.table
            ),
        )
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
            // One that somebody has switched off stays as it is: made anew it would be on.
            if look.table.is_none() || look.disabled || !(look.is_stale() || look.renamed) {
                continue;
            }
            match self.follow(&look).await {
                Ok(true) if look.is_missing() => findings.push(look.finding(
                    Severity::Warning,
                    format!(
                        "its database trigger on {} was missing and was made again; what was \
                         written meanwhile was not captured",
                        look.trigger.definition.table
                    ),
                    "`changefeed trigger backfill` sends the rows that are there".to_owned(),
                )),
                Ok(true) => {
                    findings.push(look.finding(Severity::Ok, words::CAPTURE_RECREATED, None))
                }
                Ok(false) => {}
                Err(error) => findings.push(look.stuck(&error)),
            }
        }
        Ok(findings)
    }

    /// Makes the database trigger anew for the table as it is. False if somebody else has done it.
    async fn follow(&mut self, look: &Look) -> Result<bool> {
        let Some(table) = &look.table else {
            return Ok(false);
        };
        let id = look.trigger.id;
        let plan = Plan::of(id, &look.definition, table, look.around.clone())?;
        let wanted = plan.trigger()?;
        let connection = &mut *self.connection;
        connection.begin().await?;
        let done = async {
            // Another instance that does the same waits here.
            let there = connection
                .execute(
                    "update changefeed.event_trigger set updated_at = sysutcdatetime() \
                     where trigger_id = @P1 and dropped_at is null",
                    &[&id.0],
                )
                .await?;
            let now = connection
                .query(
                    "select t.capture_sql, convert(bit, case when exists \
                         (select 1 from sys.triggers d where d.name = @P2 \
                          and d.parent_id = t.table_id) then 1 else 0 end), \
                         t.schema_name, t.table_name \
                     from changefeed.event_trigger t where t.trigger_id = @P1",
                    &[&id.0, &trigger_name(id)],
                )
                .await?;
            let as_wanted = match now.first() {
                Some(row) => {
                    row.maybe::<&str>(0)? == wanted.as_deref()
                        && (wanted.is_none() || row.says(1)?)
                        && row.maybe::<&str>(2)? == table.name.schema.as_deref()
                        && row.maybe::<&str>(3)? == Some(table.name.name.as_str())
                }
                None => false,
            };
            if there == 0 || as_wanted {
                return Ok(false);
            }
            rewrite(connection, id, &look.definition, table).await?;
            event_install::install(connection, &plan, Patience::Moment).await?;
            connection.commit().await?;
            Ok(true)
        }
        .await;
        if !matches!(done, Ok(true)) {
            table_trigger::give_up(connection).await;
        }
        done
    }

    async fn looks(&mut self) -> Result<Vec<Look>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/event_triggers.sql"), &[])
            .await?;
        let mut looks = Vec::new();
        for row in &rows {
            match Look::at(connection, row).await {
                Ok(look) => looks.push(look),
                // One that cannot be looked at must not hide the others.
                Err(error) if error.kind() != Kind::Unavailable => {
                    tracing::warn!(trigger = row.maybe::<i32>(0)?, %error, "cannot be looked at");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(looks)
    }

    pub(crate) async fn look_at_capture(&mut self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let looks = self.looks().await?;
        for look in &looks {
            let before = findings.len();
            describe(look, &mut findings);
            if findings.len() == before {
                findings.push(look.finding(
                    Severity::Ok,
                    format!("captures {}", look.trigger.definition.table),
                    None,
                ));
            }
        }
        if !looks.is_empty() {
            findings.extend(self.surroundings().await?);
            findings.extend(LIMITS.map(|(message, advice)| Finding {
                severity: Severity::Note,
                subject: "SQL Server".to_owned(),
                message: message.to_owned(),
                advice: Some(advice.to_owned()),
            }));
        }
        Ok(findings)
    }

    /// What settings of the server or the database keep from being captured.
    async fn surroundings(&mut self) -> Result<Vec<Finding>> {
        let connection = &mut *self.connection;
        let row = connection
            .one(include_str!("sql/event_surroundings.sql"), &[])
            .await?;
        let mut findings = Vec::new();
        let mut add = |severity, message: String, advice: &str| {
            findings.push(Finding {
                severity,
                subject: "SQL Server".to_owned(),
                message,
                advice: Some(advice.to_owned()),
            });
        };
        if row.maybe::<i32>(0)? == Some(0) {
            add(
                Severity::Warning,
                "the server option 'nested triggers' is off: what triggers of the application \
                 write makes no events"
                    .to_owned(),
                "exec sp_configure 'nested triggers', 1; reconfigure",
            );
        }
        if let Some(schema) = row.maybe::<&str>(1)?
            && connection.platform() == Platform::SqlServer
        {
            add(
                Severity::Problem,
                format!(
                    "the schemas {schema} and changefeed have different owners: writers need \
                     rights on changefeed.event, or their writes fail"
                ),
                "alter authorization on schema::changefeed to the owner of the tables",
            );
        }
        if let Some(column) = row.maybe::<&str>(2)? {
            add(
                Severity::Warning,
                format!(
                    "{column} is masked: what is captured of it may be the mask, where the writer \
                     may not see the column itself"
                ),
                "grant unmask to those who write, or leave the column out of the trigger",
            );
        }
        Ok(findings)
    }
}

fn describe(look: &Look, findings: &mut Vec<Finding>) {
    let name = &look.trigger.definition.name;
    let table = &look.trigger.definition.table;
    if look.table.is_none() {
        findings.push(look.finding(
            Severity::Problem,
            format!("its table {table} was dropped, or this user may not see it"),
            format!(
                "`grant select on {table}` shows the table; if it was dropped, `changefeed trigger drop \
                 {name}` removes the trigger"
            ),
        ));
        return;
    }
    if look.hidden {
        findings.push(look.finding(
            Severity::Note,
            format!(
                "this user may not see the database trigger on {table}, so whether it is there is \
                 not known"
            ),
            format!("grant view definition on {table} to this user"),
        ));
    }
    let mends =
        "a running `changefeed serve` or `changefeed deliver` recreates it, if its user may"
            .to_owned();
    match &look.wanted {
        Err(error) => findings.push(look.stuck(error)),
        Ok(_) if look.is_missing() => findings.push(look.finding(
            Severity::Problem,
            format!("its database trigger on {table} is missing: nothing is captured"),
            mends,
        )),
        Ok(_) if look.is_stale() && !look.lost.is_empty() => findings.push(look.finding(
            Severity::Problem,
            format!(
                "columns of {table} were renamed or dropped ({}): writes fail until the database \
                 trigger is recreated",
                look.lost.join(", ")
            ),
            mends,
        )),
        Ok(_) if look.is_stale() || look.renamed => findings.push(look.finding(
            Severity::Warning,
            format!("table {table} was altered; events do not show it yet"),
            mends,
        )),
        Ok(_) => {}
    }
    if look.disabled {
        let trigger = trigger_name(look.trigger.id);
        findings.push(look.finding(
            Severity::Problem,
            format!("the database trigger {trigger} is disabled"),
            format!("enable trigger {trigger} on {table}"),
        ));
    }
}

/// What no trigger on SQL Server can see.
const LIMITS: [(&str, &str); 3] = [
    (
        "TRUNCATE TABLE, partition SWITCH, and bulk copy without FIRE_TRIGGERS make no events",
        "use DELETE and INSERT, or FIRE_TRIGGERS, where receivers must know of every row",
    ),
    (
        "a statement that changes the primary keys of several rows tells of the new rows only: the \
         server does not say which row was which",
        "change keys one by one, or give the table a unique identity column",
    ),
    (
        "an OUTPUT clause without INTO is refused by the server on tables with triggers (error 334)",
        "write OUTPUT … INTO a table variable",
    ),
];

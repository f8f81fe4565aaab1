//! Following tables that were altered after their event trigger was made.
//!
//! SQLite itself keeps a trigger with its table: it follows a renamed table or column, and refuses
//! to drop a column that a trigger names. What it cannot know is that a new column belongs into
//! the events, that a renamed one has a new name there, that a new unique index removes rows, and
//! that a table which was rebuilt under its old name has lost its triggers. So the database
//! triggers are compared with what they should be, word for word, and made again.
//!
//! They are also made again when the order of the table's triggers is not the one that capture needs
//! (`arrange.rs`), because the application has made one of its own since.

use std::collections::BTreeMap;

use changefeed_core::{Error, EventTrigger, Finding, Result, Severity, TriggerDefinition};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Explain;
use crate::event_capture::{self, Plan};
use crate::source::Table;
use crate::unique::{Primary, Uniques};
use crate::{arrange, event_backfill, triggers};

/// How the database triggers of an event trigger stand.
enum Drift {
    /// As they should be.
    None,
    /// None of them is there.
    Lost(Box<Plan>),
    /// The table is no longer what it was.
    Altered(Box<Plan>),
    /// They cannot be made again without a person.
    Stuck(Error),
}

/// The table of a trigger, wherever it was renamed to.
pub(crate) fn table_of(tx: &Connection, trigger: &EventTrigger) -> Result<Table> {
    // The database triggers follow their table, so they know its name of today.
    let mut renamed: Option<String> = None;
    for event in ["insert", "update", "delete", "settle_insert"] {
        let name = event_capture::trigger_name(trigger.id, event);
        renamed = tx
            .prepare_cached(
                "select tbl_name from sqlite_master where type = 'trigger' and name = ?1",
            )
            .and_then(|mut s| s.query_row([name], |row| row.get(0)).optional())
            .explained()?;
        if renamed.is_some() {
            break;
        }
    }
    let name = renamed.unwrap_or_else(|| trigger.definition.table.name.clone());
    Table::load(tx, &name)?.ok_or_else(|| {
        Error::not_found(format!(
            "table {} of event trigger '{}' no longer exists",
            trigger.definition.table, trigger.definition.name
        ))
        .advise("`changefeed trigger drop` removes the trigger and keeps its events")
    })
}

fn drift(tx: &Connection, trigger: &EventTrigger) -> Result<Drift> {
    let plan = table_of(tx, trigger)
        .and_then(|table| Plan::of(tx, trigger.id, &trigger.definition, table));
    let plan = match plan {
        Ok(plan) => Box::new(plan),
        Err(error) => return Ok(Drift::Stuck(error)),
    };
    let installed = installed(tx, trigger)?;
    let wanted = plan.triggers()?;
    let same = wanted.len() == installed.len()
        && wanted.iter().all(|trigger| {
            let there = installed.get(&trigger.name);
            there.is_some_and(|sql| trigger.is(sql))
        });
    let same = same && (installed.is_empty() || arrange::is_arranged(tx, &plan.table.name)?);
    Ok(match (same, installed.is_empty()) {
        (true, _) if plan.table.name == trigger.definition.table.name => Drift::None,
        (false, true) => Drift::Lost(plan),
        _ => Drift::Altered(plan),
    })
}

fn installed(tx: &Connection, trigger: &EventTrigger) -> Result<BTreeMap<String, String>> {
    let mut statement = tx
        .prepare_cached(
            "select name, sql from sqlite_master where type = 'trigger' and name glob ?1",
        )
        .explained()?;
    let pattern = event_capture::trigger_name(trigger.id, "*");
    let found = statement
        .query_map([pattern], |row| Ok((row.get(0)?, row.get(1)?)))
        .explained()?;
    found.collect::<rusqlite::Result<_>>().explained()
}

fn finding(
    severity: Severity,
    definition: &TriggerDefinition,
    message: String,
    advice: Option<&str>,
) -> Finding {
    Finding {
        severity,
        subject: format!("trigger {}", definition.name),
        message,
        advice: advice.map(str::to_owned),
    }
}

/// Whether there is anything to do for `refresh`.
pub(crate) fn is_stale(tx: &Connection) -> Result<bool> {
    for trigger in triggers::list(tx)? {
        if matches!(drift(tx, &trigger)?, Drift::Lost(_) | Drift::Altered(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the database triggers what they should be.
pub(crate) fn refresh(tx: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for trigger in triggers::list(tx)? {
        let mut definition = trigger.definition.clone();
        let (plan, lost) = match drift(tx, &trigger)? {
            Drift::None => continue,
            Drift::Stuck(error) => {
                findings.push(stuck(&definition, &error));
                continue;
            }
            Drift::Lost(plan) => (plan, true),
            Drift::Altered(plan) => (plan, false),
        };
        // One that fails is undone by itself; the others are not to blame.
        tx.execute_batch("savepoint changefeed_refresh")
            .explained()?;
        let installed = plan.install(tx);
        if installed.is_err() {
            tx.execute_batch("rollback to changefeed_refresh")
                .explained()?;
        }
        tx.execute_batch("release changefeed_refresh").explained()?;
        if let Err(error) = installed {
            findings.push(stuck(&definition, &error));
            continue;
        }
        if lost {
            event_backfill::forget(tx, trigger.id)?;
        }
        definition.table.name = plan.table.name.clone();
        triggers::store(tx, trigger.id, &definition)?;
        findings.push(if lost {
            finding(
                Severity::Warning,
                &definition,
                format!(
                    "its database triggers on {} were missing, as after a table was rebuilt; they \
                     were made again, but what was written meanwhile was not captured",
                    definition.table
                ),
                Some("`changefeed trigger backfill` sends the rows that are there"),
            )
        } else {
            finding(
                Severity::Ok,
                &definition,
                format!(
                    "table {} or its triggers were altered; the database triggers were made again",
                    definition.table
                ),
                None,
            )
        });
    }
    Ok(findings)
}

fn stuck(definition: &TriggerDefinition, error: &Error) -> Finding {
    finding(
        Severity::Problem,
        definition,
        format!("it no longer fits its table: {error}"),
        Some(
            "`changefeed trigger create --replace` with the names of today, or \
             `changefeed trigger drop`",
        ),
    )
}

/// What keeps changes from being captured, as far as it can be seen.
pub(crate) fn findings(tx: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for trigger in triggers::list(tx)? {
        let definition = &trigger.definition;
        match drift(tx, &trigger)? {
            Drift::None => {}
            Drift::Stuck(error) => findings.push(stuck(definition, &error)),
            Drift::Lost(_) if !triggers::captures(definition) => {}
            Drift::Lost(_) => findings.push(finding(
                Severity::Problem,
                definition,
                format!(
                    "its database triggers on {} are missing, as after a table was rebuilt: nothing \
                     is captured",
                    definition.table
                ),
                Some("`changefeed serve` and `changefeed deliver` make them again"),
            )),
            Drift::Altered(_) => findings.push(finding(
                Severity::Warning,
                definition,
                format!(
                    "table {} or its triggers were altered; events do not show it yet",
                    definition.table
                ),
                Some("`changefeed serve` and `changefeed deliver` make the triggers again"),
            )),
        }
    }
    Ok(findings)
}

/// What SQLite cannot capture, and what was left lying about.
pub(crate) fn limits(tx: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let triggers = triggers::list(tx)?;
    let left_open: bool = tx
        .query_row(
            "select exists (select 1 from changefeed_session_open)",
            [],
            |row| row.get(0),
        )
        .explained()?;
    if left_open {
        findings.push(Finding {
            severity: Severity::Warning,
            subject: "changefeed_session".to_owned(),
            message: "a transaction committed without `delete from changefeed_session`, so its \
                      events are without its session variables"
                .to_owned(),
            advice: Some("end such transactions with that statement".to_owned()),
        });
    }
    for trigger in &triggers {
        let definition = &trigger.definition;
        let Ok(table) = table_of(tx, trigger) else {
            continue;
        };
        for index in Uniques::of(tx, &table, Primary::Included)?.unfollowed {
            if definition.capture.delete {
                findings.push(finding(
                    Severity::Note,
                    definition,
                    format!(
                        "rows that a REPLACE removes by the unique index {index}, which is over an \
                         expression, make no DELETE event"
                    ),
                    Some("a unique generated column would be seen"),
                ));
            }
        }
        let plan = Plan::of(tx, trigger.id, definition, table);
        if plan.is_ok_and(|plan| plan.misses_replaced()) {
            findings.push(finding(
                Severity::Note,
                definition,
                "rows that a REPLACE removes make no DELETE event, because rows of this table \
                 cannot be told apart"
                    .to_owned(),
                Some("give the table a primary key of at most eight columns"),
            ));
        }
    }
    if !triggers.is_empty() {
        for message in [
            "a connection that has switched triggers off (sqlite3_db_config) captures nothing",
            "a program with SQLite 3.38 to 3.40 that runs `pragma trusted_schema = off` cannot write \
             to tables with event triggers",
            "replacing the database file, restoring a backup into it and editing it with \
             writable_schema capture nothing",
        ] {
            findings.push(Finding {
                severity: Severity::Note,
                subject: "SQLite".to_owned(),
                message: message.to_owned(),
                advice: None,
            });
        }
    }
    Ok(findings)
}

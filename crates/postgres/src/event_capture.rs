//! The database triggers that write the event log.

use std::collections::BTreeSet;

use changefeed_core::{Error, Kind, OrderBy, Result, TriggerDefinition, TriggerId, Updates};
use tokio_postgres::{GenericClient, Row};

use crate::error::db;
use crate::patience::{Patience, no_trigger};
use crate::quote;
use crate::row::Cells;
use crate::source::{Column, Table};
use crate::template::{dollar_quote, fill};

/// All that a function of ours may have to set, so that the writer's session does not show in an event: the forms
/// of times, bytes, intervals, numbers and money, and where names are looked up.
const SETTINGS: &str = "set search_path = pg_catalog, pg_temp set timezone = 'UTC' \
     set datestyle = 'ISO, YMD' set bytea_output = hex set intervalstyle = postgres \
     set extra_float_digits = 1 set lc_monetary = 'C' set xmlbinary = base64 set array_nulls = on \
     set standard_conforming_strings = on set transform_null_equals = off";

/// What the function of a table sets whose rows it writes as JSON, and some of whose columns it writes as text. Each
/// setting costs every write about as much as a column, so it is only what shows in the types that the table has;
/// the functions look at those first, and for other ones set everything (`changefeed.shape_values`). With a
/// condition, which may compare anything, it is everything as well.
pub(crate) fn settings<'a>(
    table: &Table,
    as_text: impl IntoIterator<Item = &'a Column>,
    condition: bool,
) -> String {
    let settings: Option<BTreeSet<&str>> = (table.columns.iter())
        .map(Column::json_setting)
        .chain(as_text.into_iter().map(Column::text_setting))
        .collect();
    match settings.filter(|_| !condition) {
        None => SETTINGS.to_owned(),
        Some(settings) => std::iter::once("set search_path = pg_catalog, pg_temp")
            .chain(settings.into_iter().filter(|setting| !setting.is_empty()))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// What the table is like now, as far as capture depends on it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shape {
    /// Whether statement triggers see everything.
    by_statement: bool,
    /// The columns of the table and of its partitions.
    pub(crate) signatures: Vec<String>,
    /// Its partitions, quoted.
    pub(crate) partitions: Vec<String>,
    /// Whether other tables inherit from it, in the way from before there were partitions.
    pub(crate) has_heirs: bool,
}

impl Shape {
    /// The shape of a table that is gone.
    pub(crate) fn none() -> Self {
        Shape {
            by_statement: false,
            signatures: Vec::new(),
            partitions: Vec::new(),
            has_heirs: false,
        }
    }

    pub(crate) async fn load(client: &impl GenericClient, table: u32) -> Result<Option<Self>> {
        let row = client
            .query_opt(include_str!("sql/event_table.sql"), &[&table])
            .await
            .map_err(db)?;
        let shape = |row: Row| {
            Ok(Shape {
                by_statement: row.take(0)?,
                signatures: row.take(1)?,
                partitions: row.take(2)?,
                has_heirs: row.take(3)?,
            })
        };
        row.map(shape).transpose()
    }
}

/// Which kinds of triggers serve which operations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    statement: Vec<&'static str>,
    row: Vec<&'static str>,
}

impl Plan {
    /// No triggers at all.
    pub(crate) fn none() -> Self {
        Plan {
            statement: Vec::new(),
            row: Vec::new(),
        }
    }

    pub(crate) fn new(definition: &TriggerDefinition, shape: &Shape) -> Self {
        let capture = &definition.capture;
        // The condition of one row must not fail others, so each row is looked at by itself.
        let by_statement = shape.by_statement && capture.condition.is_none();
        let updates = capture.update != Updates::Ignored;
        // A statement trigger comes after the row triggers of the same command (a common table
        // expression that modifies, an upsert, MERGE). That is right for what was inserted under a
        // primary key, because nothing can happen to it in the same command; but it may take the
        // place of what was deleted, and rows with other keys may share what events are ordered by.
        let by_column = matches!(capture.order_by, Some(OrderBy::Column(_)));
        let insert_alone = !updates && !capture.delete;
        let delete_alone = !updates && !capture.insert;
        let mut plan = Plan::none();
        for (wanted, operation, in_order) in [
            (capture.insert, "insert", insert_alone || !by_column),
            (capture.delete, "delete", delete_alone),
        ] {
            match (wanted, by_statement && in_order) {
                (true, true) => plan.statement.push(operation),
                (true, false) => plan.row.push(operation),
                (false, _) => {}
            }
        }
        // Which old row belongs to which new one is certain only row by row.
        if updates {
            plan.row.push("update");
        }
        plan
    }

    /// The names of the triggers that must be there.
    pub(crate) fn triggers(&self, id: TriggerId) -> Vec<String> {
        let mut names: Vec<String> = self.statement.iter().map(|op| name(id, op)).collect();
        if !self.row.is_empty() {
            names.push(name(id, "row"));
        }
        if !names.is_empty() {
            names.push(name(id, "truncate"));
        }
        names
    }
}

/// Sorts before the application's own triggers (`!` comes before letters and digits), so that what
/// they change in turn comes after.
fn name(id: TriggerId, what: &str) -> String {
    format!("!changefeed_event_{}_{what}", id.0)
}

fn function(id: TriggerId, what: &str) -> String {
    quote::identifier(&format!("capture_event_{}_{what}", id.0))
}

/// Creates or replaces the functions and creates the triggers that are missing.
pub(crate) async fn install(
    client: &impl GenericClient,
    id: TriggerId,
    definition: &TriggerDefinition,
    table: &Table,
    patience: Patience,
) -> Result<()> {
    let shape = Shape::load(client, table.oid)
        .await?
        .ok_or_else(|| Error::not_found(format!("table {} was dropped meanwhile", table.name)))?;
    let plan = Plan::new(definition, &shape);
    write_functions(client, id, definition, table, &shape, &plan).await?;
    patience.set(client).await?;
    let sql = create_triggers(id, table, &shape, &plan);
    client
        .batch_execute(&sql)
        .await
        .map_err(|e| no_trigger(e, table))
}

/// Writes the functions for the columns that the table has now.
pub(crate) async fn write_functions(
    client: &impl GenericClient,
    id: TriggerId,
    definition: &TriggerDefinition,
    table: &Table,
    shape: &Shape,
    plan: &Plan,
) -> Result<()> {
    client
        .execute(
            "update changefeed.event_trigger set signatures = $2 where trigger_id = $1",
            &[&id.0, &shape.signatures],
        )
        .await
        .map_err(db)?;
    if !plan.triggers(id).is_empty() {
        let sql = fill(
            include_str!("sql/event_truncated.sql"),
            &[
                ("function", &function(id, "truncate")),
                ("trigger_id", &id.0.to_string()),
            ],
        )?;
        client.batch_execute(&sql).await.map_err(db)?;
    }
    if !plan.statement.is_empty() {
        let sql = statement_function(client, id, definition, table).await?;
        client.batch_execute(&sql).await.map_err(db)?;
    }
    if !plan.row.is_empty() {
        if let Some(condition) = &definition.capture.condition {
            check_condition(client, table, condition).await?;
        }
        let sql = row_function(client, id, definition, table).await?;
        client
            .batch_execute(&sql)
            .await
            .map_err(|e| condition_error(definition, e))?;
    }
    Ok(())
}

async fn statement_function(
    client: &impl GenericClient,
    id: TriggerId,
    definition: &TriggerDefinition,
    table: &Table,
) -> Result<String> {
    let row = client
        .query_one(
            "select changefeed.event_statement(p.plan, $2, 'I'), \
                    changefeed.event_statement(p.plan, $2, 'D'), \
                    changefeed.known_columns($2, 'c'), quote_literal(p.plan) || '::jsonb' \
             from (select changefeed.event_plan($1) as plan) p",
            &[&id.0, &table.oid],
        )
        .await
        .map_err(db)?;
    let text = |place: usize| row.take::<String>(place);
    let (insert, delete, known, plan) = (text(0)?, text(1)?, text(2)?, text(3)?);
    fill(
        include_str!("sql/event_capture_statement.sql"),
        &[
            ("function", &function(id, "statement")),
            ("settings", &settings_of(definition, table)?),
            ("quote", &dollar_quote(&[&insert, &delete, &known, &plan])),
            ("known", &known),
            ("plan", &plan),
            ("insert", &insert),
            ("delete", &delete),
            ("trigger_id", &id.0.to_string()),
        ],
    )
}

async fn row_function(
    client: &impl GenericClient,
    id: TriggerId,
    definition: &TriggerDefinition,
    table: &Table,
) -> Result<String> {
    let row = client
        .query_one(
            "select n.before, n.after, n.differs, n.order_key, o.order_key, \
                    coalesce(n.shard, 'null'), coalesce(o.shard, 'null'), \
                    p.plan ->> 'feed', \
                    changefeed.safe_columns($2, 'old', null), \
                    changefeed.safe_columns($2, 'new', null), \
                    changefeed.known_columns($2, 'new'), quote_literal(p.plan) || '::jsonb' \
             from (select changefeed.event_plan($1) as plan) p, \
                  changefeed.event_capture(p.plan, $2, 'old', 'new') n, \
                  changefeed.event_capture(p.plan, $2, 'old', 'old') o",
            &[&id.0, &table.oid],
        )
        .await
        .map_err(db)?;
    let text = |place: usize| row.take::<String>(place);
    let (feed, publish) = match row.take::<Option<String>>(7)? {
        Some(feed) => {
            // Whichever number this event has got, the one that was drawn for it is the new one.
            let enter = format!(
                "done := changefeed.enter_change({feed}::smallint, to_shard, currval('changefeed.change_id'));"
            );
            (feed, enter)
        }
        None => ("null".to_owned(), String::new()),
    };
    let condition = match &definition.capture.condition {
        Some(expression) => fill(
            include_str!("sql/event_condition.sql"),
            &[
                ("expression", expression),
                ("old_columns", &text(8)?),
                ("new_columns", &text(9)?),
                ("name", &quote::literal(definition.name.as_str())),
            ],
        )?,
        None => String::new(),
    };
    let due = match definition.delivery.wait_ms() {
        0 => "clock_timestamp()".to_owned(),
        wait => format!("changefeed.first_due({wait})"),
    };
    let (before, after, differs) = (text(0)?, text(1)?, text(2)?);
    let (known, plan) = (text(10)?, text(11)?);
    fill(
        include_str!("sql/event_capture_row.sql"),
        &[
            ("function", &function(id, "row")),
            ("settings", &settings_of(definition, table)?),
            (
                "quote",
                &dollar_quote(&[&before, &after, &differs, &condition, &known, &plan]),
            ),
            ("known", &known),
            ("plan", &plan),
            ("condition", &condition),
            ("before", &before),
            ("after", &after),
            ("differs", &differs),
            ("new_order_key", &text(3)?),
            ("old_order_key", &text(4)?),
            ("new_shard", &text(5)?),
            ("old_shard", &text(6)?),
            ("feed", &feed),
            ("publish", &publish),
            ("due", &due),
            ("trigger_id", &id.0.to_string()),
        ],
    )
}

/// What the functions of a trigger set.
fn settings_of(definition: &TriggerDefinition, table: &Table) -> Result<String> {
    let capture = &definition.capture;
    let order = match &capture.order_by {
        Some(OrderBy::Column(column)) => Some(column),
        _ => None,
    };
    let shard_by = capture.feed.iter().find_map(|f| f.shard_by.as_ref());
    let named: Vec<&Column> = (order.into_iter().chain(shard_by))
        .map(|name| table.column(name))
        .collect::<Result<_>>()?;
    let as_text = table.key.iter().chain(named);
    Ok(settings(table, as_text, capture.condition.is_some()))
}

/// Has the server look at a condition as it would in the trigger, so that a mistake shows now and
/// not with the first write.
async fn check_condition(
    client: &impl GenericClient,
    table: &Table,
    condition: &str,
) -> Result<()> {
    let look_in = |path: &str| format!("set local search_path = {path}");
    let before: String = client
        .query_one("select current_setting('search_path')", &[])
        .await
        .map_err(db)?
        .take(0)?;
    client
        .batch_execute(&look_in("pg_catalog, pg_temp"))
        .await
        .map_err(db)?;
    // Prepared, never run: it is one statement, or it is refused.
    let columns: String = client
        .query_one(
            "select changefeed.safe_columns($1, 'changefeed_row', null)",
            &[&table.oid],
        )
        .await
        .map_err(db)?
        .take(0)?;
    let rows = format!("(select {columns} from {} changefeed_row)", table.sql);
    let sql = format!("select from {rows} old, {rows} new where ({condition}\n)");
    let checked = client.prepare(&sql).await.map_err(|e| {
        Error::invalid("the condition is not a SQL condition over 'old' and 'new'")
            .advise(
                "write, for example, new.status = 'paid' and old.status is distinct from \
                 new.status; names outside pg_catalog need their schema",
            )
            .caused_by(db(e))
    });
    checked?;
    client.batch_execute(&look_in(&before)).await.map_err(db)
}

fn condition_error(definition: &TriggerDefinition, error: tokio_postgres::Error) -> Error {
    let error = db(error);
    if definition.capture.condition.is_some() && error.kind() == Kind::Database {
        return Error::invalid("the condition is not a SQL condition over 'old' and 'new'")
            .advise("write, for example, new.status = 'paid'")
            .caused_by(error);
    }
    error
}

fn create_triggers(id: TriggerId, table: &Table, shape: &Shape, plan: &Plan) -> String {
    let mut sql = String::new();
    let mut add = |table: &str, trigger: String, when: String, what: &str, call: String| {
        let trigger = quote::identifier(&trigger);
        sql.push_str(&format!(
            "create trigger {trigger} after {when} on {table} {what} execute function {call};\n",
        ));
    };
    for operation in &plan.statement {
        let rows = if *operation == "insert" { "new" } else { "old" };
        add(
            &table.sql,
            name(id, operation),
            (*operation).to_owned(),
            &format!("referencing {rows} table as changed for each statement"),
            format!("changefeed.{}()", function(id, "statement")),
        );
    }
    if !plan.row.is_empty() {
        add(
            &table.sql,
            name(id, "row"),
            plan.row.join(" or "),
            "for each row",
            format!("changefeed.{}()", function(id, "row")),
        );
    }
    if !plan.statement.is_empty() || !plan.row.is_empty() {
        // Statement triggers are not handed down to partitions.
        for table in std::iter::once(&table.sql).chain(&shape.partitions) {
            add(
                table,
                name(id, "truncate"),
                "truncate".to_owned(),
                "for each statement",
                format!("changefeed.{}()", function(id, "truncate")),
            );
        }
    }
    sql
}

/// Removes the triggers, wherever their table is by now, and their functions.
pub(crate) async fn uninstall(
    client: &impl GenericClient,
    id: TriggerId,
    patience: Patience,
) -> Result<()> {
    patience.set(client).await?;
    let mut sql = String::from("set local client_min_messages = warning;\n");
    for what in ["statement", "row", "truncate"] {
        sql.push_str(&format!(
            "drop function if exists changefeed.{} cascade;\n",
            function(id, what)
        ));
    }
    sql.push_str("reset client_min_messages");
    client.batch_execute(&sql).await.map_err(db)
}

/// Checks that events can be captured from a table, and says why not.
pub(crate) fn check(definition: &TriggerDefinition, table: &Table) -> Result<()> {
    crate::capture::check_kind(table)?;
    let capture = &definition.capture;
    let named = capture
        .update
        .columns()
        .into_iter()
        .flatten()
        .chain(capture.payload.iter().flatten())
        .chain(capture.feed.iter().filter_map(|f| f.shard_by.as_ref()))
        .chain(match &capture.order_by {
            Some(OrderBy::Column(column)) => Some(column),
            _ => None,
        });
    for column in named {
        table.column(column)?;
    }
    if capture.order_by == Some(OrderBy::Key) && table.key.is_empty() {
        return Err(Error::invalid(format!(
            "table {} has no primary key to order its events by",
            table.name
        ))
        .advise("name a column instead"));
    }
    Ok(())
}

//! Which functions watch which tables: making and removing what they need in the database.

use changefeed_core::{
    Error, Kind, Result, TableName, Watch, WatchDefinition, WatchFrom, WatchName, WatchSpec, fill,
    words,
};

use crate::backlog::{Backlog, lock, missed_sql, send};
use crate::connection::Connection;
use crate::quote;
use crate::row::Cells;
use crate::tracking::{
    Stored, Tracked, Way, exists, function_sql, leases_name, tracked_in, trigger_state,
};
use crate::watch_triggers::{Triggers, remove_log};

/// Noted changes that are forgotten at a time.
const FORGET: u32 = 10_000;

/// One who makes or removes something of a table at a time; workers do not need this.
fn registering(table_id: i32) -> String {
    format!(
        "declare @result int; \
         exec @result = sp_getapplock @Resource = 'changefeed.watch/{table_id}', \
             @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 30000; \
         if @result < 0 throw 55000, 'changefeed: somebody else is at work on this table', 1"
    )
}

/// From here to the end of the transaction nobody else registers or moves anything of a table.
pub(crate) async fn enter(connection: &mut Connection, table_id: i32) -> Result<()> {
    connection.batch(&registering(table_id)).await?;
    connection.batch(&lock(table_id)).await
}

/// A function that is known already.
pub(crate) struct Known {
    pub(crate) table_id: i32,
    pub(crate) columns: bool,
    definition: Option<WatchDefinition>,
}

pub(crate) async fn known(connection: &mut Connection, name: &WatchName) -> Result<Option<Known>> {
    let rows = connection
        .query(
            "select table_id, [columns], definition from changefeed.watch \
             where name = convert(varchar(100), @P1)",
            &[&name.as_str()],
        )
        .await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(Known {
        table_id: row.take(0)?,
        columns: row.says(1)?,
        definition: definition(row.maybe(2)?, name.as_str())?,
    }))
}

/// A definition as the database has it.
pub(crate) fn definition(text: Option<&str>, name: &str) -> Result<Option<WatchDefinition>> {
    text.map(serde_json::from_str)
        .transpose()
        .map_err(|e| words::definition_unreadable(format_args!("watch '{name}'")).caused_by(e))
}

/// The error for a function that watches another table already.
pub(crate) async fn elsewhere(
    connection: &mut Connection,
    name: &WatchName,
    table_id: i32,
) -> Result<Error> {
    let rows = connection
        .query(
            "select convert(nvarchar(128), schema_name(o.schema_id)), convert(nvarchar(128), o.name) \
             from sys.objects o where o.object_id = @P1",
            &[&table_id],
        )
        .await?;
    let Some(row) = rows.first() else {
        return Ok(words::watch_table_dropped(name));
    };
    let table = TableName::qualified(row.text(0)?, row.text(1)?);
    Ok(words::watch_elsewhere(name, table))
}

/// Makes sure that changes of the table are noted, once the triggers are settled.
pub(crate) async fn ensure_table(
    connection: &mut Connection,
    tracked: &Tracked,
    stored: Option<&Stored>,
    triggers: &mut Triggers,
) -> Result<()> {
    let id = tracked.id();
    let key = serde_json::to_string(&tracked.stored_key())
        .map_err(|e| Error::invalid("the key cannot be written as JSON").caused_by(e))?;
    let Some(stored) = stored else {
        connection.batch(&new_table_sql(tracked, &key)).await?;
        if tracked.way == Way::Trigger {
            // One that is there is of a watch that is dropped in the same transaction.
            ensure_log(connection, tracked, Log::New).await?;
            triggers.put(tracked);
        }
        return Ok(());
    };
    let (mut missed, mut log) = (None, Log::Kept);
    let mut altered = tracked.stored_key() != stored.key;
    if altered && !follow_names(connection, tracked, stored).await? {
        start_over(connection, tracked).await?;
        log = Log::New;
        missed = Some("the table has another primary key");
    }
    if tracked.way != stored.way {
        missed = Some("change tracking of the table was switched off");
        altered = true;
    }
    if tracked.way == Way::Trigger {
        let had_log = ensure_log(connection, tracked, log).await?;
        let noted = triggers.comes(id) || trigger_state(connection, id).await? == Some(true);
        if !noted || !had_log {
            missed = missed.or(Some(
                "the trigger that notes changes was missing or disabled",
            ));
        }
        if !noted || altered || stored.columns != tracked.columns {
            triggers.put(tracked);
        }
    }
    if altered || stored.columns != tracked.columns {
        connection.batch(&altered_table_sql(tracked, &key)).await?;
    }
    if let Some(missed) = missed {
        let mut with_backlog = Vec::new();
        for function in functions(connection, id).await? {
            if exists(connection, &leases_name(&function, i64::from(id))).await? {
                with_backlog.push(function);
            }
        }
        let missed_sql = missed_because_sql(id, &with_backlog, missed)?;
        connection.batch(&missed_sql).await?;
        tracing::error!(
            table = %tracked.table.name, missed,
            "changes of a watched table were missed: all its rows are handed over again, as updates; \
             of rows that were deleted meanwhile no function is told"
        );
    }
    if altered {
        for function in functions(connection, id).await? {
            forget_counting(connection, &function).await?;
            ensure_counting(connection, tracked, &function).await?;
        }
    }
    Ok(())
}

/// What to do with the changes that a trigger has noted until now.
#[derive(Clone, Copy, PartialEq)]
enum Log {
    Kept,
    /// They are of another key, or were for somebody else.
    New,
}

/// Makes the table where the trigger notes changes, where there is none, or another one is to be. Returns
/// whether there was one.
async fn ensure_log(connection: &mut Connection, tracked: &Tracked, log: Log) -> Result<bool> {
    let had_log = exists(connection, &tracked.log()).await?;
    if had_log && log == Log::New {
        remove_log(connection, tracked.id()).await?;
    }
    if !had_log || log == Log::New {
        connection.batch(&tracked.log_sql()?).await?;
    }
    Ok(had_log)
}

/// Remembers a table that nobody has watched before.
pub(crate) fn new_table_sql(tracked: &Tracked, key: &str) -> String {
    // Everything that is committed later has a later version.
    let (native, now, noted) = match tracked.way {
        Way::Native => (
            1,
            "change_tracking_current_version()",
            tracked_in(tracked.id()),
        ),
        Way::Trigger => (0, "null", "null".to_owned()),
    };
    format!(
        "insert into changefeed.watched_table \
           (table_id, last_version, native, tracked_version, tracked_in, [key], [columns]) \
         select {}, datediff_big(millisecond, convert(datetime2(3), '19700101', 112), \
                                 sysutcdatetime()) * 1048576 + abs(convert(bigint, checksum(newid()))) % 1048576, \
           {native}, {now}, {noted}, {}, {}",
        tracked.id(),
        quote::literal(key),
        i32::from(tracked.columns)
    )
}

/// Remembers what a watched table has become.
pub(crate) fn altered_table_sql(tracked: &Tracked, key: &str) -> String {
    let native = i32::from(tracked.way == Way::Native);
    format!(
        "update changefeed.watched_table set generation = generation + 1, native = {native}, \
           tracked_version = case when {native} = 1 then tracked_version end, \
           tracked_in = case when {native} = 1 then tracked_in end, [key] = {}, \
           [columns] = {} where table_id = {}",
        quote::literal(key),
        i32::from(tracked.columns),
        tracked.id()
    )
}

/// Lets functions of a table be handed all rows, because changes were missed.
pub(crate) fn missed_because_sql(
    table_id: i32,
    functions: &[String],
    missed: &str,
) -> Result<String> {
    Ok(format!(
        "declare @missed nvarchar(400) = {};\n{}",
        quote::literal(missed),
        missed_sql(table_id, functions)?
    ))
}

/// Lets our tables follow a key whose columns were renamed. Returns whether that was all.
async fn follow_names(
    connection: &mut Connection,
    tracked: &Tracked,
    stored: &Stored,
) -> Result<bool> {
    let now = tracked.stored_key();
    let same = now.len() == stored.key.len()
        && now
            .iter()
            .zip(&stored.key)
            .all(|(a, b)| a.place == b.place && a.type_sql == b.type_sql);
    if !same {
        return Ok(false);
    }
    let mut tables = vec![tracked.log()];
    for function in functions(connection, tracked.id()).await? {
        tables.push(leases_name(&function, i64::from(tracked.id())));
    }
    for table in tables {
        if !exists(connection, &table).await? {
            continue;
        }
        for (new, old) in now
            .iter()
            .zip(&stored.key)
            .filter(|(a, b)| a.name != b.name)
        {
            let rename = format!(
                "exec sp_rename {}, {}, 'COLUMN'",
                quote::literal(&format!(
                    "changefeed.{table}.{}",
                    quote::identifier(&old.name)
                )),
                quote::literal(&new.name)
            );
            connection.batch(&rename).await?;
        }
    }
    Ok(true)
}

/// Makes the backlogs anew for another key.
async fn start_over(connection: &mut Connection, tracked: &Tracked) -> Result<()> {
    for function in functions(connection, tracked.id()).await? {
        let leases = leases_name(&function, i64::from(tracked.id()));
        connection
            .batch(&format!("drop table if exists changefeed.{leases}"))
            .await?;
        connection.batch(&tracked.leases_sql(&leases)?).await?;
    }
    Ok(())
}

/// All functions that watch a table.
async fn functions(connection: &mut Connection, table_id: i32) -> Result<Vec<String>> {
    let rows = connection
        .query(
            "select function_id from changefeed.watch where table_id = @P1",
            &[&table_id],
        )
        .await?;
    rows.iter().map(|row| row.text(0)).collect()
}

/// The function and the one-row view that count a backlog, for people and for autoscalers.
async fn ensure_counting(
    connection: &mut Connection,
    tracked: &Tracked,
    function_id: &str,
) -> Result<()> {
    if exists(connection, &format!("backlog_{function_id}")).await? {
        return Ok(());
    }
    let backlog = Backlog::new(tracked.clone(), function_id, 0, Vec::new());
    connection.batch(&backlog.count_sql()?).await?;
    connection.batch(&view_sql(function_id)?).await
}

pub(crate) fn view_sql(function_id: &str) -> Result<String> {
    fill(
        include_str!("sql/watch_view.sql"),
        &[("function_id", function_id)],
    )
}

async fn forget_counting(connection: &mut Connection, function_id: &str) -> Result<()> {
    connection
        .batch(&format!(
            "drop view if exists changefeed.backlog_{function_id}"
        ))
        .await?;
    connection
        .batch(&format!(
            "drop function if exists changefeed.count_{function_id}"
        ))
        .await
}

/// Registers a function, if it is new, and makes its tables, if they are missing.
pub(crate) async fn register(
    connection: &mut Connection,
    spec: &WatchSpec,
    watch: &Watch,
    tracked: &Tracked,
    columns: bool,
) -> Result<()> {
    let known = known(connection, &spec.name).await?;
    if known.is_none() && spec.existing {
        return Err(spec.name.unknown());
    }
    if let Some(known) = &known
        && let (Some(new), Some(old)) = (&spec.definition, &known.definition)
        && new != old
        && !spec.replace
    {
        return Err(spec.defined_already());
    }
    let same_id = connection
        .query(
            "select name from changefeed.watch \
             where function_id = convert(varchar(16), @P1) and name <> @P2",
            &[&watch.function_id, &spec.name.as_str()],
        )
        .await?;
    if let Some(row) = same_id.first() {
        return Err(words::watch_id_taken(&spec.name, row.take(0)?));
    }
    let leases = leases_name(&watch.function_id, watch.table_id);
    let has_leases = exists(connection, &leases).await?;
    if !has_leases {
        connection.batch(&tracked.leases_sql(&leases)?).await?;
    }
    if known.is_some() && !has_leases {
        tracing::warn!(
            watch = %watch.name, table = %watch.table,
            "the backlog of a watch was deleted, and is made again: the changes that waited in it are \
             lost; `changefeed watch reset --from beginning` hands over all rows"
        );
    }
    let store = match known.is_some() {
        true => known_watch_sql(spec, watch, columns)?,
        false => new_watch_sql(spec, watch, columns)?,
    };
    connection.batch(&store).await?;
    if known.is_none() || !has_leases {
        let came = format!(
            "update changefeed.watched_table set generation = generation + 1 where table_id = {}",
            watch.table_id
        );
        connection.batch(&came).await?;
    }
    connection
        .batch(include_str!("sql/watch_global_state.sql"))
        .await?;
    let missing = connection
        .execute(
            "insert into changefeed.global_state (function_id, table_id) \
             select @P1, @P2 where not exists (select 1 from changefeed.global_state s \
               where s.function_id = convert(varchar(16), @P1) and s.table_id = @P2)",
            &[&watch.function_id, &tracked.id()],
        )
        .await?;
    if missing > 0 && known.is_some() && has_leases {
        tracing::warn!(watch = %watch.name, table = %watch.table, "{}", words::WATCH_STATE_EMPTIED);
    }
    ensure_counting(connection, tracked, &watch.function_id).await
}

/// A definition and the changes per worker, as SQL.
fn settings_sql(spec: &WatchSpec) -> Result<(String, String)> {
    let definition = spec
        .definition
        .as_ref()
        .map(serde_json::to_string)
        .transpose()
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let per_worker = spec.max_changes_per_worker;
    Ok((
        quote::nullable(definition.as_deref()),
        per_worker.map_or("null".to_owned(), |n| n.to_string()),
    ))
}

pub(crate) fn known_watch_sql(spec: &WatchSpec, watch: &Watch, columns: bool) -> Result<String> {
    let (definition, per_worker) = settings_sql(spec)?;
    Ok(format!(
        "update changefeed.watch set definition = coalesce({definition}, definition), \
           [columns] = {}, \
           max_changes_per_worker = coalesce({per_worker}, max_changes_per_worker) \
         where function_id = {}",
        i32::from(columns),
        function_sql(&watch.function_id)
    ))
}

pub(crate) fn new_watch_sql(spec: &WatchSpec, watch: &Watch, columns: bool) -> Result<String> {
    let (definition, per_worker) = settings_sql(spec)?;
    Ok(format!(
        "insert into changefeed.watch \
           (name, function_id, table_id, definition, [columns], max_changes_per_worker, loading) \
         values ({}, {}, {}, {definition}, {}, coalesce({per_worker}, 1000), {})",
        quote::literal(spec.name.as_str()),
        function_sql(&watch.function_id),
        watch.table_id,
        i32::from(columns),
        match spec.from {
            WatchFrom::Beginning => "0",
            WatchFrom::Now => "null",
        }
    ))
}

/// What happened until now is for the functions that are there, and not for one that comes now.
pub(crate) async fn drain(
    connection: &mut Connection,
    tracked: &Tracked,
    watch: &Watch,
) -> Result<()> {
    let drained = hand_over(connection, tracked, watch).await;
    if drained.is_err() {
        // It may have been left in a snapshot.
        let usual = "if @@trancount > 0 rollback transaction; \
                     set transaction isolation level read committed";
        if let Err(error) = connection.batch(usual).await {
            tracing::debug!(%error, "a connection is lost");
        }
    }
    drained
}

async fn hand_over(connection: &mut Connection, tracked: &Tracked, watch: &Watch) -> Result<()> {
    for function in functions(connection, tracked.id()).await? {
        let other = Watch {
            function_id: function,
            ..watch.clone()
        };
        match Backlog::load(connection, &other).await {
            Ok(backlog) => return backlog.move_all(connection).await,
            // Its tables were deleted, or do not fit any more.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // Nobody is there to take it.
    send(connection, &forget_changes_sql(tracked)?)
        .await
        .map(drop)
}

pub(crate) fn forget_changes_sql(tracked: &Tracked) -> Result<String> {
    match tracked.way {
        // Some at a time, each a transaction of its own: every row is a lock until its end.
        Way::Trigger => fill(
            include_str!("sql/watch_forget.sql"),
            &[("batch", &FORGET.to_string()), ("log", &tracked.log())],
        ),
        Way::Native => Ok(format!(
            "update changefeed.watched_table set tracked_version = change_tracking_current_version(), \
               tracked_in = {1} where table_id = {0}",
            tracked.id(),
            tracked_in(tracked.id())
        )),
    }
}

/// Removes a function, and, once the triggers are settled, what notes the changes of its table if it was the
/// last.
pub(crate) async fn remove(
    connection: &mut Connection,
    watch: &Watch,
    triggers: &mut Triggers,
) -> Result<()> {
    let table_id = i32::try_from(watch.table_id).unwrap_or(-1);
    let gone = connection
        .execute(
            "delete from changefeed.watch where name = convert(varchar(100), @P1)",
            &[&watch.name.as_str()],
        )
        .await?;
    if gone == 0 {
        return Err(watch.name.unknown());
    }
    forget_counting(connection, &watch.function_id).await?;
    let leases = leases_name(&watch.function_id, watch.table_id);
    for statement in [
        format!("drop table if exists changefeed.{leases}"),
        format!(
            "delete from changefeed.global_state where function_id = {}",
            function_sql(&watch.function_id)
        ),
        format!(
            "update changefeed.watched_table set generation = generation + 1 \
             where table_id = {table_id}"
        ),
    ] {
        connection.batch(&statement).await?;
    }
    if !functions(connection, table_id).await?.is_empty() {
        return Ok(());
    }
    let stored = Stored::load(connection, table_id).await?;
    if stored.is_some_and(|stored| stored.way == Way::Trigger) {
        triggers.remove(table_id);
    }
    let last = format!("delete from changefeed.watched_table where table_id = {table_id}");
    connection.batch(&last).await
}

//! Giving numbers below the start to rows that are older than the feed.

use changefeed_core::{Backfill, Error, Feed, Result, Source, fill};

use crate::connection::Connection;
use crate::filter::Filter;
use crate::row::Cells;
use crate::session::Session;
use crate::source::{Column, StoredSource, Table};
use crate::{json, quote};

/// Tables up to this many rows (by the catalogue's count) are counted exactly.
const COUNT_EXACTLY: i64 = 1_000_000;

impl Session {
    pub(crate) async fn backfill_batch(&mut self, feed: &Feed, batch: usize) -> Result<Backfill> {
        if batch == 0 {
            return Err(Error::invalid("a backfill batch needs at least one row"));
        }
        let connection = &mut *self.connection;
        let Some(source) = StoredSource::load(connection, feed.id).await? else {
            return Err(Error::invalid(format!(
                "feed '{}' does not know where its rows are, so there is nothing to backfill",
                feed.name
            ))
            .advise("create feeds with --from TABLE or --rows TABLE"));
        };
        feed.require_shard_column(source.shards.count, source.shard_by.as_deref())?;
        let table = source.table(connection, feed).await?;
        begin(connection, feed, &table).await?;
        let sql = statement(&source, &table, feed.source.as_ref())?;
        let limit = i32::try_from(batch).unwrap_or(i32::MAX);
        let row = connection.one(&sql, &[&feed.id.0, &limit]).await?;
        if row.take(5)? {
            return Err(feed.no_room_for(&table.name));
        }
        Ok(Backfill::new(
            row.take(1)?,
            row.take(2)?,
            row.take(3)?,
            row.take(4)?,
        ))
    }
}

/// Writes the state row of a backfill that has not begun.
async fn begin(connection: &mut Connection, feed: &Feed, table: &Table) -> Result<()> {
    let begun = connection
        .query(
            "select feed_id from changefeed.backfill where feed_id = @P1",
            &[&feed.id.0],
        )
        .await?;
    if !begun.is_empty() {
        return Ok(());
    }
    let total = estimate(connection, table).await?;
    let room: i64 = connection
        .one(
            "select min(l.start - l.low) from changefeed.shard s \
             cross apply (select isnull(s.start, s.last_change_sequence_number) as start) b \
             cross apply (select b.start, (select max(v.number) from \
                 (values (b.start - convert(bigint, 1000000000000000)), (s.trimmed_to), (convert(bigint, 0))) \
                 v(number)) as low) l \
             where s.feed_id = @P1",
            &[&feed.id.0],
        )
        .await?
        .maybe(0)?
        .unwrap_or_default();
    if total > room {
        return Err(feed.no_room_for(&table.name));
    }
    connection
        .execute(
            "insert into changefeed.backfill (feed_id, total) \
             select @P1, @P2 where not exists \
             (select 1 from changefeed.backfill with (updlock, holdlock) where feed_id = @P1)",
            &[&feed.id.0, &total],
        )
        .await?;
    Ok(())
}

/// How many rows a table has: exactly, unless counting would take long.
pub(crate) async fn estimate(connection: &mut Connection, table: &Table) -> Result<i64> {
    let estimate: Option<i64> = connection
        .one(
            "select convert(bigint, sum(p.rows)) from sys.partitions p \
             where p.object_id = @P1 and p.index_id in (0, 1)",
            &[&table.id],
        )
        .await?
        .maybe(0)?;
    if let Some(estimate) = estimate.filter(|rows| *rows >= COUNT_EXACTLY) {
        return Ok(estimate);
    }
    let counted = format!("select count_big(*) from {}", table.sql);
    connection.one(&counted, &[]).await?.take(0)
}

/// Variables for the key of the last row done: their declarations, the statement that reads them
/// from a JSON array of texts in `@last`, and the condition that goes on after them.
pub(crate) struct Resume {
    pub(crate) declare: String,
    pub(crate) position: String,
    pub(crate) condition: String,
}

pub(crate) fn resume_after(columns: &[Column], alias: &str) -> Resume {
    let variables: Vec<String> = (0..columns.len()).map(|n| format!("@key{n}")).collect();
    let declare: Vec<String> = columns
        .iter()
        .zip(&variables)
        .map(|(column, variable)| {
            // A variable has the code page of the database, whatever its type: the text stays a text.
            let kind = match column.collation {
                Some(_) => "nvarchar(4000)",
                None => &column.type_sql,
            };
            format!("declare {variable} {kind};")
        })
        .collect();
    let position: Vec<String> = columns
        .iter()
        .zip(&variables)
        .enumerate()
        .map(|(n, (column, variable))| {
            let text = format!("json_value(@last, '$[{n}]')");
            match column.collation {
                Some(_) => format!("set {variable} = {text};"),
                None => format!("set {variable} = {};", json::from_text(column, &text)),
            }
        })
        .collect();
    let values: Vec<String> = columns
        .iter()
        .zip(variables)
        .map(|(column, variable)| match column.collation {
            Some(_) => json::from_text(column, &variable),
            None => variable,
        })
        .collect();
    // Row values cannot be compared here. Whoever uses this says `option (recompile)`: only a plan for
    // these very values knows that there is a last row, and begins at it instead of at the beginning.
    let names: Vec<String> = columns
        .iter()
        .map(|c| format!("{alias}.{}", quote::identifier(&c.name)))
        .collect();
    let turns: Vec<String> = (0..names.len())
        .map(|n| {
            let mut parts: Vec<String> = (0..n)
                .map(|k| format!("{} = {}", names[k], values[k]))
                .collect();
            parts.push(format!("{} > {}", names[n], values[n]));
            format!("({})", parts.join(" and "))
        })
        .collect();
    // What the index is entered by.
    let enter = match turns.len() {
        0 | 1 => String::new(),
        _ => format!("{} >= {} and ", names[0], values[0]),
    };
    Resume {
        declare: declare.join("\n"),
        position: position.join("\n"),
        condition: format!("(@last is null or {enter}({}))", turns.join(" or ")),
    }
}

/// One batch as one statement.
pub(crate) fn statement(
    source: &StoredSource,
    table: &Table,
    shown: Option<&Source>,
) -> Result<String> {
    let shard = table.shard_expression("t", source.shard_by.as_deref(), source.shards)?;
    let own = Column::plain(
        source.change_id_column.as_deref().unwrap_or("change_id"),
        "bigint",
    );
    let (columns, ids, forget) = if source.captured {
        (
            table.key.as_slice(),
            include_str!("sql/backfill_captured.sql"),
            include_str!("sql/backfill_forget.sql"),
        )
    } else {
        (
            std::slice::from_ref(&own),
            include_str!("sql/backfill_joined.sql"),
            "",
        )
    };
    let filter = shown.map(|shown| Filter::of(table, shown)).transpose()?;
    let (image, here) = match filter {
        Some(filter) if source.images => (filter.image_if_here("t"), "where p.image is not null "),
        _ => ("null".to_owned(), ""),
    };
    let names: Vec<String> = columns
        .iter()
        .map(|c| format!("t.{}", quote::identifier(&c.name)))
        .collect();
    let resume = resume_after(columns, "t");
    let (change_id, condition) = if source.captured {
        ("null".to_owned(), resume.condition)
    } else {
        let id = &names[0];
        (
            id.clone(),
            format!("{id} is not null and {}", resume.condition),
        )
    };
    fill(
        include_str!("sql/backfill.sql"),
        &[
            ("declare", &resume.declare),
            ("position", &resume.position),
            ("shard", &shard),
            ("key", &json::array(columns, "t")),
            ("change_id", &change_id),
            ("image", &image),
            ("table", &table.sql),
            ("resume", &condition),
            ("order", &names.join(", ")),
            ("ids", &fill(ids, &[("here", here)])?),
            ("forget", forget),
        ],
    )
}

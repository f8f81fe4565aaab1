//! `changefeed feed list`

use changefeed::{Changefeed, Feed, Result, Source, TableName};

use crate::output::Out;

pub(super) async fn run(db: &Changefeed, out: &mut Out) -> Result<()> {
    let feeds = db.feeds().await?;
    if out.is_json() {
        return feeds.iter().try_for_each(|f| out.object(f.definition()));
    }
    if feeds.is_empty() {
        return out.line("no feeds yet; `changefeed feed create NAME --from TABLE` makes one");
    }
    let rows = feeds
        .iter()
        .map(|feed| {
            let feed = feed.definition();
            let source = match &feed.source {
                Some(source @ Source::Captured { table, .. }) => captured(table, source),
                Some(Source::Joined {
                    table,
                    change_id_column,
                    ..
                }) => {
                    format!("rows in {table} by {change_id_column}")
                }
                Some(Source::Events) => "events of triggers".to_owned(),
                Some(Source::Ulid {
                    table, ulid_column, ..
                }) => {
                    format!("{table} by the ULIDs of {ulid_column}")
                }
                None => String::new(),
            };
            vec![
                feed.id.to_string(),
                feed.name.to_string(),
                shards(feed),
                source,
                feed.comment.clone().unwrap_or_default(),
            ]
        })
        .collect();
    out.table(&["ID", "NAME", "SHARDS", "ROWS", "COMMENT"], rows)
}

/// The shards that changes are added to, however many: `0..999` where they are dense, as many as fit otherwise.
fn shards(feed: &Feed) -> String {
    const FEW: usize = 8;
    let numbers: Vec<i16> = feed.open_shards().map(|s| s.shard.0).collect();
    let closed = match feed.shards.len() - numbers.len() {
        0 => String::new(),
        closed => format!(" ({closed} closed)"),
    };
    let open = match numbers.as_slice() {
        [first, .., last]
            if numbers.len() > FEW && usize::from(last.abs_diff(*first)) + 1 == numbers.len() =>
        {
            format!("{first}..{last}")
        }
        numbers => {
            let shown: Vec<String> = numbers.iter().take(FEW).map(ToString::to_string).collect();
            let more = if numbers.len() > FEW { ",…" } else { "" };
            format!("{}{more}", shown.join(","))
        }
    };
    open + &closed
}

fn captured(table: &TableName, source: &Source) -> String {
    let mut text = format!("captured from {table}");
    if let Some(when) = source.when() {
        text.push_str(&format!(" when {when}"));
    }
    match source.columns() {
        Some(columns) => text.push_str(&format!(", {}", columns.join(", "))),
        None if source.keeps_images() => text.push_str(" with images"),
        None => {}
    }
    text
}

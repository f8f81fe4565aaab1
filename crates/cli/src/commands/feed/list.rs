//! `changefeed feed list`

use changefeed::{Changefeed, Result, Source};

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
            let shards: Vec<String> = feed.shards.iter().map(|s| s.shard.to_string()).collect();
            let source = match &feed.source {
                Some(Source::Captured { table, .. }) => format!("captured from {table}"),
                Some(Source::Joined {
                    table,
                    change_id_column,
                    ..
                }) => {
                    format!("rows in {table} by {change_id_column}")
                }
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
                shards.join(","),
                source,
                feed.comment.clone().unwrap_or_default(),
            ]
        })
        .collect();
    out.table(&["ID", "NAME", "SHARDS", "ROWS", "COMMENT"], rows)
}

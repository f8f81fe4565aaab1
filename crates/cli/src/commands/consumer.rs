//! `changefeed consumer`

use changefeed::{After, Cursor, Error, Result};

use crate::args::Consumer;
use crate::connect;
use crate::output::{Out, human_ms};

pub(crate) async fn run(database: &str, args: Consumer, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Consumer::List => {
            let consumers = db.consumers().await?;
            if out.is_json() {
                return consumers.iter().try_for_each(|c| out.object(c));
            }
            if consumers.is_empty() {
                return out.line("no consumers");
            }
            table(&consumers, out)
        }
        Consumer::Set {
            name,
            feed,
            shard,
            cursor,
        } => {
            let feed = db.feed(feed.as_str()).await?;
            // Refuses a cursor that no reader of this feed could have.
            feed.read(shard, After::Cursor(cursor), 1).await?;
            feed.seek(&name, shard, cursor).await?;
            out.say(format!(
                "consumer {name} of {}/{shard} stands at {cursor}",
                feed.name()
            ))
        }
        Consumer::Drop { name, feed } => {
            let feed = db.feed(feed.as_str()).await?;
            match feed.drop_consumer(&name).await? {
                0 => Err(Error::not_found(format!(
                    "feed '{}' has no consumer '{name}'",
                    feed.name()
                ))
                .advise("`changefeed consumer list` shows the consumers")),
                _ => out.say(format!("consumer {name} of {} is forgotten", feed.name())),
            }
        }
    }
}

/// Consumers as a table for a person.
pub(crate) fn table(consumers: &[changefeed::Consumer], out: &mut Out) -> Result<()> {
    let rows = consumers
        .iter()
        .map(|c| {
            vec![
                c.name.to_string(),
                format!("{}/{}", c.feed, c.shard),
                c.cursor.to_string(),
                behind(c),
                human_ms(c.lag_ms),
                format!("{} ago", human_ms(c.idle_ms)),
            ]
        })
        .collect();
    out.table(
        &[
            "CONSUMER",
            "SHARD",
            "CURSOR",
            "BEHIND",
            "SINCE",
            "LAST SEEN",
        ],
        rows,
    )
}

/// How many changes a consumer has not read. Of ULIDs only the time is known.
fn behind(consumer: &changefeed::Consumer) -> String {
    match consumer.cursor {
        _ if consumer.expired => "expired".to_owned(),
        Cursor::Number(_) => consumer.lag_changes.to_string(),
        _ => "-".to_owned(),
    }
}

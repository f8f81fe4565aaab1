//! `changefeed feed read`

use changefeed::{Changefeed, Result};

use crate::args::ReadFeed;
use crate::output::Out;

pub(super) async fn run(db: &Changefeed, args: ReadFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let feed = feed.expecting(args.incarnation);
    let page = if args.wait.is_zero() {
        feed.read(args.shard, args.after, args.limit).await?
    } else {
        feed.poll(args.shard, args.after, args.limit, args.wait)
            .await?
    };
    let name = &feed.definition().name;
    for change in &page.changes {
        out.change(name, args.shard, change)?;
    }
    if page.changes.is_empty() {
        out.say("nothing to read")?;
    }
    out.say(format!("next: --after {}", page.next))?;
    if page.closed {
        let mut shards = feed.definition().open_shards();
        let next = shards.next().map_or_else(String::new, |s| {
            format!("; it goes on in shard {} and after it", s.shard)
        });
        out.say(format!(
            "shard {} is closed and was read to its end{next}",
            args.shard
        ))?;
    } else if !page.more {
        super::tell_if_unswept(db, name, out.is_json()).await;
    }
    Ok(())
}

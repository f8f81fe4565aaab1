//! `changefeed feed backfill`

use changefeed::{Changefeed, Result};

use crate::args::BackfillFeed;
use crate::output::{Out, progress_bar};

pub(super) async fn run(db: &Changefeed, args: BackfillFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let bar = progress_bar(out);
    let mut added = 0;
    let last = loop {
        let step = feed.backfill(args.batch).await?;
        added += step.added;
        bar.set_length(step.total.max(step.done));
        bar.set_position(step.done);
        if step.finished {
            break step;
        }
    };
    bar.finish_and_clear();
    if out.is_json() {
        return out.object(&changefeed::Backfill { added, ..last });
    }
    if added == 0 {
        return out.line(format!(
            "nothing left to backfill; {} rows were done before",
            last.done
        ));
    }
    out.line(format!(
        "{added} rows backfilled; read them with --after first"
    ))
}

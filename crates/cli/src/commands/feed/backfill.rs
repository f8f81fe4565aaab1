//! `changefeed feed backfill`

use changefeed::{Changefeed, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::BackfillFeed;
use crate::output::Out;

pub(super) async fn run(db: &Changefeed, args: BackfillFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let bar = if out.is_terminal() {
        bar()
    } else {
        ProgressBar::hidden()
    };
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

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{bar:40} {human_pos}/{human_len} rows  {per_sec}  {eta} left",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

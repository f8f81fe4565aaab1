//! `changefeed deliver`

use changefeed::{Result, deliver, require_current, unique_name};

use crate::args::Deliver;
use crate::connect;
use crate::output::Out;
use crate::signals;

pub(crate) async fn run(database: &str, args: Deliver, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let shutdown = signals::shutdown()?;
    out.say("delivering events until stopped")?;
    let dispatch = args.dispatch(&unique_name());
    let totals = deliver(&db, args.webhooks()?, dispatch, shutdown).await?;
    if out.is_json() {
        return out.object(&totals);
    }
    out.line(format!(
        "{} delivered, {} attempts to retry, {} dead letters",
        totals.delivered, totals.retried, totals.dead
    ))
}

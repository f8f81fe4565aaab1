//! `changefeed recover`

use changefeed::Result;
use serde_json::json;

use crate::args::Recover;
use crate::connect;
use crate::output::{Out, confirm};

pub(crate) async fn run(database: &str, args: Recover, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let before = db.incarnation().await?;
    confirm(
        "Readers that say which life of the database their cursors belong to are refused from now on, until they \
         begin again. Do this after the database was restored from a backup, and only then.",
        args.yes,
    )?;
    let now = db.recover().await?;
    if out.is_json() {
        return out.object(&json!({ "incarnation": now, "before": before }));
    }
    out.line(format!("incarnation {now} begins; {before} has ended"))
}

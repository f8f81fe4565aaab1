//! `changefeed erase`

use changefeed::{Erased, Result};

use crate::args::Erase;
use crate::connect;
use crate::output::{Out, confirm};

pub(crate) async fn run(database: &str, args: Erase, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let table = db.table(&args.table)?;
    let key: Result<Vec<(String, String)>> = args
        .key
        .iter()
        .map(|given| {
            let (column, value) = given.split_once('=').ok_or_else(|| {
                crate::usage(format!("'{given}' is no column and its value"))
                    .advise("write --key COLUMN=VALUE")
            })?;
            Ok((db.column(column.trim())?, value.to_owned()))
        })
        .collect();
    let key = key?;
    confirm(
        &format!("This empties what feeds and events have kept of that row of {table}, for ever."),
        args.yes,
    )?;
    let erased = db.store().erase(&table, &key).await?;
    if out.is_json() {
        return out.object(&erased);
    }
    if erased == Erased::default() {
        return out.line(format!(
            "nothing is kept of a row of {table} with that key; write its values as `key` shows them"
        ));
    }
    out.line(format!(
        "emptied {} changes and {} events; that they happened is still known",
        erased.changes, erased.events
    ))?;
    if erased.pending > 0 {
        out.line(format!(
            "{} events are still to be delivered: do this again when they are",
            erased.pending
        ))?;
    }
    Ok(())
}

//! `changefeed uninstall`

use changefeed::{Result, SchemaState};

use crate::args::Uninstall;
use crate::connect;
use crate::output::{Out, confirm};

pub(crate) async fn run(database: &str, args: Uninstall, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    if db.schema().await? == SchemaState::Missing {
        return out.say("changefeed is not installed in this database; nothing to remove");
    }
    confirm(
        "This removes every feed, number and cursor of changefeed from the database, and its \
         triggers from your tables.",
        args.yes,
    )?;
    db.uninstall().await?;
    out.say("changefeed is removed from the database")
}

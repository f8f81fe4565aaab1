//! `changefeed migrate`

use changefeed::Result;

use crate::args::Migrate;
use crate::output::Out;

pub(crate) async fn run(database: &str, args: Migrate, out: &mut Out) -> Result<()> {
    if args.print {
        return out.text(changefeed::migration_script(database)?);
    }
    let done = changefeed::connect(database).await?.migrate().await?;
    if out.is_json() {
        return out.object(&done);
    }
    out.line(match (done.from, done.to) {
        (0, to) => format!("installed changefeed schema {to}"),
        (from, to) if from == to => format!("changefeed schema {to} is already there"),
        (from, to) => format!("upgraded changefeed schema from {from} to {to}"),
    })
}

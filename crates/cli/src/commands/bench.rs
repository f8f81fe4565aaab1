//! `changefeed bench`

use changefeed::Result;

use crate::args::Bench;
use crate::output::Out;

pub(crate) async fn run(_database: &str, args: Bench, out: &mut Out) -> Result<()> {
    let Bench::Feeds { .. } = args;
    out.line("")
}

//! `changefeed top`

use changefeed::Result;

use crate::args::Top;
use crate::output::Out;

pub(crate) async fn run(_: &str, _: Top, _: &mut Out) -> Result<()> {
    Ok(())
}

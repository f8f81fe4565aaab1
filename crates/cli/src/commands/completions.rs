//! `changefeed completions`

use changefeed::Result;
use clap::CommandFactory;

use crate::args::Args;
use crate::output::Out;

pub(crate) fn run(shell: clap_complete::Shell, out: &mut Out) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "changefeed", &mut script);
    out.text(String::from_utf8_lossy(&script))
}

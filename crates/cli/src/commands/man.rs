//! `changefeed man`

use std::path::Path;

use changefeed::{Error, Result};
use clap::CommandFactory;

use crate::args::Args;
use crate::output::Out;

/// Prints the page of the program, or writes one for each command.
pub(crate) fn run(directory: Option<&Path>, out: &mut Out) -> Result<()> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Args::command().disable_help_subcommand(true))
            .render(&mut page)
            .map_err(|e| Error::invalid("the page cannot be written").caused_by(e))?;
        return out.text(String::from_utf8_lossy(&page));
    };
    clap_mangen::generate_to(Args::command(), directory).map_err(|e| {
        Error::invalid(format!("'{}' cannot be written to", directory.display())).caused_by(e)
    })
}

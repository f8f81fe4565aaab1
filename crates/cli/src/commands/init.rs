//! `changefeed init`

use std::io::Write;
use std::path::Path;

use changefeed::{Error, Kind, Result};

use crate::args::Init;
use crate::config::{DEFAULT_PATH, EXAMPLE};
use crate::output::Out;

pub(crate) fn run(path: Option<&Path>, args: Init, out: &mut Out) -> Result<()> {
    if args.print {
        return out.text(EXAMPLE);
    }
    let path = path.unwrap_or(Path::new(DEFAULT_PATH));
    // An existing file is never overwritten.
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(EXAMPLE.as_bytes()));
    match written {
        Ok(()) => out.say(format!(
            "{} written: every key with its default",
            path.display()
        )),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::new(
            Kind::AlreadyExists,
            format!("there is already a '{}'", path.display()),
        )
        .advise("`changefeed init --print` shows every key with its default")),
        Err(e) => Err(Error::new(
            Kind::Unavailable,
            format!("'{}' cannot be written", path.display()),
        )
        .caused_by(e)),
    }
}

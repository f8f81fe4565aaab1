//! A process that delivers, seen from outside.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use changefeed::{Error, Kind, Result};

/// `changefeed deliver` in a process of its own, which ends with this value.
pub(crate) struct Process(Child);

impl Process {
    /// Starts one.
    pub(crate) fn deliver(program: &Path, url: &str) -> Result<Self> {
        Command::new(program)
            .arg("deliver")
            // Not an argument: those are for everybody to see, and it may hold a password.
            .env("CHANGEFEED_DB", url)
            .env("RUST_LOG", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Process)
            .map_err(|e| {
                let program = program.display();
                Error::new(Kind::Unavailable, format!("cannot run {program} deliver")).caused_by(e)
            })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(Error::new(
                Kind::Database,
                "`changefeed deliver` ended in the middle of the measure",
            )
            .advise("run `changefeed deliver` with the same --db to see why")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What it held is removed with the scratch tables.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! A directory of this machine, as an object store.
//!
//! An object is written under another name, brought to the disk, and then linked to its own: a link fails if the name is
//! taken, and whoever reads never sees half an object.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use changefeed_core::{Result, crash_point};

use super::{Listed, ObjectStore};
use crate::sinks::file;

/// What a process that was killed has left is removed after this time.
const LEFT: Duration = Duration::from_secs(3600);

/// A directory.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// A directory, which must be in one of these, or be one of them. It is made if it does not exist.
    pub fn new(path: &str, allowed: &[PathBuf]) -> Result<Self> {
        let path = PathBuf::from(path);
        file::check_allowed(&path, allowed)?;
        Ok(Directory { path })
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn list(&self, folder: &str, after: Option<&str>) -> Result<Listed, String> {
        let (folder, after) = (self.path.join(folder), after.map(str::to_owned));
        blocking(move || {
            let entries = match fs::read_dir(&folder) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
                entries => entries?.collect::<io::Result<Vec<_>>>()?,
            };
            let mut names = Vec::new();
            for entry in entries {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(NEW) {
                    remove_leftover(&entry.path());
                } else if after.as_ref().is_none_or(|after| name > *after) {
                    names.push(name);
                }
            }
            names.sort_unstable();
            Ok(Listed { names, more: false })
        })
        .await
    }

    async fn get(&self, folder: &str, name: &str) -> Result<Bytes, String> {
        let path = self.path.join(folder).join(name);
        blocking(move || fs::read(&path).map(Bytes::from)).await
    }

    async fn create(&self, folder: &str, name: &str, content: Bytes) -> Result<bool, String> {
        let (root, folder, name) = (self.path.clone(), self.path.join(folder), name.to_owned());
        blocking(move || create(&root, &folder, &name, &content)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// How names of what is being written begin.
const NEW: &str = ".new-";

fn create(root: &Path, folder: &Path, name: &str, content: &[u8]) -> io::Result<bool> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if !folder.is_dir() {
        fs::create_dir_all(folder)?;
        // A directory is lost with the machine's power until the one above it is on the disk.
        for above in folder.ancestors().skip(1) {
            File::open(above)?.sync_all()?;
            if above == root {
                break;
            }
        }
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("{NEW}{}-{count}", std::process::id()));
    crash_point("object.before");
    let written = (|| {
        let mut file = File::create(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        crash_point("object.written");
        match fs::hard_link(&new, folder.join(name)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e),
        }
    })();
    crash_point("object.linked");
    fs::remove_file(&new).or_else(|e| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    })?;
    if written.as_ref().is_ok_and(|created| *created) {
        File::open(folder)?.sync_all()?;
    }
    written
}

/// Somebody who is still at it would have to begin again, which does no harm.
fn remove_leftover(path: &Path) {
    let age = fs::metadata(path).and_then(|found| found.modified()).ok();
    if age
        .and_then(|at| at.elapsed().ok())
        .is_some_and(|age| age > LEFT)
    {
        let _ = fs::remove_file(path);
    }
}

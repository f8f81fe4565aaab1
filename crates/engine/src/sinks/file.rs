//! A file per shard, one message per line. The last whole line says what the file holds.
//!
//! Every append compares that line with what the pusher believes, under a lock on `FILE.lock`. So an instance that
//! was stopped and wakes up after another has taken over finds another line there, and writes nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{Cursor, Error, Result, fill};

use super::destination::{Appended, Destination, Held, Lane, Mark, Message};
use super::formats::place_of;

/// How often a lock that another process holds is tried.
const AGAIN: Duration = Duration::from_millis(10);

/// Appends to files.
#[derive(Debug, Clone)]
pub struct Files {
    path: String,
    patience: Duration,
}

impl Files {
    /// A template for the path of the file of a shard. It must be in one of these directories.
    pub fn new(path: &str, patience: Duration, allowed: &[PathBuf]) -> Result<Self> {
        let parent = Path::new(path).parent().unwrap_or(Path::new("."));
        check_allowed(parent, allowed)?;
        if !parent.as_os_str().is_empty() && !parent.is_dir() {
            return Err(Error::invalid(format!(
                "the directory of {path} does not exist"
            )));
        }
        Ok(Files {
            path: path.to_owned(),
            patience,
        })
    }

    fn path(&self, lane: &Lane) -> Result<PathBuf> {
        let shard = lane.shard.to_string();
        let values = [
            ("feed", lane.feed.as_str()),
            ("shard", shard.as_str()),
            ("subscription", lane.subscription.as_str()),
        ];
        fill(&self.path, &values).map(PathBuf::from)
    }
}

#[async_trait]
impl Destination for Files {
    async fn resume(&self, lane: &Lane) -> Result<Held, String> {
        let (path, lane) = (self.path(lane).map_err(|e| e.to_string())?, lane.clone());
        let patience = self.patience;
        let looked = tokio::task::spawn_blocking(move || {
            let _lock = lock(&path, patience)?;
            let end = End::find(&path)?;
            Ok::<_, io::Error>(end.held(&lane))
        });
        looked
            .await
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())
    }

    async fn append(&self, lane: &Lane, after: Held, batch: &[Message]) -> Appended {
        let Some(last) = batch.last().map(|message| message.cursor) else {
            return Appended::All(after);
        };
        let mut lines = Vec::with_capacity(batch.iter().map(|m| m.body.len() + 1).sum());
        for message in batch {
            lines.extend_from_slice(&message.body);
            lines.push(b'\n');
        }
        let (path, lane, patience) = (self.path(lane), lane.clone(), self.patience);
        let appended = tokio::task::spawn_blocking(move || {
            let path = path.map_err(io::Error::other)?;
            let _lock = lock(&path, patience)?;
            let mut end = End::find(&path)?;
            if !end.follows(after, &lane) {
                return Ok(Appended::Conflict);
            }
            end.file.set_len(end.length)?;
            end.file.seek(SeekFrom::Start(end.length))?;
            changefeed_core::crash_point("file.before");
            // In two parts in tests that kill us in between.
            let (one, two) = lines.split_at(lines.len() / 2);
            end.file.write_all(one)?;
            changefeed_core::crash_point("file.within");
            end.file.write_all(two)?;
            end.file.sync_data()?;
            changefeed_core::crash_point("file.after");
            let token = end.length + lines.len() as u64;
            let mark = Mark {
                cursor: last,
                token,
            };
            Ok::<_, io::Error>(Appended::All(Held::Upto(mark)))
        });
        match appended.await {
            Ok(Ok(appended)) => appended,
            Ok(Err(error)) => Appended::Unavailable(error.to_string()),
            Err(error) => Appended::Unavailable(error.to_string()),
        }
    }
}

/// Refuses a directory that is not one of these, nor in one of them. It may still have to be made.
pub(super) fn check_allowed(directory: &Path, allowed: &[PathBuf]) -> Result<()> {
    let real = |path: &Path| {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        path.canonicalize()
    };
    let shown = directory.display();
    let found = real(directory).or_else(|e| match (directory.parent(), directory.file_name()) {
        // A link that leads nowhere would be followed later.
        (Some(parent), Some(name)) if directory.symlink_metadata().is_err() => {
            real(parent).map(|parent| parent.join(name))
        }
        _ => Err(e),
    });
    let found = found.map_err(|e| {
        Error::invalid(format!("the directory {shown} cannot be used")).caused_by(e)
    })?;
    if !allowed
        .iter()
        .any(|dir| real(dir).is_ok_and(|dir| found.starts_with(dir)))
    {
        return Err(Error::new(
            changefeed_core::Kind::Permission,
            format!("subscriptions may not write to {shown} on this machine"),
        )
        .advise(format!(
            "start `changefeed serve --allow-files {}`",
            found.display()
        )));
    }
    Ok(())
}

/// Where a file ends.
struct End {
    file: File,
    /// Up to and with the last line break.
    length: u64,
    /// What the last whole line is about.
    place: Option<(u32, Cursor)>,
}

impl End {
    fn find(path: &Path) -> io::Result<End> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let total = file.metadata()?.len();
        // Backwards, until there are two line breaks or everything was read.
        let (mut from, mut tail) = (total, Vec::new());
        let breaks = |tail: &[u8]| tail.iter().filter(|byte| **byte == b'\n').count();
        while from > 0 && breaks(&tail) < 2 {
            let step = from.min(64 * 1024 + tail.len() as u64);
            from -= step;
            file.seek(SeekFrom::Start(from))?;
            let mut piece = vec![0; usize::try_from(step).map_err(io::Error::other)?];
            file.read_exact(&mut piece)?;
            piece.append(&mut tail);
            tail = piece;
        }
        let Some(last) = tail.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(End {
                file,
                length: 0,
                place: None,
            });
        };
        let begin = tail[..last]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let place = place_of(&tail[begin..last]).ok_or_else(|| {
            io::Error::other(format!(
                "the last line of {} is not a message of a subscription; move the file away",
                path.display()
            ))
        })?;
        Ok(End {
            file,
            length: from + last as u64 + 1,
            place: Some(place),
        })
    }

    fn held(&self, lane: &Lane) -> Held {
        match self.place {
            Some((epoch, cursor)) if epoch == lane.epoch => Held::Upto(Mark {
                cursor,
                token: self.length,
            }),
            _ => Held::Nothing,
        }
    }

    /// Whether a batch may come here.
    fn follows(&self, after: Held, lane: &Lane) -> bool {
        match (after, self.place) {
            (Held::Upto(mark), Some(place)) => {
                place == (lane.epoch, mark.cursor) && mark.token == self.length
            }
            (Held::Upto(_), None) => false,
            (_, None) => true,
            (_, Some((epoch, _))) => epoch < lane.epoch,
        }
    }
}

/// Holds the lock of a file until it is dropped. A process that is stopped in this moment keeps it until it is
/// continued or killed.
#[cfg(unix)]
fn lock(path: &Path, patience: Duration) -> io::Result<File> {
    use rustix::fs::{FlockOperation, flock};

    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)?;
    let until = Instant::now() + patience;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(AGAIN);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::other(format!(
                    "another process holds the lock of {}",
                    path.display()
                )));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(not(unix))]
fn lock(path: &Path, _: Duration) -> io::Result<File> {
    let _ = (path, AGAIN, Instant::now());
    Err(io::Error::other(
        "files of subscriptions need a Unix system",
    ))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use changefeed_core::ShardId;

    use super::*;

    fn lane(epoch: u32) -> Lane {
        Lane {
            subscription: "out".to_owned(),
            feed: "orders".parse().unwrap(),
            shard: ShardId(1),
            epoch,
        }
    }

    fn messages(epoch: u32, numbers: std::ops::RangeInclusive<i64>) -> Vec<Message> {
        numbers
            .map(|n| Message {
                cursor: Cursor::Number(n),
                id: format!("out/1/{epoch}/{n}"),
                key: String::new(),
                subject: None,
                headers: Vec::new(),
                body: Bytes::from(format!("{{\"epoch\":{epoch},\"cursor\":\"{n}\"}}")),
            })
            .collect()
    }

    fn files(dir: &tempfile::TempDir) -> Files {
        let path = dir.path().join("{feed}-{shard}.ndjson");
        let allowed = [dir.path().to_owned()];
        Files::new(path.to_str().unwrap(), Duration::from_millis(200), &allowed).unwrap()
    }

    fn held(appended: Appended) -> Held {
        match appended {
            Appended::All(held) => held,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn only_the_one_who_knows_the_end_appends() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir);
        assert_eq!(files.resume(&lane(0)).await.unwrap(), Held::Nothing);
        let batch = messages(0, 1..=3);
        let after = held(files.append(&lane(0), Held::Nothing, &batch).await);
        assert_eq!(files.resume(&lane(0)).await.unwrap(), after);
        // A zombie that knows an older end, and one that knows none.
        let zombie = files.append(&lane(0), Held::Nothing, &batch).await;
        assert!(matches!(zombie, Appended::Conflict), "{zombie:?}");
        let next = held(files.append(&lane(0), after, &messages(0, 4..=5)).await);
        let zombie = files.append(&lane(0), after, &messages(0, 4..=5)).await;
        assert!(matches!(zombie, Appended::Conflict), "{zombie:?}");
        // A replay begins behind everything; who works on the epoch before is late.
        assert_eq!(files.resume(&lane(1)).await.unwrap(), Held::Nothing);
        held(
            files
                .append(&lane(1), Held::Nothing, &messages(1, 1..=2))
                .await,
        );
        let zombie = files.append(&lane(0), next, &messages(0, 6..=6)).await;
        assert!(matches!(zombie, Appended::Conflict), "{zombie:?}");
        let text = std::fs::read_to_string(dir.path().join("orders-1.ndjson")).unwrap();
        let places: Vec<_> = text
            .lines()
            .map(|l| place_of(l.as_bytes()).unwrap())
            .collect();
        let expected = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2)];
        assert_eq!(places, expected.map(|(e, n)| (e, Cursor::Number(n))));
    }

    #[tokio::test]
    async fn half_a_line_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(&dir);
        held(
            files
                .append(&lane(0), Held::Nothing, &messages(0, 1..=2))
                .await,
        );
        let path = dir.path().join("orders-1.ndjson");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"cursor\":\"3").unwrap();
        let after = files.resume(&lane(0)).await.unwrap();
        assert!(matches!(after, Held::Upto(mark) if mark.cursor == Cursor::Number(2)));
        held(files.append(&lane(0), after, &messages(0, 3..=3)).await);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn only_allowed_directories_are_written_to() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let allowed = [dir.path().to_owned()];
        let wait = Duration::ZERO;
        for path in [other.path().join("x"), dir.path().join("..").join("x")] {
            let error = Files::new(path.to_str().unwrap(), wait, &allowed).unwrap_err();
            assert_eq!(error.kind(), changefeed_core::Kind::Permission);
        }
    }
}

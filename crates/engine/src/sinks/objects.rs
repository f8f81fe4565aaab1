//! An object per batch, in a directory or in an object store.
//!
//! An object is named by the cursor that it begins after, and it is created only if there is none of that name. Two
//! pushers that believe in the same position compete for the same name, so one of them creates it and the other
//! learns of a conflict. The newest object says where the shard stands: its last message has the position.

mod contents;
mod directory;
mod names;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "s3")]
mod s3;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use changefeed_core::{Container, Cursor, Result};

use super::destination::{Appended, Destination, Held, Lane, Mark, Message};
pub use directory::Directory;
use names::Name;
#[cfg(feature = "s3")]
pub use s3::S3;

/// What one object may hold. A store takes more, but a reader should not have to.
const MOST_BYTES: usize = 64 << 20;

/// Where objects are kept. Errors say that it is away.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// Names in a folder that come after another one, in order: all of them, or at least the first few hundred.
    async fn list(&self, folder: &str, after: Option<&str>) -> Result<Listed, String>;

    /// The content of an object.
    async fn get(&self, folder: &str, name: &str) -> Result<Bytes, String>;

    /// Creates an object as a whole. False if there is one of that name.
    async fn create(&self, folder: &str, name: &str, content: Bytes) -> Result<bool, String>;
}

/// Some names of a folder.
#[derive(Debug)]
pub struct Listed {
    /// In order.
    pub names: Vec<String>,
    /// Whether more come after these.
    pub more: bool,
}

/// A sink for one subscription.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    container: Container,
}

impl Objects {
    /// Objects of this form in a store. An error says that this program was built without what the form needs.
    pub fn new(store: Arc<dyn ObjectStore>, container: Container) -> Result<Self> {
        contents::check(container)?;
        Ok(Objects { store, container })
    }

    /// The newest object of a folder. A folder grows for years, and a store lists a thousand names at a time; so this
    /// jumps ahead, twice as far each time, until it is beyond the end, and then comes back in ever smaller steps.
    async fn newest(&self, folder: &str) -> Result<Option<Name>, String> {
        let mut last: Option<Name> = None;
        let mut jump = 0_u128;
        loop {
            let after = last.as_ref().map(|name| name.beyond(jump));
            let listed = self.store.list(folder, after.as_deref()).await?;
            let found = names::of(folder, &listed.names)?;
            match (found.first(), found.last()) {
                (Some(first), Some(newest)) => {
                    let passed = newest.place().saturating_sub(first.place());
                    jump = jump.max(passed).saturating_mul(2);
                    last = Some(newest.clone());
                    if !listed.more {
                        return Ok(last);
                    }
                }
                // Nothing comes after the last one.
                _ if jump == 0 => return Ok(last),
                _ => jump /= 4,
            }
        }
    }

    async fn create(&self, lane: &Lane, after: Option<Cursor>, part: &[Message]) -> Created {
        let Some(last) = part.last().map(|message| message.cursor) else {
            return Created::Yes;
        };
        let Some(name) = Name::after(after, last, self.container) else {
            return Created::Refused(format!("its cursor, {last}, cannot name an object"));
        };
        let (container, lane, messages) = (self.container, lane.clone(), part.to_vec());
        let folder = folder(&lane);
        // Compressing takes a while.
        let content =
            tokio::task::spawn_blocking(move || contents::write(container, &lane, &messages));
        let content = match content.await {
            Ok(Ok(content)) => content,
            Ok(Err(why)) => return Created::Unknown(why),
            Err(error) => return Created::Unknown(error.to_string()),
        };
        match self.store.create(&folder, &name.to_string(), content).await {
            Ok(true) => Created::Yes,
            Ok(false) => Created::No,
            Err(why) => Created::Unknown(why),
        }
    }
}

enum Created {
    Yes,
    /// There is one of that name.
    No,
    Refused(String),
    Unknown(String),
}

/// The folder of a lane, named so that readers of lakes know its parts as columns.
fn folder(lane: &Lane) -> String {
    format!("shard={}/epoch={}", lane.shard, lane.epoch)
}

#[async_trait]
impl Destination for Objects {
    async fn resume(&self, lane: &Lane) -> Result<Held, String> {
        let folder = folder(lane);
        let Some(name) = self.newest(&folder).await? else {
            return Ok(Held::Nothing);
        };
        if name.container != self.container {
            return Err(format!(
                "{folder} holds objects of the form {}, not {}: give each form a place of its own",
                name.container, self.container
            ));
        }
        let content = self.store.get(&folder, &name.to_string()).await?;
        let place = contents::last_place(self.container, &content)?;
        match place {
            Some((epoch, cursor)) if epoch == lane.epoch && name.is_before(cursor) => {
                Ok(Held::Upto(Mark { cursor, token: 0 }))
            }
            _ => Err(format!(
                "the object {folder}/{name} was not written by changefeed, or not here: others must not write there"
            )),
        }
    }

    async fn append(&self, lane: &Lane, after: Held, batch: &[Message]) -> Appended {
        let mut held = after;
        let mut rest = batch;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(first_part(rest));
            let cursor = match held {
                Held::Upto(mark) => Some(mark.cursor),
                Held::Nothing => None,
                // This sink can always tell, so the caller has not asked.
                Held::CannotTell => return Appended::Conflict,
            };
            match self.create(lane, cursor, part).await {
                Created::Yes => {}
                Created::No => return Appended::Conflict,
                Created::Unknown(why) => return Appended::Unavailable(why),
                Created::Refused(reason) => {
                    let index = batch.len() - rest.len();
                    return Appended::Refused {
                        index,
                        held,
                        reason,
                    };
                }
            }
            if let Some(last) = part.last() {
                held = Held::Upto(Mark {
                    cursor: last.cursor,
                    token: 0,
                });
            }
            rest = behind;
        }
        Appended::All(held)
    }

    fn most(&self) -> usize {
        changefeed_core::MAX_PAGE
    }
}

/// How many messages of the front go into one object.
fn first_part(messages: &[Message]) -> usize {
    let mut size = 0;
    let fits = messages.iter().take_while(|message| {
        size += message.body.len() + 1;
        size <= MOST_BYTES
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;

    /// Lists like a store that has only so many names in an answer, and counts how often it is asked.
    #[derive(Debug)]
    struct Names(BTreeSet<String>, usize, Mutex<usize>);

    #[async_trait]
    impl ObjectStore for Names {
        async fn list(&self, _: &str, after: Option<&str>) -> Result<Listed, String> {
            *self.2.lock().unwrap() += 1;
            let rest = || {
                self.0
                    .iter()
                    .filter(|name| after.is_none_or(|a| &name[..] > a))
            };
            Ok(Listed {
                names: rest().take(self.1).cloned().collect(),
                more: rest().count() > self.1,
            })
        }

        async fn get(&self, _: &str, _: &str) -> Result<Bytes, String> {
            Err("not here".to_owned())
        }

        async fn create(&self, _: &str, _: &str, _: Bytes) -> Result<bool, String> {
            Err("not here".to_owned())
        }
    }

    #[tokio::test]
    async fn the_newest_of_many_is_found_in_a_few_questions() {
        for (count, spread) in [
            (0, 1),
            (1, 1),
            (10, 3),
            (11, 1),
            (5000, 1),
            (5000, 7),
            (70_000, 10_000),
        ] {
            let mut rng = fastrand::Rng::with_seed(count + spread);
            let mut cursor = 2_000_000_000_000_000;
            let mut newest = None;
            let mut names = BTreeSet::new();
            for _ in 0..count {
                let name = Name::after(
                    Some(Cursor::Number(cursor)),
                    Cursor::Number(cursor + 1),
                    Container::Ndjson,
                );
                newest = name.map(|name| name.to_string());
                names.extend(newest.clone());
                // Quiet times and loud ones.
                cursor += rng.i64(1..=spread as i64) * rng.choice([1, 1, 1, 1000]).unwrap();
            }
            let store = Arc::new(Names(names, 10, Mutex::new(0)));
            let objects = Objects::new(store.clone(), Container::Ndjson).unwrap();
            let found = objects.newest("folder").await.unwrap();
            assert_eq!(found.map(|name| name.to_string()), newest, "{count}");
            let asked = *store.2.lock().unwrap();
            assert!(asked <= 80, "{asked} questions for {count} names");
        }
    }
}

//! Where the measures work: a place in somebody's database that is removed at the end.

use std::time::Duration;

use changefeed::{Changefeed, Error, FeedHandle, FeedName, Kind, NewFeed, Result, SweepGroup};

use crate::report::Findings;
use crate::sweeping::OWNER;

/// The name of the scratch feed.
const FEED: &str = "changefeed-bench";
/// How we know our own feed again after a run that was killed.
const COMMENT: &str = "made and removed by `changefeed bench feeds`";
/// Longer than any run: nobody else may sweep the scratch feed while we do.
const LEASE: Duration = Duration::from_secs(1800);

/// What the measures of one database work in.
pub(crate) trait Place: Sized {
    /// Connects, installs our tables where they are missing, and clears away what a run that was
    /// killed has left behind.
    fn prepare(url: &str) -> impl Future<Output = Result<Self>>;

    /// The database's name and version.
    fn version(&self) -> impl Future<Output = Result<String>>;

    /// What makes the figures mean something else than one would think.
    fn caveats(&self) -> impl Future<Output = Result<Vec<String>>>;

    /// Removes everything of the measures.
    fn remove(self) -> impl Future<Output = Result<()>>;
}

/// Measures in a place that is removed at the end, also after an error; returns the database's name
/// and version.
pub(crate) async fn within<P: Place>(
    url: &str,
    findings: &mut Findings<'_>,
    measures: impl AsyncFnOnce(&P, &mut Findings<'_>) -> Result<()>,
) -> Result<String> {
    let place = P::prepare(url).await?;
    let measured = async {
        for caveat in place.caveats().await? {
            findings.note(caveat);
        }
        measures(&place, findings).await?;
        place.version().await
    }
    .await;
    findings.doing("removing what the measures have written");
    let removed = place.remove().await;
    let version = measured?;
    removed?;
    Ok(version)
}

/// A feed of the measures' own, in a group that nobody else sweeps.
pub(crate) struct ScratchFeed {
    pub(crate) db: Changefeed,
    pub(crate) group: SweepGroup,
}

impl ScratchFeed {
    /// Installs our tables where they are missing, and makes sure that nobody else has a feed of that
    /// name.
    pub(crate) async fn prepare(db: Changefeed) -> Result<Self> {
        db.migrate().await?;
        let groups = db.sweep_groups().await?;
        let group = (i16::MIN..=i16::MAX)
            .rev()
            .map(SweepGroup)
            .find(|group| !groups.contains(group))
            .unwrap_or_default();
        let scratch = ScratchFeed { db, group };
        match scratch.existing().await? {
            Some(feed) if feed.definition().comment.as_deref() != Some(COMMENT) => Err(Error::new(
                Kind::AlreadyExists,
                format!("the name of the scratch feed, '{FEED}', is in use by another feed"),
            )
            .advise("rename that feed, or name another database")),
            _ => Ok(scratch),
        }
    }

    /// What the measure before, or a run that was killed, has left.
    pub(crate) async fn existing(&self) -> Result<Option<FeedHandle>> {
        let feeds = self.db.feeds().await?;
        Ok(feeds.into_iter().find(|feed| feed.name() == FEED))
    }

    /// A new feed without any history; the one before is removed already.
    pub(crate) async fn create(&self, shards: i16) -> Result<FeedHandle> {
        let name: FeedName = FEED.parse()?;
        self.db
            .create_feed(&NewFeed {
                shards,
                comment: Some(COMMENT.to_owned()),
                sweep_group: self.group,
                ..NewFeed::new(name)
            })
            .await
    }

    /// The lease of its sweeper.
    pub(crate) fn lease(&self) -> String {
        format!("sweep/{}", self.group)
    }

    /// Keeps other instances from sweeping it.
    pub(crate) async fn take_lease(&self) -> Result<()> {
        match self.db.store().lease(&self.lease(), OWNER, LEASE).await? {
            Some(_) => Ok(()),
            None => Err(Error::new(
                Kind::Busy,
                "another instance sweeps the scratch feed",
            )),
        }
    }

    /// Numbers everything that waits; returns how much that was.
    pub(crate) async fn drain(&self) -> Result<i64> {
        let mut changes = 0;
        loop {
            match self.db.sweep(self.group).await?.changes() {
                0 => return Ok(changes),
                more => changes += more,
            }
        }
    }
}

/// The error for a second benchmark in the same database.
pub(crate) fn not_alone() -> Error {
    Error::new(
        Kind::Busy,
        "another `changefeed bench` is at work in this database",
    )
    .advise("wait until it has ended, or name another database")
}

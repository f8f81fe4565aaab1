//! What people and programs see of the whole: the only outward forms. `--json` and HTTP print the
//! same bytes, because both print these.

mod detail;
mod status;
mod subscription;

pub use detail::{EventDetail, FeedDetail, ShardDetail, TriggerView};
pub use status::{
    Database, FeedStatus, InstanceStatus, ShardStatus, Status, SubscriptionStatus, TriggerStatus,
    WatchOverview,
};
pub use subscription::{SubscriptionShard, SubscriptionView};

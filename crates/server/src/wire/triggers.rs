//! Event triggers.

use changefeed_core::view::TriggerView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All event triggers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TriggerList {
    pub(crate) triggers: Vec<TriggerView>,
}

/// Why a trigger is paused.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseIn {
    /// The reason, shown while it is paused.
    #[serde(default = "by_hand")]
    #[schema(min_length = 1, max_length = 1000)]
    pub(crate) reason: String,
}

fn by_hand() -> String {
    "by hand".to_owned()
}

/// An event by hand.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InvokeIn {
    /// What the event carries as `new`.
    #[serde(default = "empty")]
    #[schema(value_type = Object)]
    pub(crate) payload: Box<serde_json::value::RawValue>,
}

fn empty() -> Box<serde_json::value::RawValue> {
    serde_json::value::RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

/// The event that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InvokedOut {
    #[schema(format = Uuid)]
    pub(crate) event_id: String,
}

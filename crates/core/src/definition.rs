//! What people define: triggers, watches, subscriptions, and where things go. Each has one form, which is the same in
//! the database, in `changefeed.toml` and over HTTP.

mod broker;
mod retention;
mod sink;
mod subscription;
mod template;
mod text;
mod trigger;
mod watch;

pub use broker::{Broker, Container};
pub use retention::Retention;
pub use sink::{Header, Setting, Sink, Webhook};
pub use subscription::{OnRefusal, SubscriptionDefinition, SubscriptionFormat, subscription_start};
pub use template::{BATCH_VALUES, EVENT_VALUES, Template, TemplatePlace, TemplateValues};
pub use text::{format_span, parse_span};
pub use trigger::{
    Capture, CleanUp, Delivery, EventTrigger, FeedBinding, Format, OrderBy, Rate,
    TriggerDefinition, TriggerId, TriggerName, Updates,
};
pub use watch::{NewWatch, WatchDefinition};

#[cfg(feature = "openapi")]
pub(crate) use text::{Schemas, merged_schema, optional};

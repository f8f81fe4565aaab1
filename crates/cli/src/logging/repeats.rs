//! Keeps the log readable while something fails again and again: a warning is logged at once, and then at most
//! once a minute with a count. A database that is away makes every loop complain many times a second.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// How often the repetitions are counted out.
const EVERY: Duration = Duration::from_secs(60);
/// Different complaints that are told apart; more are counted together.
const KINDS: usize = 200;
/// The fields that make two complaints different, beside their words. Ids are not among them.
const TELLING: [&str; 5] = ["error", "trigger", "watch", "group", "subscription"];
/// The target of what is said here, which is never held back.
const OURS: &str = "changefeed::repeats";

/// What was logged, and how often it came again since. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Repeats(Arc<Mutex<BTreeMap<String, u64>>>);

impl Repeats {
    /// Whether this was not logged in the last minute.
    fn is_new(&self, complaint: String) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let complaint = match said.len() < KINDS || said.contains_key(&complaint) {
            true => complaint,
            false => "other complaints".to_owned(),
        };
        if let Some(again) = said.get_mut(&complaint) {
            *again += 1;
            return false;
        }
        said.insert(complaint, 0);
        true
    }

    /// What came again since the last time; forgets what did not.
    fn again(&self) -> Vec<(String, u64)> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, again| *again > 0);
        said.iter_mut()
            .map(|(complaint, again)| (complaint.clone(), std::mem::take(again)))
            .collect()
    }

    /// Counts out the repetitions every minute, for as long as the process runs.
    pub(super) async fn tell(self) {
        loop {
            tokio::time::sleep(EVERY).await;
            for (complaint, times) in self.again() {
                tracing::warn!(target: OURS, times, "again in the last minute: {complaint}");
            }
        }
    }
}

impl<S: Subscriber> Filter<S> for Repeats {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || metadata.target() == OURS {
            return true;
        }
        let mut complaint = Complaint::default();
        event.record(&mut complaint);
        self.is_new(complaint.text())
    }
}

/// What tells a complaint from others.
#[derive(Default)]
struct Complaint {
    message: String,
    fields: String,
}

impl Complaint {
    fn text(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl Visit for Complaint {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else if TELLING.contains(&field.name()) {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut complaint = Complaint::default();
            event.record(&mut complaint);
            self.0.lock().unwrap().push(complaint.text());
        }
    }

    #[test]
    fn the_first_is_logged_and_the_others_are_counted() {
        let (lines, repeats) = (Lines::default(), Repeats::default());
        let log = lines.clone().with_filter(repeats.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log), || {
            for id in 0..3 {
                tracing::warn!(error = "away", id, "sweep failed");
                tracing::warn!(error = "broken", "sweep failed");
                tracing::info!("good news");
            }
            tracing::warn!(target: OURS, "counted");
        });
        let lines = lines.0.lock().unwrap().join("\n");
        assert_eq!(
            lines,
            "sweep failed error=\"away\"\nsweep failed error=\"broken\"\ngood news\ngood news\ngood news\ncounted"
        );
        let again: Vec<u64> = repeats
            .again()
            .into_iter()
            .map(|(_, times)| times)
            .collect();
        assert_eq!(again, [2, 2]);
        assert!(repeats.again().is_empty());
        for n in 0..1000 {
            repeats.is_new(n.to_string());
        }
        assert!(repeats.again().len() <= KINDS + 1);
    }
}

//! What `serve` does with a watch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::sink::{Sink, SinkText};
use super::template::BATCH_VALUES;
use super::text::{self, Object};
use crate::{
    BatchFormat, Error, Result, RowFilter, RowOperation, TableName, WatchFrom, WatchName,
    WatchSettings, WatchSpec,
};

/// What `serve` does with a watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Object", into = "Object")]
pub struct WatchDefinition {
    /// Where its batches go.
    pub sink: Sink,
    /// How long the webhook or the command may take for a batch.
    pub timeout: Duration,
    /// Batch, lease and attempts.
    pub settings: WatchSettings,
    /// Which changes it is handed, and what of them.
    pub filter: RowFilter,
    /// Unprocessed changes per suggested worker; 1000 unless given.
    pub max_changes_per_worker: Option<u32>,
    /// Whether each change carries its version.
    pub with_version: bool,
    /// Whether each update carries the columns that were changed.
    pub with_columns: bool,
    /// Whether each update and delete carries the row as it was before.
    pub with_before: bool,
}

impl WatchDefinition {
    /// The default of `timeout`.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// A watch with every default.
    pub fn new(sink: Sink) -> Self {
        WatchDefinition {
            sink,
            timeout: Self::TIMEOUT,
            settings: WatchSettings::default(),
            filter: RowFilter::default(),
            max_changes_per_worker: None,
            with_version: false,
            with_columns: false,
            with_before: false,
        }
    }

    /// What its batches contain.
    pub fn format(&self) -> BatchFormat {
        BatchFormat {
            version: self.with_version,
            columns: self.with_columns,
            before: self.with_before,
        }
    }

    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        self.sink.validate(&BATCH_VALUES)?;
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(86_400) {
            return Err(Error::invalid(
                "the timeout of a watch must be more than 0 and at most a day",
            ));
        }
        if self.max_changes_per_worker == Some(0) {
            return Err(Error::invalid("max_changes_per_worker must be at least 1"));
        }
        self.filter.validate()?;
        self.settings.validate()
    }
}

/// A watch that `serve` runs, as it is defined over HTTP: its name and its table among the keys of its
/// definition.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Object")]
pub struct NewWatch {
    /// Its name.
    pub name: WatchName,
    /// The table.
    pub table: TableName,
    /// Where it begins.
    pub from: WatchFrom,
    /// What `serve` does with it.
    pub definition: WatchDefinition,
}

impl From<NewWatch> for WatchSpec {
    fn from(new: NewWatch) -> Self {
        WatchSpec {
            from: new.from,
            ..WatchSpec::served(new.name, new.table, new.definition)
        }
    }
}

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Deserialize)]
struct Named {
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[a-zA-Z0-9_-]+$", min_length = 1, max_length = 100))]
    name: String,
    /// The table.
    table: TableName,
    /// Where it begins.
    #[serde(default)]
    from: WatchFrom,
}

impl TryFrom<Object> for NewWatch {
    type Error = Error;

    fn try_from(object: Object) -> Result<Self> {
        let (rest, named): (Object, Named) = text::read(object, &["name", "table", "from"])
            .map_err(|e| Error::invalid(e.to_string()))?;
        Ok(NewWatch {
            name: named.name.parse()?,
            table: named.table,
            from: named.from,
            definition: rest.try_into()?,
        })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for NewWatch {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        text::closed(text::merged_schema::<WatchDefinition, Named>())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for NewWatch {
    fn schemas(schemas: &mut text::Schemas) {
        WatchDefinition::schemas(schemas);
        Named::schemas(schemas);
    }
}

/// Its keys, but for those of its sink.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WatchText {
    /// Rows in a batch at most.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    batch: usize,
    /// How long an instance that has found nothing more to do waits before it looks again, like `"5s"`; `"0s"` to
    /// be woken by changes.
    #[serde(with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, default = "0s"))]
    polling_interval: Duration,
    /// How long a failed batch waits for its next attempt, like `"1s"`.
    #[serde(with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, default = "1s"))]
    retry_interval: Duration,
    /// How long rows stay leased to an instance that does not renew.
    #[serde(with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, default = "60s"))]
    lease: Duration,
    /// How often a lease is renewed; a quarter of the lease unless given.
    #[serde(with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    renewal: Option<Duration>,
    /// Attempts before a change is parked.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    attempts: u32,
    /// How long an answer to a batch may take.
    #[serde(with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, default = "60s"))]
    timeout: Duration,
    /// Hand over only these: `"insert"`, `"update"`, `"delete"`; all if empty.
    #[serde(with = "operations")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    on: Vec<RowOperation>,
    /// Hand over only rows for which this condition is true, like `status = 'paid'`. A row that is not one of them
    /// any more is a delete.
    when: Option<String>,
    /// Hand over only these columns, beside the key, and no update that changed none of them; all if empty.
    columns: Vec<String>,
    /// Unprocessed changes per suggested worker; 1000 unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    max_changes_per_worker: Option<u32>,
    /// Add its version to each change.
    with_version: bool,
    /// Add the changed columns to each update.
    with_columns: bool,
    /// Add the row as it was before to each update and delete.
    with_before: bool,
}

/// Operations by their names.
mod operations {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::RowOperation;

    pub(super) fn serialize<S: Serializer>(
        operations: &[RowOperation],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(operations.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<RowOperation>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let operations = names.iter().map(|name| name.parse());
        operations
            .collect::<Result<_, crate::Error>>()
            .map_err(serde::de::Error::custom)
    }
}

impl Default for WatchText {
    fn default() -> Self {
        let settings = WatchSettings::default();
        WatchText {
            batch: settings.batch,
            polling_interval: settings.polling_interval,
            retry_interval: settings.retry_interval,
            lease: settings.lease,
            renewal: None,
            attempts: settings.attempts,
            timeout: WatchDefinition::TIMEOUT,
            on: Vec::new(),
            when: None,
            columns: Vec::new(),
            max_changes_per_worker: None,
            with_version: false,
            with_columns: false,
            with_before: false,
        }
    }
}

impl From<WatchDefinition> for Object {
    fn from(definition: WatchDefinition) -> Self {
        let settings = definition.settings;
        let text = WatchText {
            batch: settings.batch,
            polling_interval: settings.polling_interval,
            retry_interval: settings.retry_interval,
            lease: settings.lease,
            renewal: Some(settings.renewal),
            attempts: settings.attempts,
            timeout: definition.timeout,
            on: definition.filter.on,
            when: definition.filter.when,
            columns: definition.filter.columns,
            max_changes_per_worker: definition.max_changes_per_worker,
            with_version: definition.with_version,
            with_columns: definition.with_columns,
            with_before: definition.with_before,
        };
        text::write(text, SinkText::from(definition.sink))
    }
}

impl TryFrom<Object> for WatchDefinition {
    type Error = Error;

    fn try_from(object: Object) -> Result<Self> {
        let (text, sink): (WatchText, SinkText) =
            text::read(object, &SinkText::KEYS).map_err(|e| Error::invalid(e.to_string()))?;
        let definition = WatchDefinition {
            sink: sink.try_into()?,
            timeout: text.timeout,
            settings: WatchSettings {
                batch: text.batch,
                polling_interval: text.polling_interval,
                retry_interval: text.retry_interval,
                lease: text.lease,
                renewal: text.renewal.unwrap_or(text.lease / 4),
                attempts: text.attempts,
            },
            filter: RowFilter {
                on: text.on,
                when: text.when,
                columns: text.columns,
            },
            max_changes_per_worker: text.max_changes_per_worker,
            with_version: text.with_version,
            with_columns: text.with_columns,
            with_before: text.with_before,
        };
        definition.validate()?;
        Ok(definition)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for WatchDefinition {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        // Every key has a default, and a watch that `serve` does not run has none of them.
        text::optional(text::merged_schema::<WatchText, SinkText>())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for WatchDefinition {
    fn schemas(schemas: &mut text::Schemas) {
        WatchText::schemas(schemas);
        SinkText::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_survives_being_stored() {
        let mut full = WatchDefinition::new(Sink::webhook("http://localhost:9/"));
        full.settings.lease = Duration::from_millis(1500);
        full.settings.renewal = Duration::from_millis(500);
        full.timeout = Duration::from_secs(5);
        full.with_columns = true;
        full.filter = RowFilter {
            on: vec![RowOperation::Insert, RowOperation::Delete],
            when: Some("status = 'paid'".to_owned()),
            columns: vec!["status".to_owned()],
        };
        let text = serde_json::to_string(&full).unwrap();
        assert!(text.contains("\"lease\":\"1s 500ms\""), "{text}");
        assert_eq!(
            serde_json::from_str::<WatchDefinition>(&text).unwrap(),
            full
        );
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        let read = |text: &str| serde_json::from_str::<WatchDefinition>(text);
        let short = read("{\"exec\": \"./mail\", \"lease\": \"20s\"}").unwrap();
        assert_eq!(short.settings.renewal, Duration::from_secs(5));
        assert_eq!(short.sink, Sink::Exec("./mail".to_owned()));
        for (bad, sentence) in [
            ("{}", "not clear where"),
            (
                "{\"exec\": \"x\", \"webhook\": \"http://a/\"}",
                "not clear where",
            ),
            ("{\"exec\": \"x\", \"lease\": 5}", "invalid type"),
            (
                "{\"exec\": \"x\", \"lease\": \"soon\"}",
                "is not a duration",
            ),
            (
                "{\"exec\": \"x\", \"leese\": \"5s\"}",
                "unknown field `leese`",
            ),
            (
                "{\"exec\": \"x\", \"on\": [\"truncate\"]}",
                "'truncate' is not an operation",
            ),
            (
                "{\"exec\": \"x\", \"when\": \"status =\"}",
                "the condition cannot be used",
            ),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(sentence), "{bad}: {error}");
        }
    }
}

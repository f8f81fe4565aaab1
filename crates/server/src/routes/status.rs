//! The whole at a glance.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use changefeed_core::view::Status;
use changefeed_core::{Finding, Severity};
use changefeed_engine::Changefeed;
use changefeed_engine::sinks::webhook::Variables;
use futures_util::FutureExt;

use crate::access::{Reader, Rights};
use crate::app::App;
use crate::extract::Params;
use crate::kept::Kept;
use crate::problem::{Answer, Problem, Problems};
use crate::wire::ms;
use crate::wire::status::{
    FindingList, IncidentList, InstanceList, SeriesList, SeriesOut, SeriesQuery, SessionOut,
};
use changefeed_engine::observe::{Diagnosis, LENGTH, STEP, seen};

/// Feeds, consumers, triggers, watches, instances, leases and incidents as of the last sample.
#[utoipa::path(get, path = "/api/status", operation_id = "get_status", tag = "status",
    responses((status = 200, body = Status), Problems))]
pub(crate) async fn status(State(app): State<Arc<App>>, _: Reader) -> Json<Status> {
    let sample = app.samples.latest();
    let mut status = sample
        .as_ref()
        .map(|s| s.status.clone())
        .unwrap_or_default();
    status.version = env!("CARGO_PKG_VERSION").to_owned();
    status.instance = app.instance.clone();
    if let Some(sample) = &sample {
        status.sampled_at = Some(humantime::format_rfc3339_millis(sample.at).to_string());
        status.age_ms = ms(sample.age());
    }
    status.database.error = app.samples.error();
    status.database.reachable = status.database.error.is_none();
    status.database.connections = app.db.store().connections();
    let findings = tokio::time::timeout(PATIENCE, app.findings.get(FRESH)).await;
    let findings = match findings {
        Ok(Ok(findings)) => Some(findings),
        // It goes on looking, for the next time.
        _ => app.findings.last(),
    };
    status.findings = findings.map(|mut all| {
        all.retain(|f| f.severity >= Severity::Warning);
        all
    });
    Json(status)
}

/// The last hour of rates and backlogs.
#[utoipa::path(get, path = "/api/series", operation_id = "get_series", tag = "status", params(SeriesQuery),
    responses((status = 200, body = SeriesList), Problems))]
pub(crate) async fn series(
    State(app): State<Arc<App>>,
    _: Reader,
    Params(query): Params<SeriesQuery>,
) -> Answer<Json<SeriesList>> {
    let last = query.last.unwrap_or(LENGTH);
    if !(1..=LENGTH).contains(&last) {
        return Err(Problem::invalid(format!(
            "{last} values are not possible: use 1 to {LENGTH}"
        )));
    }
    let lines = app.samples.lines(|(kind, name)| {
        query.kind.as_ref().is_none_or(|k| k == kind)
            && query.name.as_ref().is_none_or(|n| n == name)
    });
    let end = app.samples.latest().map(|s| s.at);
    Ok(Json(SeriesList {
        step_ms: ms(STEP),
        end: end.map(|at| humantime::format_rfc3339_millis(at).to_string()),
        length: LENGTH,
        series: lines
            .into_iter()
            .map(|((kind, name), mut values)| {
                let extra = values.len().saturating_sub(last);
                values.drain(..extra);
                SeriesOut {
                    kind: kind.to_owned(),
                    name,
                    values,
                }
            })
            .collect(),
    }))
}

/// Who serves, and who holds which lease.
#[utoipa::path(get, path = "/api/instances", operation_id = "list_instances", tag = "status",
    responses((status = 200, body = InstanceList), Problems))]
pub(crate) async fn instances(
    State(app): State<Arc<App>>,
    _: Reader,
) -> Answer<Json<InstanceList>> {
    let instances = app.db.store().instances().await?;
    let leases = app.db.lease_holders().await?;
    Ok(Json(InstanceList {
        instances: seen(&instances, &leases),
        leases,
    }))
}

/// Shards whose ULID writers had to go on without one of theirs.
#[utoipa::path(get, path = "/api/incidents", operation_id = "list_incidents", tag = "status",
    responses((status = 200, body = IncidentList), Problems))]
pub(crate) async fn incidents(
    State(app): State<Arc<App>>,
    _: Reader,
) -> Answer<Json<IncidentList>> {
    let incidents = app.db.incidents().await?;
    Ok(Json(IncidentList { incidents }))
}

/// How old what `doctor` has found may be: everything is looked at, and that costs more than a sample.
const FRESH: Duration = Duration::from_secs(10);
/// How long the status waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What `doctor` has to say, looked up when somebody asks.
pub(crate) fn findings_of(db: Changefeed, variables: Variables) -> Kept<Vec<Finding>> {
    let look = move || {
        let (db, variables) = (db.clone(), variables.clone());
        async move {
            let diagnosis = Diagnosis::of(&db, &variables).await?;
            match diagnosis.cut_off {
                Some(error) => Err(error),
                None => Ok(diagnosis.findings),
            }
        }
        .boxed()
    };
    Kept::new(look, None)
}

/// What `changefeed doctor` says, worst first; at most ten seconds old.
#[utoipa::path(get, path = "/api/findings", operation_id = "list_findings", tag = "status",
    responses((status = 200, body = FindingList), Problems))]
pub(crate) async fn findings(State(app): State<Arc<App>>, _: Reader) -> Answer<Json<FindingList>> {
    let findings = app.findings.get(FRESH).await?;
    Ok(Json(FindingList { findings }))
}

/// What this caller may do.
#[utoipa::path(get, path = "/api/session", operation_id = "get_session", tag = "status",
    responses((status = 200, body = SessionOut), Problems))]
pub(crate) async fn session(rights: Rights) -> Json<SessionOut> {
    Json(SessionOut {
        scopes: rights.scopes(),
        token_needed: matches!(rights, Rights::Token(..)),
    })
}

//! For whoever operates the server: health, metrics, the description of the interface.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use changefeed_core::{SchemaState, require_current};
use changefeed_engine::Changefeed;
use futures_util::FutureExt;

use crate::access::Reader;
use crate::app::App;
use crate::exposition;
use crate::kept::Kept;
use crate::wire::status::{CheckOut, ReadyOut};
use changefeed_engine::observe::Gauges;

/// How long the database may take to answer before it counts as not reachable.
const PATIENCE: Duration = Duration::from_secs(3);

/// How old the look at the schema may be.
const FRESH: Duration = Duration::from_secs(1);

/// The installed schema, looked up when this instance is asked whether it is ready.
pub(crate) fn schema(db: Changefeed) -> Kept<SchemaState> {
    let look = move || {
        let db = db.clone();
        async move { db.schema().await }.boxed()
    };
    Kept::new(look, None)
}

/// The process lives.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether this instance should get requests.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let check = |check: &str, error: Option<String>| CheckOut {
        check: check.to_owned(),
        ok: error.is_none(),
        error,
    };
    let mut checks = Vec::new();
    if app.shutdown.is_cancelled() {
        checks.push(check("running", Some("it is being stopped".to_owned())));
    }
    // Anybody may ask, as often as they like: the database is asked once a second at most.
    match tokio::time::timeout(PATIENCE, app.schema.get(FRESH)).await {
        Ok(Ok(schema)) => {
            checks.push(check("database", None));
            let current = require_current(schema).err().map(|e| e.to_string());
            checks.push(check("schema", current));
        }
        Ok(Err(error)) => checks.push(check("database", Some(error.to_string()))),
        Err(_) => {
            let late = format!("no answer within {}", humantime::format_duration(PATIENCE));
            checks.push(check("database", Some(late)));
        }
    }
    for (name, trouble) in app.health.checks() {
        checks.push(check(&name, trouble));
    }
    let ready = checks.iter().all(|c| c.ok);
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut degraded = app.samples.standstill();
    degraded.extend(app.health.held_up());
    let out = ReadyOut {
        ready,
        checks,
        degraded,
    };
    (status, Json(out)).into_response()
}

/// For Prometheus, in the form that it likes best.
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    _: Reader,
    headers: HeaderMap,
) -> Response {
    let now = Gauges {
        database: app.db.store().connections(),
        connections: app.connections.open(),
        working: app.limits.working(),
        waiting: app.limits.waiting(),
        loops: app.health.ages(),
    };
    let text = app.meters.text(&app.samples, now);
    let (kind, text) = match exposition::wants_openmetrics(&headers) {
        true => (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            text,
        ),
        false => (
            "text/plain; version=0.0.4; charset=utf-8",
            exposition::classic(&text),
        ),
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::VARY, "accept")];
    (headers, text).into_response()
}

/// The description of the interface.
pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, app.openapi.clone()).into_response()
}

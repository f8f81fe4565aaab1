//! For whoever operates the server: health, metrics, the description of the interface.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use changefeed::require_current;

use crate::access::Reader;
use crate::app::App;
use crate::gauges::Gauges;
use crate::wire::status::{CheckOut, ReadyOut};

/// How long the database may take to answer before it counts as not reachable.
const PATIENCE: Duration = Duration::from_secs(3);

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
    match tokio::time::timeout(PATIENCE, app.db.schema()).await {
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
    for (name, ended) in app.health.loops() {
        checks.push(check(&name, ended));
    }
    let ready = checks.iter().all(|c| c.ok);
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(ReadyOut { ready, checks })).into_response()
}

/// For Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>, _: Reader) -> Response {
    let now = Gauges {
        connections: app.db.store().connections(),
        working: app.limits.working(),
        waiting: app.limits.waiting(),
    };
    let text = app.meters.text(&app.samples, now);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// The description of the interface.
pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, app.openapi.clone()).into_response()
}

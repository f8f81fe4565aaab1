//! What can be asked.

pub(crate) mod changes;
pub(crate) mod consumers;
mod description;
pub(crate) mod events;
pub(crate) mod feeds;
pub(crate) mod operating;
pub(crate) mod page;
pub(crate) mod protocols;
pub(crate) mod status;
pub(crate) mod subscriptions;
pub(crate) mod tokens;
pub(crate) mod triggers;
pub(crate) mod watches;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::problem::Problem;

/// Everything under `/api`, and its description.
pub(crate) fn api() -> (Router<Arc<App>>, utoipa::openapi::OpenApi) {
    let (router, mut description) = OpenApiRouter::with_openapi(description::head())
        .routes(routes!(feeds::list, feeds::create))
        .routes(routes!(feeds::show, feeds::change, feeds::remove))
        .routes(routes!(feeds::reshard))
        .routes(routes!(feeds::backfill))
        .routes(routes!(feeds::trim))
        .routes(routes!(changes::shard))
        .routes(routes!(changes::feed))
        .routes(routes!(consumers::list))
        .routes(routes!(consumers::set))
        .routes(routes!(consumers::forget))
        .routes(routes!(triggers::list, triggers::create))
        .routes(routes!(triggers::show, triggers::replace, triggers::remove))
        .routes(routes!(triggers::pause))
        .routes(routes!(triggers::resume))
        .routes(routes!(triggers::invoke))
        .routes(routes!(triggers::backfill))
        .routes(routes!(events::list))
        .routes(routes!(events::redeliver_matching))
        .routes(routes!(events::clean_up))
        .routes(routes!(events::show))
        .routes(routes!(events::redeliver))
        .routes(routes!(watches::list, watches::create))
        .routes(routes!(watches::show, watches::put, watches::remove))
        .routes(routes!(watches::retry))
        .routes(routes!(watches::reset))
        .routes(routes!(subscriptions::list))
        .routes(routes!(
            subscriptions::show,
            subscriptions::put,
            subscriptions::remove
        ))
        .routes(routes!(subscriptions::pause))
        .routes(routes!(subscriptions::resume))
        .routes(routes!(subscriptions::seek))
        .routes(routes!(subscriptions::reset))
        .routes(routes!(status::status))
        .routes(routes!(status::series))
        .routes(routes!(status::instances))
        .routes(routes!(status::incidents))
        .routes(routes!(status::findings))
        .routes(routes!(status::session))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .split_for_parts();
    description::complete(&mut description);
    (router, description)
}

/// What needs the rights of a caller.
pub(crate) fn guarded(api: Router<Arc<App>>) -> Router<Arc<App>> {
    api.route("/feeds/{feed}", get(protocols::root))
        .route("/feeds/{feed}/events", get(protocols::events))
}

/// What needs the rights of a caller, and is answered however much else is asked: it tells why nothing
/// else is.
pub(crate) fn watched() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(operating::metrics))
}

/// What anybody may ask.
pub(crate) fn open() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(page::index))
        .route("/page/{file}", get(page::file))
        .route("/api/openapi.json", get(operating::openapi))
        .route("/healthz", get(operating::healthz))
        .route("/readyz", get(operating::readyz))
}

/// For what there is not.
pub(crate) async fn nowhere() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "there is nothing at this path",
    )
    .advise("GET /api/openapi.json describes what there is")
}

/// For what cannot be done there.
pub(crate) async fn no_such_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid",
        "this path does not know that method",
    )
}

/// Something that was made.
pub(crate) fn created<T: serde::Serialize>(made: T) -> Response {
    (StatusCode::CREATED, Json(made)).into_response()
}

//! Subscriptions.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use changefeed_core::view::SubscriptionView;
use changefeed_core::{ConsumerName, SubscriptionDefinition, subscription_start};
use changefeed_engine::sinks::webhook::{Target, keep_secrets};

use crate::access::{Administrator, Operator, Reader};
use crate::app::App;
use crate::extract::{Body, Segments};
use crate::problem::{Answer, Problem, Problems};
use crate::wire::subscriptions::{SeekIn, SubscriptionList};
use crate::wire::triggers::PauseIn;

/// All subscriptions, and where their shards stand.
#[utoipa::path(get, path = "/api/subscriptions", operation_id = "list_subscriptions", tag = "subscriptions",
    responses((status = 200, body = SubscriptionList), Problems))]
pub(crate) async fn list(State(app): State<Arc<App>>, _: Reader) -> Answer<Json<SubscriptionList>> {
    let subscriptions = app.db.subscriptions().await?;
    Ok(Json(SubscriptionList { subscriptions }))
}

/// One subscription.
#[utoipa::path(get, path = "/api/subscriptions/{subscription}", operation_id = "get_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)),
    responses((status = 200, body = SubscriptionView), Problems))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    _: Reader,
    Segments(name): Segments<String>,
) -> Answer<Json<SubscriptionView>> {
    Ok(Json(app.db.subscription(&parsed(&name)?).await?))
}

/// Create a subscription, or change the one of this name; it goes on where it is.
#[utoipa::path(put, path = "/api/subscriptions/{subscription}", operation_id = "put_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)), request_body = SubscriptionDefinition,
    responses((status = 200, body = SubscriptionView), Problems))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
    Body(mut new): Body<SubscriptionDefinition>,
) -> Answer<Json<SubscriptionView>> {
    if new.name.as_str() != name {
        return Err(Problem::invalid(format!(
            "the body is about subscription '{}', the path about '{name}'",
            new.name
        )));
    }
    let whose = format!("subscription '{name}'");
    let known = app.db.store().subscriptions().await?;
    let before = known.iter().find(|s| s.definition.name == new.name);
    if new.names_other_broker(before.map(|subscription| &subscription.definition)) {
        return Err(Problem::invalid(format!(
            "{whose} pushes to a broker, whose address cannot be defined over HTTP"
        ))
        .advise("define it on the command line"));
    }
    let before = before.map(|subscription| &subscription.definition.sink);
    if new.is_local() {
        return Err(Problem::invalid(format!(
            "{whose} acts on the machine of the instance, which cannot be defined over HTTP"
        ))
        .advise("define it on the command line"));
    }
    keep_secrets(&mut new.sink, before)?;
    new.sink
        .restrict(&whose, &app.options.allowed_variables, before)?;
    if new.sink.as_webhook().is_some() {
        Target::check(&whose, &new.sink)?;
    }
    Ok(Json(app.db.create_subscription(&new, true).await?))
}

/// Remove a subscription and its position; the sink keeps what it has.
#[utoipa::path(delete, path = "/api/subscriptions/{subscription}", operation_id = "delete_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)),
    responses((status = 204), Problems))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    _: Administrator,
    Segments(name): Segments<String>,
) -> Answer<StatusCode> {
    app.db.store().drop_subscription(&parsed(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stop pushing.
#[utoipa::path(post, path = "/api/subscriptions/{subscription}/pause", operation_id = "pause_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)), request_body = PauseIn,
    responses((status = 200, body = SubscriptionView), Problems))]
pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<PauseIn>,
) -> Answer<Json<SubscriptionView>> {
    if body.reason.is_empty() || body.reason.chars().count() > 1000 {
        return Err(Problem::invalid("a reason has 1 to 1000 characters"));
    }
    paused(&app, &name, Some(&body.reason)).await
}

/// Go on pushing, also in shards that were stopped.
#[utoipa::path(post, path = "/api/subscriptions/{subscription}/resume", operation_id = "resume_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)),
    responses((status = 200, body = SubscriptionView), Problems))]
pub(crate) async fn resume(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
) -> Answer<Json<SubscriptionView>> {
    paused(&app, &name, None).await
}

/// Go on elsewhere, in a new epoch: the sink gets everything behind that place.
#[utoipa::path(post, path = "/api/subscriptions/{subscription}/seek", operation_id = "seek_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)), request_body = SeekIn,
    responses((status = 200, body = SubscriptionView), Problems))]
pub(crate) async fn seek(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
    Body(body): Body<SeekIn>,
) -> Answer<Json<SubscriptionView>> {
    let to = subscription_start(&body.to)?;
    let name = parsed(&name)?;
    Ok(Json(app.db.seek_subscription(&name, body.shard, to).await?))
}

/// Accept that the sink does not hold what was pushed before, and go on behind it.
#[utoipa::path(post, path = "/api/subscriptions/{subscription}/reset", operation_id = "reset_subscription", tag = "subscriptions",
    params(("subscription" = String, Path)),
    responses((status = 200, body = SubscriptionView), Problems))]
pub(crate) async fn reset(
    State(app): State<Arc<App>>,
    _: Operator,
    Segments(name): Segments<String>,
) -> Answer<Json<SubscriptionView>> {
    Ok(Json(app.db.reset_subscription(&parsed(&name)?).await?))
}

async fn paused(app: &App, name: &str, reason: Option<&str>) -> Answer<Json<SubscriptionView>> {
    let name = parsed(name)?;
    app.db.store().pause_subscription(&name, reason).await?;
    Ok(Json(app.db.subscription(&name).await?))
}

fn parsed(name: &str) -> Answer<ConsumerName> {
    Ok(name.parse()?)
}

//! What the description of `/api` says beside what each handler says of itself.

use axum::http::StatusCode;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, OpenApi as Document, Ref, RefOr, Required, Schema};
use utoipa::{Modify, OpenApi};

/// The head of the description.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "changefeed",
        description = "Change feeds from SQL databases that lose, repeat and reorder nothing.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    modifiers(&Bearer),
    security(("token" = [])),
    tags(
        (name = "feeds", description = "Feeds, pages and consumers"),
        (name = "triggers", description = "Event triggers"),
        (name = "subscriptions", description = "Feeds that are pushed to other systems"),
        (name = "events", description = "Captured events and attempts to deliver them"),
        (name = "watches", description = "Watches and their backlogs"),
        (name = "status", description = "The whole at a glance"),
        (name = "tokens", description = "Who may ask what"),
    ),
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut Document) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        openapi
            .components
            .get_or_insert_default()
            .add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The description before any handler has been added.
pub(super) fn head() -> Document {
    Description::openapi()
}

/// Fills in what follows from the rest.
pub(super) fn complete(document: &mut Document) {
    let components = document.components.clone().unwrap_or_default();
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.patch,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            describe_answers(operation);
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                let required = body.content.values().any(|content| match content {
                    RefOr::T(content) => content
                        .schema
                        .as_ref()
                        .is_some_and(|schema| has_required(schema, &components)),
                    RefOr::Ref(_) => true,
                });
                // A body that may be `{}` may be absent.
                body.required = Some(match required {
                    true => Required::True,
                    false => Required::False,
                });
            }
        }
    }
}

/// Every answer has a description, as the specification demands: that of its status, unless the handler
/// says more.
fn describe_answers(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let known = status.parse::<u16>().ok();
        let known = known.and_then(|s| StatusCode::from_u16(s).ok());
        let words = known.and_then(|s| s.canonical_reason());
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = words.unwrap_or("A problem").to_owned();
        }
    }
}

/// Whether an object of this schema must have some property.
fn has_required(schema: &RefOr<Schema>, components: &Components) -> bool {
    match schema {
        RefOr::T(Schema::Object(object)) => {
            !object.required.is_empty() || object.min_properties.is_some_and(|least| least > 0)
        }
        RefOr::T(_) => true,
        RefOr::Ref(Ref { ref_location, .. }) => {
            let name = ref_location.rsplit('/').next().unwrap_or_default();
            let found = components.schemas.get(name);
            found.is_none_or(|schema| has_required(schema, components))
        }
    }
}

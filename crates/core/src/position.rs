//! Ids, versions and other positions of 64 bits are text in JSON: readers in other languages round
//! large numbers. Counts stay numbers.

use std::fmt::Display;

use serde::Serializer;

pub(crate) fn serialize<T: Display, S: Serializer>(
    position: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(position)
}

/// Describes types to OpenAPI that are written as text.
macro_rules! text_schema {
    ($($name:ty => $title:literal),* $(,)?) => {$(
        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                String::schema()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                std::borrow::Cow::Borrowed($title)
            }
        }
    )*};
}

text_schema! {
    crate::Cursor => "Cursor",
    crate::Scope => "Scope",
    crate::TableName => "TableName",
}

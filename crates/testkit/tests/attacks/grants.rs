//! Roles with no more than the documented grants.

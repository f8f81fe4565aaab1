//! Where events go.

pub mod webhook;

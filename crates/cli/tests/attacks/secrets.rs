//! Secrets that must survive a round trip without being shown.

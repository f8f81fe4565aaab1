//! Planner statistics that lie.

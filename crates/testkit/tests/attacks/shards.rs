//! Many shards, and backlogs larger than a time limit.

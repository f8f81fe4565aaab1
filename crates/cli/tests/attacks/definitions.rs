//! Definitions over HTTP that reach for the environment or the server's files.

//! DDL on captured tables while sessions are open: no later write may fail.

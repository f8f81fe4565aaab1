//! HTTP connections that send nothing, too much, or garbage.

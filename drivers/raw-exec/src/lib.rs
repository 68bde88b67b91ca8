//! raw-exec

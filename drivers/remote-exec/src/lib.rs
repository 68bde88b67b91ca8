//! remote-exec

//! interop

//! jobspec

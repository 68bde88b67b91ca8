//! The scheduler through its public functions: clusters and plans as short text.

mod feasibility;
mod properties;
mod ranking;
mod reconciling;
mod remote;
mod verifying;
mod world;

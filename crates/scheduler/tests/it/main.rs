//! The scheduler through its public functions: clusters and plans as short text.

mod disconnect;
mod feasibility;
mod properties;
mod ranking;
mod reconciling;
mod remote;
mod verifying;
mod world;

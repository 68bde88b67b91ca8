//! The scheduler through its public functions: clusters and plans as short text.

mod canaries;
mod disconnect;
mod feasibility;
mod limits;
mod preemption;
mod properties;
mod ranking;
mod reconciling;
mod remote;
mod system;
mod system_deployments;
mod verifying;
mod volumes;
mod world;

//! Driver `kubernetes`: tasks as pods of a Kubernetes cluster, which outlive the node that manages them.
//!
//! The API server is a linearizable store with unique names and conditional writes, so one key has one pod, and a stale
//! manager is refused by the server itself. What it cannot know is whether a container runs: only the kubelet does. An
//! end counts when a container was seen as terminated, never because an object is absent.
//!
//! ```text
//! config.rs, options.rs   what the operator and a job may say
//! plan.rs, files.rs       task → pod and secret: pure
//! marks.rs                names, labels and annotations: owner, key, slot, epoch: pure
//! look.rs                 what a pod says about its instance: pure
//! answer.rs               errors of the API as one of the three answers: pure
//! cluster.rs              which cluster: connection and identity
//! access.rs               the client, anew when its credentials are refused
//! api.rs                  the calls
//! site.rs                 one namespace: creates, finds, stops, acknowledges
//! seal.rs                 keys that are over: sealed, or their create was refused
//! secret.rs               the secret that a pod mounts: fenced writes
//! sweep.rs                lets names of acknowledged instances go after their time
//! feed.rs                 one watch of all pods of an owner
//! logs.rs                 output by byte offset
//! logs/count.rs           offsets of lines, also after a rotation: pure
//! exec.rs                 commands in the container
//! usage.rs                what a pod uses, from the metrics API: pure
//! doctor.rs               what tasks will need, looked at before there is one
//! driver.rs               the driver
//! ```
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`], then at `look.rs` for what counts as
//! an end.

mod access;
mod answer;
mod api;
mod cluster;
mod config;
mod doctor;
mod driver;
mod exec;
mod feed;
mod files;
mod logs;
mod look;
mod marks;
mod options;
mod plan;
mod seal;
mod secret;
mod seen;
mod site;
mod sweep;
mod usage;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}

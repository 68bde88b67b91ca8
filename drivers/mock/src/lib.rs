//! A driver whose tasks do nothing but what the job file tells them: run, end, fail, hang, flood, crash their driver.
//!
//! For: exercising everything above a driver. A task is a point in time at which it ends and a way in which it ends, so
//! it survives the driver's process: recovery computes the same end again.
//! Must never know: anything but the driver SDK.
//! Start reading at [`options::TaskOptions`], the list of what a job can ask for; `drover driver schema mock` prints
//! it. `mock_remote` ([`options::RemoteOptions`]) is the same for remote tasks, over a provider that is a directory;
//! [`fake`] is how a test looks into it. `mock_device` ([`MockDevice`]) offers files of a directory as devices.

mod device;
mod driver;
pub mod fake;
pub mod options;
mod provider;
mod remote;
mod starts;
mod task;

use std::process::ExitCode;

pub use device::MockDevice;
pub use driver::Mock;
pub use remote::MockRemote;

/// Serves the driver to the host that started this program.
pub async fn serve() -> ExitCode {
    driver_sdk::serve(Mock::default()).await
}

/// Serves the remote driver over the plain driver protocol alone, as drivers do that know no extension.
pub async fn serve_remote_as_plain() -> ExitCode {
    driver_sdk::serve_remote_as_plain(MockRemote::default()).await
}

/// Serves the remote driver to the host that started this program.
pub async fn serve_remote() -> ExitCode {
    driver_sdk::serve_remote(MockRemote::default()).await
}

/// Serves the device plugin to the host that started this program.
pub async fn serve_devices() -> ExitCode {
    driver_sdk::serve_devices(MockDevice::default()).await
}

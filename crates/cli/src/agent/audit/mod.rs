//! The audit log of an agent: where its events are written. What the events are is in `server_http`.
//!
//! Each sink has a thread of its own, so that a disk or a reader that is slow holds up nothing but requests whose
//! events must be written.

mod file;
mod socket;
mod writer;

use std::{io, path::PathBuf, time::SystemTime};

use anyhow::{Context, Result};
use server_http::{Audit, Filter, Guarantee, Sink};

use self::{file::AuditFile, socket::AuditSocket, writer::Writer};
use super::log_file::Rotation;

/// What the block `audit` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditSettings {
    /// Where events go; not empty.
    pub(crate) sinks: Vec<SinkSettings>,
    /// Which are left out.
    pub(crate) filters: Vec<Filter>,
}

/// A sink as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SinkSettings {
    /// The label of its block.
    pub(crate) name: String,
    /// What becomes of a request whose event cannot be written.
    pub(crate) guarantee: Guarantee,
    /// Where its lines go.
    pub(crate) target: TargetSettings,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetSettings {
    /// To a file with these permissions.
    File(Rotation, u32),
    /// To whoever listens on a unix socket.
    Socket(PathBuf),
}

/// Takes whole lines.
trait Target: Send {
    /// Writes lines; after an error none of them counts as written.
    fn append(&mut self, lines: &[u8], now: SystemTime) -> io::Result<()>;
    /// Opens its path anew.
    fn reopen(&mut self, now: SystemTime) -> io::Result<()>;
}

/// Opens the sinks and starts their threads, which end with the last clone of the result.
///
/// # Errors
/// When a file cannot be opened. A socket may be listened on later.
pub(crate) fn start(settings: &AuditSettings, agent: String) -> Result<Audit> {
    let sinks = settings.sinks.iter().map(|sink| {
        let target: Box<dyn Target> = match &sink.target {
            TargetSettings::File(rotation, mode) => {
                let path = rotation.path.display();
                let file = AuditFile::open(rotation.clone(), *mode, SystemTime::now());
                Box::new(file.with_context(|| format!("could not open {path} of audit.sink {:?}", sink.name))?)
            }
            TargetSettings::Socket(path) => Box::new(AuditSocket::new(path.clone())),
        };
        let (handle, orders) = Sink::new(&sink.name, sink.guarantee);
        let writer = Writer::new(sink.name.clone(), target);
        std::thread::Builder::new()
            .name("drover-audit".into())
            .spawn(move || writer.run(orders))
            .context("could not start the thread of the audit log")?;
        Ok(handle)
    });
    Ok(Audit::new(agent, settings.filters.clone(), sinks.collect::<Result<_>>()?))
}

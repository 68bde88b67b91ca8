//! Reading single values of an agent file: what is wrong with them is collected, so that all mistakes are told at once.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use model::GoDuration;

use super::super::{config::Mistake, rules::Notes};

/// Collects mistakes while values are read, and what is taken without effect.
pub(super) struct Reader {
    mistakes: Vec<Mistake>,
    notes: Notes,
}

impl Reader {
    /// With what was noticed before.
    pub(super) fn new(notes: Notes) -> Self {
        Self { mistakes: Vec::new(), notes }
    }
    /// What was taken without effect, or every mistake.
    pub(super) fn finish(self) -> Result<Notes, Vec<Mistake>> {
        if self.mistakes.is_empty() { Ok(self.notes) } else { Err(self.mistakes) }
    }
    pub(super) fn wrong(&mut self, text: String) {
        self.mistakes.push(Mistake(text));
    }
    pub(super) fn idle(&mut self, name: &str, why: &str) {
        self.notes.add(name, why);
    }
    pub(super) fn duration(&mut self, name: &str, text: Option<&str>, default: Duration) -> Duration {
        let Some(text) = text else { return default };
        match text.parse::<GoDuration>() {
            Ok(d) if d.nanos() > 0 => d.to_std(),
            Ok(_) => {
                self.wrong(format!("{name} must be longer than 0, it is {text:?}"));
                default
            }
            Err(e) => {
                self.wrong(format!("{name}: {e}"));
                default
            }
        }
    }
    /// A time that may be switched off with 0.
    pub(super) fn optional(&mut self, name: &str, text: Option<&str>, default: Option<Duration>) -> Option<Duration> {
        match text.map(str::parse::<GoDuration>) {
            None => default,
            Some(Ok(d)) if d.nanos() >= 0 => (d.nanos() > 0).then(|| d.to_std()),
            Some(Ok(_)) => {
                self.wrong(format!("{name} must not be below 0"));
                default
            }
            Some(Err(e)) => {
                self.wrong(format!("{name}: {e}"));
                default
            }
        }
    }
    /// A number of bytes with a unit as people write it: `10GB` (powers of ten) or `10GiB` (powers of two).
    pub(super) fn size(&mut self, name: &str, text: Option<&str>, default: u64) -> u64 {
        let Some(text) = text else { return default };
        crate::output::parse_size(text).unwrap_or_else(|| {
            self.wrong(format!("{name} must be a size such as 100GB or 512MiB, it is {text:?}"));
            default
        })
    }
    pub(super) fn ip(&mut self, name: &str, text: Option<&str>, default: IpAddr) -> IpAddr {
        let Some(text) = text else { return default };
        text.parse().unwrap_or_else(|_| {
            self.wrong(format!("{name} must be an IP address, it is {text:?}"));
            default
        })
    }
    /// `host` or `host:port`; without a port, the listener's.
    pub(super) fn advertised(&mut self, name: &str, text: Option<&str>, port: u16) -> Option<String> {
        let text = text?;
        if text.parse::<SocketAddr>().is_ok()
            || text.rsplit_once(':').is_some_and(|(h, p)| !h.contains(':') && p.parse::<u16>().is_ok())
        {
            return Some(text.to_owned());
        }
        if text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
            return Some(format!("[{text}]:{port}"));
        }
        if text.is_empty() || text.contains([' ', '/']) {
            self.wrong(format!("{name} must be an address or address:port, it is {text:?}"));
            return None;
        }
        Some(format!("{text}:{port}"))
    }
}

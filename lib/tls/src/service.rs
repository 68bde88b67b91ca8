//! TLS to a service that is no agent, such as etcd, for as long as the process runs: its files are read again while
//! connections stand.

use std::{sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use rustls::ClientConfig;

use crate::{Certificate, Dialer, Error, Expiry, Protocol, ServiceFiles, ServiceSettings, dial, pem::File};

/// TLS to a service. Cheap to clone; all clones and their diallers see when others are taken over.
#[derive(Clone, Debug)]
pub struct Service(Arc<ArcSwap<Loaded>>);

#[derive(Debug)]
struct Loaded {
    files: ServiceFiles,
    config: Arc<ClientConfig>,
    /// What this side shows, and from when it is valid.
    own: Option<(SystemTime, Expiry)>,
    authority: Option<Expiry>,
}

impl Service {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// What cannot be used, and what to do. A certificate that has expired is no error: see [`Self::in_time`].
    pub fn load(files: &ServiceFiles, settings: ServiceSettings, protocol: Protocol) -> Result<Self, Error> {
        let config = dial::service_config(files, settings, protocol)?;
        let read = |setting, path| {
            let file = File { setting, path };
            let named = !path.as_os_str().is_empty();
            named.then(|| Certificate::first_of(file).map(|found| (found.not_before, expiry(file, &found)))).transpose()
        };
        let own = read(settings.cert, &files.cert_file)?;
        let authority = read(settings.ca, &files.ca_file)?.map(|(_, expiry)| expiry);
        Ok(Self(Arc::new(ArcSwap::from_pointee(Loaded { files: files.clone(), config, own, authority }))))
    }

    /// Whether a running process may take these over.
    ///
    /// # Errors
    /// The certificate that this side shows is not valid at `now`.
    pub fn in_time(&self, now: SystemTime) -> Result<(), Error> {
        let loaded = self.0.load();
        let Some((not_before, Expiry { setting, path, not_after })) = &loaded.own else { return Ok(()) };
        let why = match (now < *not_before, now > *not_after) {
            (true, _) => "is not valid yet",
            (_, true) => "has expired",
            (false, false) => return Ok(()),
        };
        Err(Error::Settings(format!("{setting} {} {why}; the certificates in use are kept", path.display())))
    }

    /// New connections use what `new` has read; those that stand keep theirs.
    pub fn take_over(&self, new: &Self) {
        self.0.store(new.0.load_full());
    }

    /// The files in force.
    #[must_use]
    pub fn files(&self) -> ServiceFiles {
        self.0.load().files.clone()
    }

    /// Until when the files in use are valid. The authorities of this system are not among them.
    #[must_use]
    pub fn expiries(&self) -> Vec<Expiry> {
        let loaded = self.0.load();
        loaded.own.iter().map(|(_, expiry)| expiry).chain(&loaded.authority).cloned().collect()
    }

    /// What a person should look after at `now`.
    #[must_use]
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        self.expiries().iter().filter_map(|expiry| expiry.warning(now)).collect()
    }

    /// Connects to the service.
    #[must_use]
    pub fn dialer(&self) -> Dialer {
        Dialer::to_service(self.clone())
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.0.load().config.clone()
    }
}

fn expiry(file: File<'_>, certificate: &Certificate) -> Expiry {
    Expiry { setting: file.setting, path: file.path.to_owned(), not_after: certificate.not_after }
}

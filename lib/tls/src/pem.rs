//! Reads PEM files. Keys may be PKCS #8, SEC1 or PKCS #1.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::Error;

/// A file, and the name by which the person has given it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File<'a> {
    pub(crate) setting: &'static str,
    pub(crate) path: &'a Path,
}

impl File<'_> {
    pub(crate) fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Content { setting: self.setting, path: self.path.to_owned(), why: why.into() }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        fs::read(self.path).map_err(|source| Error::Read { setting: self.setting, path: self.path.to_owned(), source })
    }

    /// The certificates of the file, at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.read()?).collect();
        let found = found.map_err(|e| self.wrong(format!("is no PEM file: {e}")))?;
        if found.is_empty() {
            return Err(self.wrong("holds no certificate; it must begin with -----BEGIN CERTIFICATE-----"));
        }
        Ok(found)
    }

    /// The private key of the file.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, Error> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|e| {
            self.wrong(format!(
                "holds no private key that can be used ({e}); it must be PKCS #8, SEC1 or PKCS #1 in PEM, without a \
                    passphrase"
            ))
        })
    }

    /// The authorities of the file.
    pub(crate) fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|e| self.wrong(format!("holds a certificate that is no authority: {e}")))?;
        }
        Ok(roots)
    }

    /// Whether others than the owner may read the file.
    pub(crate) fn readable_by_others(&self) -> bool {
        fs::metadata(self.path).is_ok_and(|meta| meta.permissions().mode() & 0o044 != 0)
    }
}

/// The authorities of a file or of all files of a directory, of this system where neither is named.
pub(crate) fn roots(file: File<'_>, dir: File<'_>) -> Result<RootCertStore, Error> {
    if !file.path.as_os_str().is_empty() {
        return file.roots();
    }
    let File { setting, path: dir } = dir;
    if dir.as_os_str().is_empty() {
        return system_roots();
    }
    let failed = |source| Error::Read { setting, path: dir.to_owned(), source };
    let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()).map_err(failed)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    let mut all = RootCertStore::empty();
    for path in paths {
        all.roots.extend(File { setting, path: &path }.roots()?.roots);
    }
    if all.is_empty() {
        return Err(File { setting, path: dir }.wrong("holds no certificate"));
    }
    Ok(all)
}

/// The authorities of texts.
pub(crate) fn text_roots(setting: &str, texts: &[String]) -> Result<RootCertStore, Error> {
    let wrong = |why: String| Error::Settings(format!("{setting}: {why}"));
    let mut roots = RootCertStore::empty();
    for certificate in texts.iter().flat_map(|text| CertificateDer::pem_slice_iter(text.as_bytes())) {
        let certificate = certificate.map_err(|e| wrong(format!("is not PEM: {e}")))?;
        roots.add(certificate).map_err(|e| wrong(format!("holds a certificate that is no authority: {e}")))?;
    }
    if roots.is_empty() {
        return Err(wrong("holds no certificate; it must begin with -----BEGIN CERTIFICATE-----".to_owned()));
    }
    Ok(roots)
}

/// The authorities of this system.
pub(crate) fn system_roots() -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(Error::NoRoots(if why.is_empty() { "none were found".to_owned() } else { why.join("; ") }));
    }
    Ok(roots)
}

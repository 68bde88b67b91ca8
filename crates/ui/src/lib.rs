//! The web UI: static files within the program, compressed. It knows no server and no request; begin reading with
//! `web/app.js`, whose pages ask the same HTTP API as everybody.

use std::{
    io::{self, Read as _},
    sync::LazyLock,
};

use flate2::read::GzDecoder;

/// A file of the web UI.
#[derive(Debug)]
pub struct Asset {
    /// Its path below `web/`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes as gzip.
    pub gzip: &'static [u8],
}

impl Asset {
    /// Its bytes, for whoever takes no gzip.
    ///
    /// # Errors
    /// None with the files that the build has compressed.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        GzDecoder::new(self.gzip).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The page that every address below `/ui/` answers with.
#[derive(Debug)]
pub struct Shell {
    /// HTML; its links name the files by [`hash`].
    pub html: String,
    /// Its entity tag, quoted.
    pub etag: String,
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

static SHELL: LazyLock<Shell> = LazyLock::new(|| Shell {
    html: include_str!("../web/index.html").replace("@HASH@", hash()),
    etag: format!("\"{}\"", hash()),
});

/// Hash of all files: 16 hexadecimal digits that change when any of them does.
#[must_use]
pub fn hash() -> &'static str {
    HASH
}

/// The file at `HASH/PATH`; None where the hash is of another release or there is no such file.
#[must_use]
pub fn asset(hashed: &str) -> Option<&'static Asset> {
    let path = hashed.strip_prefix(hash())?.strip_prefix('/')?;
    ASSETS.iter().find(|asset| asset.path == path)
}

/// The page that holds all others.
#[must_use]
pub fn shell() -> &'static Shell {
    &SHELL
}

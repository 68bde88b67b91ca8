//! The web UI: static files within the program, compressed once. It knows no server and no request; begin reading
//! with `web/app.js`, whose pages ask the same HTTP API as everybody.

use std::{io::Write as _, sync::LazyLock};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

/// A file of the web UI.
#[derive(Debug)]
pub struct Asset {
    /// Its path below `web/`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// The same, as gzip.
    pub gzip: Vec<u8>,
}

/// The page that every address below `/ui/` answers with.
#[derive(Debug)]
pub struct Shell {
    /// HTML; its links name the files by [`hash`].
    pub html: String,
    /// Its entity tag, quoted.
    pub etag: String,
}

const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const INDEX: &str = include_str!("../web/index.html");

macro_rules! files {
    ($($kind:ident $path:literal),* $(,)?) => {
        &[$(($path, $kind, include_bytes!(concat!("../web/", $path)).as_slice())),*]
    };
}

const FILES: &[(&str, &str, &[u8])] = files![
    JS "app.js",
    CSS "css/base.css",
    SVG "icon.svg",
    JS "lib/api.js",
    JS "lib/diff.js",
    JS "lib/format.js",
    JS "lib/html.js",
    JS "lib/lanes.js",
    JS "lib/loads.js",
    JS "lib/parts.js",
    JS "lib/routes.js",
    JS "pages/access.js",
    JS "pages/cluster.js",
    JS "pages/jobs.js",
    JS "pages/places.js",
    JS "pages/variables.js",
    JS "vendor/hooks.js",
    JS "vendor/htm.js",
    JS "vendor/preact.js",
];

static HASH: LazyLock<String> = LazyLock::new(|| {
    let mut all = Sha256::new_with_prefix(INDEX);
    for (path, _, bytes) in FILES {
        all.update(path);
        all.update(bytes);
    }
    all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let compressed = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail; if it did, the file would go out as it is.
        encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default()
    };
    let asset = |(path, content_type, bytes): &(&'static str, &'static str, &'static [u8])| Asset {
        path,
        content_type,
        bytes,
        gzip: compressed(bytes),
    };
    FILES.iter().map(asset).collect()
});

static SHELL: LazyLock<Shell> =
    LazyLock::new(|| Shell { html: INDEX.replace("@HASH@", hash()), etag: format!("\"{}\"", hash()) });

/// Hash of all files: 16 hexadecimal digits that change when any of them does.
#[must_use]
pub fn hash() -> &'static str {
    &HASH
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

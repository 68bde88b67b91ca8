//! Makes one file of the modules of `web/`, compresses it and the other files, and lists them with their hash, so that
//! the program holds each once.

#[path = "bundle.rs"]
mod bundle;

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

/// Media types by extension; other files below `web/` are for readers of the source.
const KINDS: &[(&str, &str)] =
    &[("js", "text/javascript; charset=utf-8"), ("css", "text/css; charset=utf-8"), ("svg", "image/svg+xml")];

fn main() -> io::Result<()> {
    let web = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("web");
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    println!("cargo::rerun-if-changed=web");
    println!("cargo::rerun-if-changed=bundle.rs");
    let mut files = Vec::new();
    find(&web, &web, &mut files)?;
    files.sort();
    let bundle = bundle::bundle("app.js", &|path| fs::read_to_string(web.join(path)).ok()).map_err(io::Error::other)?;
    let idle = |path: &&String| path.ends_with(".js") && !path.starts_with("vendor/") && !bundle.modules.contains(path);
    if let Some(idle) = files.iter().find(idle) {
        return Err(io::Error::other(format!("web/{idle}: no module imports it")));
    }
    files.retain(|path| path == "app.js" || !bundle.modules.contains(path));
    let mut all = Sha256::new_with_prefix(fs::read(web.join("index.html"))?);
    let mut table = String::new();
    for (n, path) in files.iter().enumerate() {
        let Some((_, kind)) = KINDS.iter().find(|(end, _)| path.rsplit('.').next() == Some(end)) else { continue };
        let bytes = if path == "app.js" { bundle.text.clone().into_bytes() } else { fs::read(web.join(path))? };
        all.update(path);
        all.update(&bytes);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes)?;
        let packed = out.join(format!("{n}.gz"));
        fs::write(&packed, encoder.finish()?)?;
        table.push_str(&format!(
            "Asset {{ path: {path:?}, content_type: {kind:?}, gzip: include_bytes!({:?}) }},\n",
            packed.display().to_string()
        ));
    }
    let hash: String = all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let text = format!("const HASH: &str = {hash:?};\nconst ASSETS: &[Asset] = &[\n{table}];\n");
    fs::write(out.join("files.rs"), text)
}

/// The paths below `dir`, relative to `web`.
fn find(web: &Path, dir: &Path, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find(web, &path, files)?;
        } else if let Some(name) = path.strip_prefix(web).ok().and_then(Path::to_str) {
            files.push(name.to_owned());
        }
    }
    Ok(())
}

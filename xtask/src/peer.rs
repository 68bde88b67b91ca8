//! Builds real peers from the Go module registry: a stock Nomad agent, and Nomad's raw_exec driver as an external
//! plugin.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    local, packages,
    process::{Run, patiently},
    workspace,
};

/// Name of the directory of locks, beside the peers.
const LOCKS: &str = "locks";

/// A release of Nomad that builds from the Go module registry alone.
///
/// The published module leaves its nested api module out, which is laid into place: it is one of the same commit or
/// nearest to it. The registry that continuous integration uses does not list versions and does not serve all: 1.9.7,
/// 1.10 and 2.x tags lack one half of the pair or both.
pub(crate) struct Release {
    /// What `cargo xtask peer nomad` and the checks call it.
    pub(crate) name: &'static str,
    /// Version of the module `github.com/hashicorp/nomad`.
    module: &'static str,
    /// Version of its module `api`.
    api: &'static str,
    /// Build tags, those of the release's own makefile.
    tags: &'static str,
    /// Whether a plugin may claim `remote_tasks`: 1.10 has removed it.
    pub(crate) remote_tasks: bool,
}

/// The release that we are compatible with.
pub(crate) const NOMAD_1_9: Release =
    Release { name: "1.9", module: "v1.9.4", api: "v0.0.0-20241218080744-e3ac00f30eec", tags: "", remote_tasks: true };

/// The newest that the registry serves: 2.0.5-dev, between 2.0.4 and 2.0.5. Tags of major version 2 cannot be required
/// under this module path, so it has the version of a commit.
pub(crate) const NOMAD_NEWEST: Release = Release {
    name: "newest",
    module: "v0.0.0-20260724112153-37c73b2918bd",
    api: "v0.0.0-20260724112153-37c73b2918bd",
    tags: "hashicorpmetrics",
    remote_tasks: false,
};

/// The release of this name.
pub(crate) fn release(name: &str) -> Result<&'static Release> {
    match [&NOMAD_1_9, &NOMAD_NEWEST].into_iter().find(|r| r.name == name) {
        Some(release) => Ok(release),
        None => bail!("no release of Nomad is called {name:?} here; there are 1.9 and newest"),
    }
}

/// Directory of a downloaded module.
fn module_dir(dir: &Path, module: &str) -> Result<PathBuf> {
    let download = Run::new(packages::go()?, ["mod", "download", "-json", module]).dir(dir);
    let json = patiently(|| download.output())?;
    let value: Value = serde_json::from_str(&json).context("go mod download printed something that is not JSON")?;
    match value["Dir"].as_str() {
        Some(d) => Ok(PathBuf::from(d)),
        None => bail!("the Go module registry does not serve {module}: {}", value["Error"]),
    }
}

/// The published module of a release, as it is.
pub(crate) fn nomad_module(release: &Release) -> Result<PathBuf> {
    module(release.name, &format!("github.com/hashicorp/nomad@{}", release.module))
}

/// The published `api` module of a release, as it is.
pub(crate) fn api_module(release: &Release) -> Result<PathBuf> {
    module(release.name, &format!("github.com/hashicorp/nomad/api@{}", release.api))
}

/// Terraform, of the last release under a free licence; built once.
pub(crate) fn terraform() -> Result<PathBuf> {
    program("terraform", "v1.5.7")
}

/// The Nomad Autoscaler with the plugins that it brings; built once.
pub(crate) fn autoscaler() -> Result<PathBuf> {
    program("nomad-autoscaler", "v0.4.5")
}

/// A program from its module of HashiCorp's; built once.
fn program(name: &str, version: &str) -> Result<PathBuf> {
    cached(&local::peers()?.join(format!("{name}-{version}")), |out| {
        let out = absolute(out)?;
        let source = module(name, &format!("github.com/hashicorp/{name}@{version}"))?;
        let flags = ["build", "-trimpath", "-o"].map(std::ffi::OsStr::new);
        let build = Run::new(packages::go()?, flags.into_iter().chain([out.as_os_str(), ".".as_ref()]));
        build.dir(source).run_patiently()
    })
}

/// The tests of the `api` module, compiled once per version.
pub(crate) fn api_tests(release: &Release) -> Result<PathBuf> {
    let file = local::peers()?.join(format!("nomad-api-{}.test", release.api));
    cached(&file, |out| {
        let out = absolute(out)?;
        let scratch = Scratch::new("api-tests")?;
        let source = scratch.0.join("api");
        copy_tree(&api_module(release)?, &source)?;
        let flags = ["test", "-trimpath", "-c", "-o"].map(std::ffi::OsStr::new);
        let build = Run::new(packages::go()?, flags.into_iter().chain([out.as_os_str(), ".".as_ref()]));
        build.dir(source).run_patiently()
    })
}

/// A directory with the compiled tests of these packages below `e2e`, and of `e2e` itself as `framework`. Built once
/// per version and packages.
pub(crate) fn e2e_tests(release: &Release, packages: &[&str]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let dir = local::peers()?.join(format!("nomad-e2e-{}-{:016x}", release.module, hasher.finish()));
    cached(&dir, |out| {
        fs::create_dir_all(out)?;
        let scratch = Scratch::new("e2e-tests")?;
        let source = nomad_source(release, &scratch.0)?;
        for (name, package) in
            packages.iter().map(|name| (*name, format!("./e2e/{name}"))).chain([("framework", "./e2e".to_owned())])
        {
            let file = out.join(format!("{name}.test"));
            let flags = ["test", "-trimpath", "-tags", release.tags, "-c", "-o"].map(std::ffi::OsStr::new);
            Run::new(crate::packages::go()?, flags.into_iter().chain([file.as_os_str(), package.as_ref()]))
                .dir(&source)
                .run_patiently()?;
        }
        Ok(())
    })
}

/// Packages of drivers whose tests [`driver_tests`] compiles.
pub(crate) const DRIVER_PACKAGES: &[&str] = &["rawexec", "exec"];

/// A directory with the compiled tests of [`DRIVER_PACKAGES`], where a driver of ours that hands its calls to a plugin
/// has the place of the stock ones. Built once per version and source.
pub(crate) fn driver_tests(release: &Release) -> Result<PathBuf> {
    let from = workspace::root().join("xtask/interop/go-driver-proxy");
    let file = |name: &str| from.join(format!("{name}.go"));
    let mut hasher = DefaultHasher::new();
    for name in DRIVER_PACKAGES.iter().chain(&["proxy"]) {
        fs::read(file(name)).with_context(|| format!("could not read {}", file(name).display()))?.hash(&mut hasher);
    }
    let dir = local::peers()?.join(format!("nomad-drivers-{}-{:016x}", release.module, hasher.finish()));
    cached(&dir, |out| {
        let out = absolute(out)?;
        fs::create_dir_all(&out)?;
        let scratch = Scratch::new("driver-tests")?;
        let source = nomad_source(release, &scratch.0)?;
        let shared = source.join("drivers/shared/droverproxy");
        fs::create_dir_all(&shared)?;
        fs::copy(file("proxy"), shared.join("proxy.go"))?;
        for package in DRIVER_PACKAGES {
            let dir = source.join("drivers").join(package);
            // The tests stay as they are; everything else of the package goes.
            for entry in fs::read_dir(&dir)? {
                let path = entry?.path();
                if path.extension().is_some_and(|e| e == "go") && !path.to_string_lossy().ends_with("_test.go") {
                    fs::remove_file(path)?;
                }
            }
            fs::copy(file(package), dir.join("driver.go"))?;
            let (test, package) = (out.join(format!("{package}.test")), format!("./drivers/{package}"));
            let flags = ["test", "-trimpath", "-tags", release.tags, "-c", "-o"].map(std::ffi::OsStr::new);
            Run::new(packages::go()?, flags.into_iter().chain([test.as_os_str(), package.as_ref()]))
                .dir(&source)
                .run_patiently()?;
        }
        Ok(())
    })
}

/// A downloaded module by its name and version.
fn module(what: &str, name: &str) -> Result<PathBuf> {
    let scratch = Scratch::new(&format!("module-{what}"))?;
    fs::write(scratch.0.join("go.mod"), "module peer\n\ngo 1.23\n")?;
    module_dir(&scratch.0, name)
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    Run::new("cp", [Path::new("-r"), from, to]).run()?;
    Run::new("chmod", [Path::new("-R"), Path::new("u+w"), to]).run()
}

/// Lays Nomad's source out in `work` so that it builds, and returns its directory.
fn nomad_source(release: &Release, work: &Path) -> Result<PathBuf> {
    fs::write(work.join("go.mod"), "module peer\n\ngo 1.23\n")?;
    let nomad = module_dir(work, &format!("github.com/hashicorp/nomad@{}", release.module))?;
    let nested = module_dir(work, &format!("github.com/hashicorp/nomad/api@{}", release.api))?;
    let source = work.join("nomad");
    copy_tree(&nomad, &source)?;
    let place = source.join("api");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    copy_tree(&nested, &place)?;
    Ok(source)
}

/// A scratch directory that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("drover-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("could not make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: the directory is in the system's temporary folder.
        drop(fs::remove_dir_all(&self.0));
    }
}

fn absolute(out: &Path) -> Result<PathBuf> {
    let out = std::path::absolute(out)?;
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(out)
}

/// Builds a stock Nomad agent to `out`. About five minutes cold on two cores, without its web pages.
pub(crate) fn nomad(release: &Release, out: &Path) -> Result<()> {
    let out = absolute(out)?;
    let scratch = Scratch::new(&format!("nomad-{}", release.name))?;
    let source = nomad_source(release, &scratch.0)?;
    let flags = ["build", "-trimpath", "-ldflags", "-s -w", "-tags", release.tags, "-o"];
    Run::new(packages::go()?, flags.iter().map(std::ffi::OsStr::new).chain([out.as_os_str(), ".".as_ref()]))
        .dir(source)
        .run_patiently()
}

/// A stock Nomad agent, built once per version.
pub(crate) fn nomad_cached(release: &Release) -> Result<PathBuf> {
    let file = local::peers()?.join(format!("nomad-{}", release.module));
    cached(&file, |out| nomad(release, out))
}

/// Builds `file` unless it is there; a build that fails leaves nothing, one that is interrupted nothing under that
/// name. Who asks for the same file meanwhile, also in another process, waits and finds it built.
pub(crate) fn cached(file: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let _at_a_time = lock(file)?;
    if !file.exists() {
        let unfinished = file.with_extension(format!("{}.new", std::process::id()));
        let built = build(&unfinished).and_then(|()| {
            fs::rename(&unfinished, file).with_context(|| format!("could not put {} in place", file.display()))
        });
        if let Err(error) = built {
            // A file or a directory; nothing at all where the build has not come far.
            drop(fs::remove_file(&unfinished));
            drop(fs::remove_dir_all(&unfinished));
            return Err(error);
        }
    }
    Ok(file.to_owned())
}

/// The lock of a peer, until it is dropped or this process dies.
fn lock(file: &Path) -> Result<fs::File> {
    let (Some(dir), Some(name)) = (file.parent(), file.file_name()) else {
        bail!("a peer cannot be at {}", file.display())
    };
    let locks = dir.join(LOCKS);
    fs::create_dir_all(&locks)
        .and_then(|()| fs::File::create(locks.join(name)))
        .and_then(|lock| lock.lock().map(|()| lock))
        .with_context(|| format!("could not lock {}", file.display()))
}

/// A Go program of one file, whose dependencies come from the Go module registry.
pub(crate) struct GoProgram {
    pub(crate) name: &'static str,
    /// Its directory in the workspace.
    pub(crate) from: &'static str,
    main: &'static str,
}

/// Nomad's raw_exec as an external plugin: its driver package from the registry, served by a small main.
pub(crate) const GO_RAW_EXEC: GoProgram =
    GoProgram { name: "go-raw-exec", from: "xtask/interop/go-raw-exec", main: "main.go" };
/// A driver of local processes made of the stock packages, whose workloads say nothing of their task.
pub(crate) const GO_EXEC_DRIVER: GoProgram =
    GoProgram { name: "go-exec-driver", from: "xtask/interop/go-exec-driver", main: "main.go" };
/// A remote driver of the plain protocol made of the stock packages, with a runtime of its own.
pub(crate) const GO_REMOTE_DRIVER: GoProgram =
    GoProgram { name: "go-remote-driver", from: "xtask/interop/go-remote-driver", main: "main.go" };
/// A host made of Nomad's own plugin client: it drives a plugin of ours as a stock agent does.
pub(crate) const GO_HOST: GoProgram = GoProgram { name: "go-host", from: "xtask/interop/go-host", main: "main.go" };
/// The reference parser: what `POST /v1/jobs/parse` of a stock agent answers for job files.
pub(crate) const GO_JOBS_PARSE: GoProgram =
    GoProgram { name: "go-jobs-parse", from: "xtask/interop/go-jobs-parse", main: "main.go" };
/// Renders the golden cases of the template crate with Go's text/template and consul-template.
pub(crate) const GO_TEMPLATES: GoProgram =
    GoProgram { name: "go-templates", from: "crates/template/tests/golden", main: "generate.go" };

/// Finds the moments of the golden cron expressions with the library of Nomad.
pub(crate) const GO_CRON: GoProgram =
    GoProgram { name: "go-cron", from: "crates/model/tests/cron", main: "generate.go" };

/// Judges what clients of jobs have seen with Porcupine, a checker of linearizability.
pub(crate) const GO_LINEARIZABLE: GoProgram =
    GoProgram { name: "go-linearizable", from: "xtask/interop/go-linearizable", main: "main.go" };

/// A relying party of workload identities, made of go-oidc.
pub(crate) const GO_VERIFIER: GoProgram =
    GoProgram { name: "go-verifier", from: "xtask/interop/go-verifier", main: "main.go" };

impl GoProgram {
    /// Its files, and what Go calls them.
    fn files(&self) -> [(PathBuf, &'static str); 2] {
        let dir = workspace::root().join(self.from);
        [(dir.join(self.main), "main.go"), (dir.join("go.mod.template"), "go.mod")]
    }

    /// Built once per source.
    pub(crate) fn cached(&self) -> Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        for (file, _) in self.files() {
            fs::read(&file).with_context(|| format!("could not read {}", file.display()))?.hash(&mut hasher);
        }
        let file = local::peers()?.join(format!("{}-{:016x}", self.name, hasher.finish()));
        cached(&file, |out| self.build(out))
    }

    /// Builds it to `out`.
    pub(crate) fn build(&self, out: &Path) -> Result<()> {
        let out = absolute(out)?;
        let scratch = Scratch::new(self.name)?;
        for (file, to) in self.files() {
            fs::copy(&file, scratch.0.join(to)).with_context(|| format!("there is no {}", file.display()))?;
        }
        Run::new(packages::go()?, ["mod", "tidy"]).dir(&scratch.0).run_patiently()?;
        let flags = ["build", "-trimpath", "-ldflags", "-s -w", "-o"];
        Run::new(packages::go()?, flags.iter().map(std::ffi::OsStr::new).chain([out.as_os_str(), ".".as_ref()]))
            .dir(&scratch.0)
            .run_patiently()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn two_that_ask_for_a_file_at_once_build_it_once() {
        let scratch = Scratch::new("cached").expect("a directory");
        let (file, builds, both) = (scratch.0.join("built"), AtomicUsize::new(0), Barrier::new(2));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    both.wait();
                    let built = cached(&file, |out| {
                        builds.fetch_add(1, Ordering::Relaxed);
                        // The other one comes in the middle of it.
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        Ok(fs::write(out, "whole")?)
                    });
                    assert_eq!(fs::read_to_string(built.expect("no failure")).expect("a file"), "whole");
                });
            }
        });
        assert_eq!(builds.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let scratch = Scratch::new("cached-failed").expect("a directory");
        let tree = scratch.0.join("tree");
        let fill = |dir: &Path| {
            fs::create_dir(dir)?;
            Ok(fs::write(dir.join("file"), "whole")?)
        };
        let failed = cached(&tree, |out| {
            fill(out)?;
            bail!("no more")
        });
        assert_eq!(failed.expect_err("a failed build").to_string(), "no more");
        let found = cached(&tree, fill);
        assert_eq!(fs::read_to_string(found.expect("no failure").join("file")).expect("a file"), "whole");
        let left = fs::read_dir(&scratch.0).expect("the directory").flatten().map(|entry| entry.file_name());
        assert_eq!(left.filter(|name| name != LOCKS).collect::<Vec<_>>(), ["tree"]);
    }
}

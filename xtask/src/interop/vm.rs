//! A virtual machine with a Debian kernel, for what the kernel of this machine cannot show: programs of this machine
//! run there as root, on its own files, which the guest sees but cannot write to.
//!
//! ```text
//! initrd    a static busybox, the modules that reach the host's files, `init`
//! /         this machine's files by 9p, read only; memory where something is to be written
//! ttyS0     what the kernel and the program say         ttyS1     heartbeats, and how the program has ended
//! ```

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use testkit::Unbroken;

use crate::{
    local,
    packages::{self, Skip, Wanted},
    process::Run,
};

/// Depends on the newest kernel. The kernels for clouds lack 9p.
const KERNEL: &str = "linux-image-amd64";
/// What reaches the host's files, in the order in which it is loaded.
const MODULES: [&str; 10] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "fs/netfs/netfs",
    "fs/fscache/fscache",
    "net/9p/9pnet",
    "net/9p/9pnet_virtio",
    "fs/9p/9p",
];

/// How often the guest says that it lives, in seconds.
const BEAT: u32 = 2;
/// A guest that has not said so for this long stands still: nothing runs in it any more, not even a shell. It is longer
/// than a kernel waits before it tells of tasks that hang (120 s).
const STILL: Duration = Duration::from_secs(180);

/// A kernel and its modules.
pub(crate) struct Kernel {
    /// The package's name, which has the version.
    pub(crate) name: String,
    dir: PathBuf,
}

impl Kernel {
    /// Installs what a virtual machine needs; the error says why that cannot be.
    pub(crate) fn prepare() -> Result<Self, Skip> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Skip::because("the virtual machine is made for x86_64"));
        }
        let wanted = [
            Wanted::new("qemu-system-x86_64", "qemu-system-x86"),
            Wanted::without_libraries("busybox", "busybox-static"),
            Wanted::new("dpkg-deb", "dpkg"),
        ];
        packages::need(&wanted)?;
        let place = local::peers().map_err(|e| Skip::because(format!("{e:#}")))?.join("kernel");
        // One that was fetched before serves as well, wherever it came from.
        if let Some(kernel) = Self::fetched(&place) {
            return Ok(kernel);
        }
        Self::fetch(&place).map_err(|e| Skip::because(format!("no kernel could be fetched: {e:#}")))
    }

    fn fetched(place: &Path) -> Option<Self> {
        let entry = fs::read_dir(place)
            .ok()?
            .flatten()
            .find(|e| e.file_name().to_string_lossy().starts_with("linux-image-"))?;
        Some(Self { name: entry.file_name().into_string().ok()?, dir: entry.path() })
    }

    fn fetch(place: &Path) -> Result<Self> {
        let unfinished = place.join(format!("unfinished-{}", std::process::id()));
        fs::create_dir_all(&unfinished)?;
        let fetched = Self::fetch_into(&unfinished).and_then(|name| {
            let dir = place.join(&name);
            // Under its name only when it is complete.
            fs::rename(&unfinished, &dir)?;
            Ok(Self { name, dir })
        });
        drop(fs::remove_dir_all(&unfinished));
        fetched
    }

    fn fetch_into(dir: &Path) -> Result<String> {
        let depends = Run::new("apt-cache", ["depends", KERNEL]).output()?;
        let name = depends
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: ").filter(|name| name.starts_with("linux-image-")));
        let name = name.with_context(|| format!("package {KERNEL} names no kernel: {depends}"))?;
        packages::download(name, dir)?;
        let mut files = fs::read_dir(dir)?.flatten().map(|e| e.path());
        let package = files
            .find(|file| file.extension().is_some_and(|e| e == "deb"))
            .context("apt-get download has left no package")?;
        // The whole would be some hundred MiB.
        let wanted =
            MODULES.iter().map(|module| format!("'./lib/modules/*/kernel/{module}.ko*'")).collect::<Vec<_>>().join(" ");
        let unpack =
            format!("dpkg-deb --fsys-tarfile \"$0\" | tar -x -C \"$1\" --wildcards './boot/vmlinuz-*' {wanted}");
        Run::new("sh", ["-c".as_ref(), unpack.as_ref(), package.as_os_str(), dir.as_os_str()]).run()?;
        fs::remove_file(&package)?;
        Ok(name.to_owned())
    }

    fn image(&self) -> Result<PathBuf> {
        only(&self.dir.join("boot"))
    }

    fn module(&self, module: &str) -> Result<PathBuf> {
        let file = only(&self.dir.join("lib/modules"))?.join("kernel").join(module).with_extension("ko");
        ensure!(file.is_file(), "the kernel's package has no module {module}");
        Ok(file)
    }
}

/// The only entry of a directory.
fn only(dir: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?.flatten();
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry.path()),
        _ => bail!("{} does not hold exactly one thing", dir.display()),
    }
}

/// A machine to be booted for one program.
pub(crate) struct Guest<'a> {
    pub(crate) processors: u32,
    pub(crate) memory_mib: u32,
    /// Directories of the host that it sees also where its own /tmp would hide them.
    pub(crate) seen: Vec<PathBuf>,
    /// Directories, besides those for temporary files, that are empty memory there.
    pub(crate) writable: Vec<PathBuf>,
    pub(crate) env: Vec<(&'a str, String)>,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// How long the whole may take.
    pub(crate) bound: Duration,
}

/// How a guest's program has ended.
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) console: String,
}

/// How an attempt to run a guest has ended.
enum Attempt {
    /// The guest has switched itself off.
    Ended(Ended),
    /// The guest stood still; what its console, its processors and its tasks showed.
    Still(String),
}

/// A process that ends with its owner.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Guest<'_> {
    /// Boots it, waits for its end.
    ///
    /// On a busy machine the emulator rarely leaves a guest standing, at any point of its work: both processors spin on
    /// pending interrupts, and no timer is armed. Only a race of the threads that emulate one processor each explains
    /// that. So what is seen of such a guest is printed, and it is booted again with one thread for all its processors,
    /// which takes twice as long; a guest that stands still then has failed.
    pub(crate) fn run(&self, kernel: &Kernel) -> Result<Ended> {
        let dir = std::env::temp_dir().join(format!("drover-interop-vm-{}", std::process::id()));
        let attempt = |threads: &str| {
            fs::create_dir_all(&dir)?;
            let attempt = self.boot(kernel, &dir, threads);
            drop(fs::remove_dir_all(&dir));
            attempt
        };
        let seen = match attempt("multi")? {
            Attempt::Ended(ended) => return Ok(ended),
            Attempt::Still(seen) => seen,
        };
        println!("the virtual machine stood still for {} s and is booted again:\n{seen}", STILL.as_secs());
        match attempt("single")? {
            Attempt::Ended(ended) => Ok(ended),
            Attempt::Still(seen) => {
                bail!("the virtual machine stood still for {} s, twice:\n{seen}", STILL.as_secs())
            }
        }
    }

    fn boot(&self, kernel: &Kernel, dir: &Path, threads: &str) -> Result<Attempt> {
        let initrd = self.initrd(kernel, dir)?;
        let (console, result, monitor) = (dir.join("console"), dir.join("result"), dir.join("monitor"));
        let serial = |file: &Path| format!("file:{}", file.display());
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args([
                "-machine",
                "pc",
                "-accel",
                &format!("tcg,thread={threads}"),
                "-cpu",
                "max",
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .args(["-smp", &self.processors.to_string(), "-m", &self.memory_mib.to_string()])
            .arg("-kernel")
            .arg(kernel.image()?)
            .arg("-initrd")
            .arg(initrd)
            // A kernel that panics leaves the machine at once, and so without a result. Interrupted by the monitor, it
            // panics, and tells of all processors and all tasks that wait for something.
            .args(["-append", "console=ttyS0 quiet panic=-1 unknown_nmi_panic panic_print=0x41"])
            .args(["-serial", &serial(&console), "-serial", &serial(&result)])
            .args(["-monitor", &format!("unix:{},server=on,wait=off", monitor.display())])
            .args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"])
            .stdin(Stdio::null());
        let mut qemu = Qemu(command.spawn().context("could not start qemu-system-x86_64")?);
        let until = Instant::now() + self.bound;
        let text = |file: &Path| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).replace('\r', "");
        let (mut said, mut heard) = (0, Instant::now());
        let status = loop {
            if let Some(status) = qemu.0.try_wait()? {
                break status;
            }
            let says = fs::metadata(&result).map_or(0, |file| file.len());
            if says != said {
                (said, heard) = (says, Instant::now());
            }
            if heard.elapsed() > STILL {
                let seen = examine(&monitor).unwrap_or_else(|e| format!("its monitor does not answer: {e:#}"));
                return Ok(Attempt::Still(format!("{seen}\n{}", text(&console))));
            }
            ensure!(
                Instant::now() < until,
                "the virtual machine did not end within {} s:\n{}",
                self.bound.as_secs(),
                text(&console)
            );
            std::thread::sleep(Duration::from_millis(50));
        };
        ensure!(status.success(), "qemu-system-x86_64 ended with {status}:\n{}", text(&console));
        let said = text(&result);
        let status =
            said.lines().rev().find_map(|line| line.trim().parse().ok()).with_context(|| {
                format!("the virtual machine ended without a result ({said:?}):\n{}", text(&console))
            })?;
        Ok(Attempt::Ended(Ended { status, console: text(&console) }))
    }

    fn initrd(&self, kernel: &Kernel, dir: &Path) -> Result<PathBuf> {
        let root = dir.join("initrd");
        for below in ["bin", "modules", "host", "dev"] {
            fs::create_dir_all(root.join(below))?;
        }
        fs::copy(packages::find("busybox").context("no busybox")?, root.join("bin/busybox"))?;
        for module in MODULES {
            let file = kernel.module(module)?;
            let name = file.file_name().context("a module without a name")?;
            fs::copy(&file, root.join("modules").join(name))?;
        }
        let init = root.join("init");
        fs::write(&init, self.init())?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        let archive = dir.join("initrd.cpio");
        let pack = "cd \"$0\" && find . | busybox cpio -o -H newc 2>/dev/null > \"$1\"";
        Run::new("sh", ["-c".as_ref(), pack.as_ref(), root.as_os_str(), archive.as_os_str()]).run()?;
        Ok(archive)
    }

    /// The first process: makes the host's files its root, runs the program, says how it ended, switches off.
    fn init(&self) -> String {
        let modules = MODULES.iter().filter_map(|module| module.rsplit('/').next());
        let load: String = modules.map(|module| format!("b insmod /modules/{module}.ko\n")).collect();
        let writable: String = self
            .writable
            .iter()
            .map(|dir| format!("b mount -t tmpfs tmpfs /host{}\n", quoted(&dir.display().to_string())))
            .collect();
        let seen: String = self
            .seen
            .iter()
            .filter_map(|dir| dir.strip_prefix("/tmp").ok())
            .map(|dir| quoted(&dir.display().to_string()))
            .map(|dir| format!("b mkdir -p /host/tmp/{dir}\nb mount -o bind /hidden/{dir} /host/tmp/{dir}\n"))
            .collect();
        let env: String =
            self.env.iter().map(|(name, value)| format!(" {}", quoted(&format!("{name}={value}")))).collect();
        let words: String = self.args.iter().map(|arg| format!(" {}", quoted(arg))).collect();
        let program = quoted(&self.program.display().to_string());
        format!(
            "#!/bin/busybox sh\nb() {{ /bin/busybox \"$@\"; }}\nset -e\n\
             b mount -t devtmpfs dev /dev\n{load}\
             b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose host /host\n\
             b mount -t proc proc /host/proc\nb mount -t sysfs sysfs /host/sys\nb mount -t devtmpfs dev /host/dev\n\
             b mkdir -p /host/dev/pts /host/dev/shm\nb mount -t devpts devpts /host/dev/pts\nb mount -t tmpfs tmpfs \
             /host/dev/shm\n\
             b mkdir -p /hidden\nb mount -o bind /host/tmp /hidden\n\
             b mount -t tmpfs -o mode=1777 tmpfs /host/tmp\nb mount -t tmpfs tmpfs /host/run\n{seen}{writable}\
             b mount -t cgroup2 cgroup2 /host/sys/fs/cgroup\nb ip link set lo up\n\
             exec /bin/busybox switch_root -c /dev/console /host /bin/sh -c {}\n",
            quoted(&format!(
                "while :; do echo .; sleep {BEAT}; done > /dev/ttyS1 &\n\
                 /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp{env} \
                    {program}{words} </dev/null\n\
                 echo $? > /dev/ttyS1\necho o > /proc/sysrq-trigger\nwhile :; do sleep 1; done\n"
            ))
        )
    }
}

/// What the monitor says of a machine that stands still, and makes its kernel say on the console.
fn examine(monitor: &Path) -> Result<String> {
    let mut monitor = UnixStream::connect(monitor)?;
    monitor.set_read_timeout(Some(Duration::from_secs(5)))?;
    monitor.write_all(b"info status\ninfo cpus\ninfo registers -a\nnmi\n")?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // Until it is silent: the kernel writes its own answer meanwhile, and the machine ends with it.
    while let Ok(length @ 1..) = Unbroken(&monitor).read(&mut part) {
        answer.extend_from_slice(&part[..length]);
    }
    // What it was asked comes back letter by letter.
    let text = String::from_utf8_lossy(&answer).replace('\r', "");
    Ok(text.lines().filter(|line| !line.contains('\u{1b}')).collect::<Vec<_>>().join("\n"))
}

/// One word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_given_is_one_word() {
        let guest = Guest {
            processors: 1,
            memory_mib: 256,
            seen: vec!["/home/c".into(), "/tmp/d e".into()],
            writable: vec!["/a b".into()],
            env: vec![("X", "it's".into())],
            program: "/p".into(),
            args: vec!["$(reboot)".into()],
            bound: Duration::ZERO,
        };
        let init = guest.init();
        assert!(init.contains("mount -t tmpfs tmpfs /host'/a b'\n"), "{init}");
        assert!(init.contains("mount -o bind /hidden/'d e' /host/tmp/'d e'\n") && !init.contains("/home/c"), "{init}");
        // Once for the shell that becomes the first process, once for the one that it is told to be.
        let words = " 'X=it'\\''s' '/p' '$(reboot)' </dev/null\necho $? > /dev/ttyS1\n".replace('\'', "'\\''");
        assert!(init.contains(&words), "{init}");
    }
}

//! Files of the host that a task sees in a version of its own: name resolution and host names.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::path::Path;

use driver_sdk::proto::driver::{DnsConfig, HostsConfig};
use driver_sdk::{Error, TaskConfig};
use executor_client::Bind;
use process_driver::task_dir;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Writes the files that the task's configuration asks for and says where they appear. They lie where the task cannot
/// see them.
pub(crate) fn own_files(task: &TaskConfig) -> Result<Vec<Bind>, Error> {
    let dns = task.dns.as_ref().map(|dns| ("resolv.conf", resolv_conf(dns)));
    let hosts = task.network_isolation_spec.as_ref().and_then(|spec| spec.hosts_config.as_ref());
    let hosts = hosts.filter(|hosts| !hosts.hostname.is_empty()).map(|config| ("hosts", hosts_file(config)));
    let name = hostname(task).map(|name| ("hostname", format!("{name}\n")));
    let private = task_dir(task).join("private");
    let mut binds = Vec::new();
    for (name, text) in dns.into_iter().chain(hosts).chain(name) {
        let file = private.join(name);
        write(&private, name, &text).map_err(|e| Error::recoverable(format!("write {}: {e}", file.display())))?;
        binds.push(Bind {
            source: file.into_os_string().into_encoded_bytes(),
            target: format!("/etc/{name}").into_bytes(),
            read_only: true,
            ..Bind::default()
        });
    }
    Ok(binds)
}

/// The name that the task's host has for it.
pub(crate) fn hostname(task: &TaskConfig) -> Option<&str> {
    let hosts = task.network_isolation_spec.as_ref()?.hosts_config.as_ref()?;
    Some(hosts.hostname.as_str()).filter(|name| !name.is_empty())
}

/// Replaces the file under its name, whatever that is: a link there is not written through. Nobody but the node should
/// be able to put one there, and this process could overwrite any file of the machine.
fn write(private: &Path, name: &str, text: &str) -> io::Result<()> {
    std::fs::create_dir_all(private)?;
    let directory = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, private, directory, Mode::empty())?;
    let fresh = format!(".{name}.new");
    // Of a write that was cut off.
    match unlinkat(&dir, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&dir, &fresh, flags, Mode::from_raw_mode(0o600))?);
    io::Write::write_all(&mut file, text.as_bytes())?;
    // The task's user reads it.
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    Ok(renameat(&dir, &fresh, &dir, name)?)
}

fn resolv_conf(dns: &DnsConfig) -> String {
    let mut text = String::new();
    for server in &dns.servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    for (keyword, words) in [("search", &dns.searches), ("options", &dns.options)] {
        if !words.is_empty() {
            let _ = writeln!(text, "{keyword} {}", words.join(" "));
        }
    }
    text
}

fn hosts_file(hosts: &HostsConfig) -> String {
    let address = if hosts.address.is_empty() { "127.0.1.1" } else { &hosts.address };
    format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} {}\n", hosts.hostname)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_way_is_replaced_and_not_written_through() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let temp = tempfile::tempdir().expect("a directory");
        let (host, private) = (temp.path().join("passwd"), temp.path().join("alloc1/web/private"));
        let dns = DnsConfig { servers: vec!["10.0.0.1".into()], ..DnsConfig::default() };
        let alloc_dir = temp.path().join("alloc1").display().to_string();
        let task = TaskConfig { name: "web".into(), alloc_dir, dns: Some(dns), ..TaskConfig::default() };
        std::fs::write(&host, "root").expect("a file of the host");
        std::fs::create_dir_all(&private).expect("a directory");
        for link in ["resolv.conf", ".resolv.conf.new"] {
            symlink(&host, private.join(link)).expect("a link");
        }
        for _ in 0..2 {
            let binds = own_files(&task).expect("written");
            assert_eq!(binds.len(), 1);
            let meta = std::fs::symlink_metadata(private.join("resolv.conf")).expect("there");
            assert!(meta.is_file() && meta.permissions().mode() & 0o7777 == 0o644, "{meta:?}");
            assert_eq!(std::fs::read_to_string(private.join("resolv.conf")).expect("read"), "nameserver 10.0.0.1\n");
            assert_eq!(std::fs::read_to_string(&host).expect("read"), "root");
            assert_eq!(std::fs::read_dir(&private).expect("list").count(), 1, "no temporary file stays");
        }
        std::fs::rename(&private, temp.path().join("elsewhere")).expect("moved");
        symlink(temp.path().join("elsewhere"), &private).expect("a link");
        own_files(&task).expect_err("the directory is a link");
    }

    #[test]
    fn texts() {
        let dns = DnsConfig {
            servers: vec!["10.0.0.1".into(), "::1".into()],
            searches: vec!["a".into(), "b".into()],
            options: Vec::new(),
        };
        assert_eq!(resolv_conf(&dns), "nameserver 10.0.0.1\nnameserver ::1\nsearch a b\n");
        let hosts = HostsConfig { hostname: "web".into(), address: "172.26.64.3".into() };
        assert!(hosts_file(&hosts).ends_with("172.26.64.3 web\n"));
    }
}

//! Files of the host that a task sees in a version of its own: name resolution and host names.

use std::fmt::Write;
use std::io;
use std::path::Path;

use driver_sdk::proto::driver::{DnsConfig, HostsConfig};
use driver_sdk::{Error, TaskConfig};
use executor_client::Bind;
use process_driver::task_dir;

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
        write(&private, &file, &text).map_err(|e| Error::recoverable(format!("write {}: {e}", file.display())))?;
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

fn write(private: &Path, file: &Path, text: &str) -> io::Result<()> {
    std::fs::create_dir_all(private)?;
    std::fs::write(file, text)
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

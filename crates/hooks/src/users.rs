//! Users that tasks may not run as. Different names may lead to one user: `"0"`, `"00"`, `"+0"` and an alias of root
//! are root.

use std::{process::Stdio, time::Duration};

use node_config::ClientConfig;

/// How long the name services may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Refuses users that tasks of some drivers may not run as, by this machine's files.
pub(crate) fn check(config: &ClientConfig, driver: &str, user: &str) -> Result<(), String> {
    if user.is_empty() || !checked(config, driver) {
        return Ok(());
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if denied(user, uid_in(&passwd, user), &denylist(config), &passwd) { Err(refusal(driver, user)) } else { Ok(()) }
}

/// The same for users that only the machine's name services know; may take up to the limit above.
pub(crate) async fn check_services(config: &ClientConfig, driver: &str, user: &str) -> Result<(), String> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if user.is_empty() || !checked(config, driver) || uid_in(&passwd, user).is_some() {
        return Ok(());
    }
    let mut ask = tokio::process::Command::new("getent");
    ask.args(["passwd", "--", login(user)]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    // A user that no service knows: the driver refuses it, too.
    let Ok(Ok(found)) = tokio::time::timeout(PATIENCE, ask.output()).await else { return Ok(()) };
    let uid = String::from_utf8_lossy(&found.stdout).split(':').nth(2).and_then(|uid| uid.parse().ok());
    if denied(user, uid, &denylist(config), &passwd) { Err(refusal(driver, user)) } else { Ok(()) }
}

fn refusal(driver: &str, user: &str) -> String {
    format!("this node does not let tasks of driver {driver:?} run as {user:?} (option user.denylist)")
}

fn option(config: &ClientConfig, name: &str, default: &str) -> Vec<String> {
    let text = config.options.get(name).map_or(default, String::as_str);
    text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn checked(config: &ClientConfig, driver: &str) -> bool {
    option(config, "user.checked_drivers", "exec,qemu,java").iter().any(|name| name == driver)
}

fn denylist(config: &ClientConfig) -> Vec<String> {
    option(config, "user.denylist", "root,Administrator")
}

/// Images allow `user:group`.
fn login(user: &str) -> &str {
    user.split_once(':').map_or(user, |(login, _)| login)
}

fn denied(user: &str, uid: Option<u32>, denylist: &[String], passwd: &str) -> bool {
    let same =
        |entry: &String| entry == user || entry == login(user) || (uid.is_some() && uid == uid_in(passwd, entry));
    // The kernel takes that number for no change, whoever the process is.
    uid == Some(u32::MAX) || denylist.iter().any(same)
}

/// The uid of a user, by name or number. Drivers accept anything that parses as a number.
fn uid_in(passwd: &str, user: &str) -> Option<u32> {
    let user = login(user);
    let known = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?);
        (name == user || uid == user).then(|| uid.parse().ok())?
    });
    known.or_else(|| user.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\n\
        nobody:x:65534:65534::/:/bin/false\nann:x:1000:100::/:/bin/sh\n";

    #[test]
    fn users_are_compared_by_what_they_lead_to() {
        let by_default = ["root".to_owned(), "Administrator".to_owned()];
        for (user, no) in [
            ("root", true),
            ("0", true),
            ("00", true),
            ("+0", true),
            ("0:0", true),
            ("root:ann", true),
            ("toor", true),
            ("Administrator", true),
            ("4294967295", true),
            ("+4294967295", true),
            ("4294967294", false),
            ("nobody", false),
            ("65534", false),
            ("1000:0", false),
            ("10", false),
            ("rooty", false),
            ("somebody", false),
        ] {
            assert_eq!(denied(user, uid_in(PASSWD, user), &by_default, PASSWD), no, "{user:?}");
        }
        // The list may hold numbers, and answers of name services count.
        assert!(denied("ann", uid_in(PASSWD, "ann"), &["1000".to_owned()], PASSWD));
        assert!(denied("ldap-root", Some(0), &by_default, PASSWD));
        assert!(!denied("ldap-ann", Some(4711), &by_default, PASSWD));
    }
}

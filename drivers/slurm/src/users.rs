//! The user of a task's job.

use driver_sdk::RemoteError;
use hpc::Answer;
use hpc::users::User;

use crate::config::PluginConfig;

/// Entry of `users` that stands for every user of a person.
const ANYBODY: &str = "*";
/// Smaller numbers are those of the system (`UID_MIN` of login.defs).
const FIRST_PERSON: u32 = 1000;

/// The user that a task asks for; `None`: the agent's own user.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: it has to say whom.
pub(crate) fn wanted<'a>(user: &'a str, config: &'a PluginConfig) -> Answer<Option<&'a str>> {
    let default = config.default_user().unwrap_or_default();
    match (user, default) {
        ("", "") if config.users.is_empty() => Ok(None),
        ("", "") => Err(RemoteError::wrong_request(
            "the task names no `user`, and neither does the plugin's configuration; set `user` in the task",
        )),
        ("", name) | (name, _) => Ok(Some(name)),
    }
}

/// Whether the agent may submit as this user.
///
/// # Errors
/// [`RemoteError::WrongRequest`] with what would have to change.
pub(crate) fn allowed(user: &User, config: &PluginConfig, agent: u32) -> Answer<()> {
    let refuse = |why: String| Err(RemoteError::wrong_request(format!("user {:?}: {why}", user.name)));
    if user.owner.uid == 0 {
        return refuse("no job is submitted as root on behalf of a task; name another user".to_owned());
    }
    if user.owner.uid == agent {
        return Ok(());
    }
    let listed = |entry: &String| match entry.as_str() {
        ANYBODY => user.owner.uid >= FIRST_PERSON,
        name => name == user.name,
    };
    if !config.users.iter().any(listed) && config.default_user() != Some(user.name.as_str()) {
        return refuse("`users` of the plugin's configuration does not allow it on this node".to_owned());
    }
    if agent != 0 {
        return refuse(format!(
            "the agent runs as the user {agent} and can submit for nobody else; run it as root, or one as this user"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hpc::rights::Owner;

    use super::*;

    fn config(users: &[&str], user: Option<&str>) -> PluginConfig {
        let users = users.iter().map(|&name| name.to_owned()).collect();
        PluginConfig { users, user: user.map(str::to_owned), ..PluginConfig::default() }
    }

    fn user(name: &str, uid: u32) -> User {
        User { name: name.to_owned(), owner: Owner { uid, gid: uid }, home: "/".into() }
    }

    #[test]
    fn a_task_runs_as_whom_it_names_or_the_default() {
        let none = config(&[], None);
        assert_eq!(wanted("", &none), Ok(None));
        assert_eq!(wanted("ada", &none), Ok(Some("ada")));
        assert!(wanted("", &config(&["ada"], None)).is_err(), "it would run as root");
        assert_eq!(wanted("", &config(&["ada"], Some("hpc"))), Ok(Some("hpc")));
        assert_eq!(wanted("ada", &config(&["ada"], Some("hpc"))), Ok(Some("ada")));
    }

    #[test]
    fn who_may_be_submitted_for() {
        let ada = user("ada", 1001);
        for (config, agent, part) in [
            (config(&["ada"], None), 0, ""),
            (config(&["*"], None), 0, ""),
            (config(&[], Some("ada")), 0, ""),
            // Itself, without any setting.
            (config(&[], None), 1001, ""),
            (config(&["bob"], None), 0, "does not allow it"),
            (config(&[], None), 0, "does not allow it"),
            (config(&["ada"], None), 1002, "run it as root"),
        ] {
            let said = allowed(&ada, &config, agent).map_err(|why| why.to_string());
            match part {
                "" => assert_eq!(said, Ok(()), "{config:?}"),
                part => assert!(said.as_ref().is_err_and(|why| why.contains(part)), "{said:?}"),
            }
        }
        assert!(allowed(&user("root", 0), &config(&["root", "*"], Some("root")), 0).is_err());
        assert!(allowed(&user("toor", 0), &config(&["toor"], None), 0).is_err());
        assert!(allowed(&user("daemon", 1), &config(&["*"], None), 0).is_err(), "a user of the system");
        assert!(allowed(&user("daemon", 1), &config(&["daemon"], None), 0).is_ok());
    }
}

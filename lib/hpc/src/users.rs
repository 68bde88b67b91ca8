//! Users, as the name services know them.

use std::path::PathBuf;

use driver_sdk::RemoteError;

use crate::Answer;
use crate::command::Commands;
use crate::rights::Owner;

/// A user, as the name services know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its numbers.
    pub owner: Owner,
    /// Its home directory.
    pub home: PathBuf,
}

/// A line of `getent passwd`.
fn entry(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.trim_end().split(':').collect();
    let [name, _, uid, gid, _, home, _] = fields[..] else { return None };
    let owner = Owner { uid: uid.parse().ok()?, gid: gid.parse().ok()? };
    Some(User { name: name.to_owned(), owner, home: home.into() })
}

/// Asks the name services for a user by name or number.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: there is none. [`RemoteError::CouldNotAsk`]: they give no answer.
pub async fn look_up(commands: &Commands, name: &str) -> Answer<User> {
    let said = commands.plain("getent", &["passwd", "--", name].map(str::to_owned)).await?;
    match (said.stdout.lines().find_map(entry), said.success) {
        (Some(user), true) => Ok(user),
        (None, true) => Err(RemoteError::could_not_ask(format!("getent told nothing of the user {name:?}"))),
        // 2: the services have answered that there is no such entry.
        (_, false) if said.code == Some(2) => Err(RemoteError::wrong_request(format!(
            "this node knows no user {name:?}; name one that it and the cluster know"
        ))),
        (_, false) => {
            Err(RemoteError::could_not_ask(format!("getent could not look the user {name:?} up: {}", said.stderr)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_user_database() {
        assert_eq!(
            entry("ada:x:1001:100:Ada,,:/home/ada:/bin/bash\n"),
            Some(User { name: "ada".into(), owner: Owner { uid: 1001, gid: 100 }, home: "/home/ada".into() })
        );
        assert_eq!(entry("ada:x:-1:100::/:/bin/sh"), None);
        assert_eq!(entry(""), None);
    }
}

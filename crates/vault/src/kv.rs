//! Paths of secrets. The two versions of the key-value engine differ: the second has `data/` and `metadata/` between
//! its mount and the path that people write (developer.hashicorp.com/vault/api-docs/secret/kv). Templates may write
//! either form, as with consul-template.

use crate::Mount;

/// What is done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A secret is read.
    Read,
    /// The names below are listed.
    List,
}

/// The path to ask for, without slashes around it. `mount`: where it lies, if that is known.
#[must_use]
pub fn path(asked: &str, mount: Option<&Mount>, access: Access) -> String {
    let asked = asked.trim_matches('/');
    let Some(mount) = mount.filter(|mount| mount.versioned) else { return asked.to_owned() };
    let at = mount.path.trim_matches('/');
    let infix = match access {
        Access::Read => "data",
        Access::List => "metadata",
    };
    let rest = match asked.strip_prefix(at) {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => &rest[1..],
        // The mount is another one than that of the path: as it was written.
        _ => return asked.to_owned(),
    };
    match rest.strip_prefix(infix) {
        Some(below) if below.is_empty() || below.starts_with('/') => asked.to_owned(),
        _ if rest.is_empty() => format!("{at}/{infix}"),
        _ => format!("{at}/{infix}/{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_versioned_engine_get_what_stands_between() {
        let v2 = Mount { path: "team/kv/".into(), versioned: true };
        let v1 = Mount { path: "team/kv/".into(), versioned: false };
        for (asked, mount, access, wanted) in [
            ("team/kv/db", Some(&v2), Access::Read, "team/kv/data/db"),
            ("/team/kv/data/db/", Some(&v2), Access::Read, "team/kv/data/db"),
            ("team/kv/database", Some(&v2), Access::Read, "team/kv/data/database"),
            ("team/kv", Some(&v2), Access::Read, "team/kv/data"),
            ("team/kv/", Some(&v2), Access::List, "team/kv/metadata"),
            ("team/kv/app/", Some(&v2), Access::List, "team/kv/metadata/app"),
            ("team/kv/metadata/app", Some(&v2), Access::List, "team/kv/metadata/app"),
            ("team/kvx/db", Some(&v2), Access::Read, "team/kvx/db"),
            ("team/kv/db", Some(&v1), Access::Read, "team/kv/db"),
            ("team/kv/db", None, Access::List, "team/kv/db"),
        ] {
            assert_eq!(path(asked, mount, access), wanted, "{asked} {access:?}");
        }
    }
}

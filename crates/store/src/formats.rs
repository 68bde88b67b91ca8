//! Which format the servers of a cluster write, and which servers may join: decisions about the numbers of
//! [`state::FORMATS`].

use state::{Format, Versions};

/// The format to raise the one in use to: the highest that all servers of the list read; None = it stays. The one in
/// use is never lowered, because rows are in it. An empty list raises nothing.
#[must_use]
pub fn raised(in_use: Format, servers: impl IntoIterator<Item = Versions>) -> Option<Format> {
    let common = servers
        .into_iter()
        .reduce(|a, b| Versions { lowest: a.lowest.max(b.lowest), highest: a.highest.min(b.highest) })?;
    (common.highest > in_use && common.lowest <= common.highest).then_some(common.highest)
}

/// Why a server that reads these formats may neither follow nor lead; None = it may. `since`: the release that has
/// raised the format; empty = not known. `release`: that of the server.
#[must_use]
pub fn refused(in_use: Format, since: &str, own: Versions, release: &str) -> Option<String> {
    if own.has(in_use) {
        return None;
    }
    let this = if release.is_empty() { "this release".to_owned() } else { format!("this release ({release})") };
    let way = if in_use < own.lowest {
        format!(
            "start all servers with a release between them first, one that reads formats {in_use} and {}",
            own.lowest
        )
    } else if since.is_empty() {
        format!("start a release that reads format {in_use}")
    } else {
        format!("start release {since} or a later one")
    };
    Some(format!("{this} reads format {own}: {way}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lowest: u32, highest: u32) -> Versions {
        Versions { lowest, highest }
    }

    #[test]
    fn the_format_goes_up_when_all_read_the_higher_one_and_never_down() {
        for (in_use, servers, to) in [
            (1, vec![], None),
            (1, vec![of(1, 1)], None),
            (1, vec![of(1, 2), of(1, 1)], None),
            (1, vec![of(1, 1), of(1, 2), of(1, 2)], None),
            (1, vec![of(1, 2), of(1, 2)], Some(2)),
            (1, vec![of(1, 3), of(1, 2)], Some(2)),
            // One of them has gone back meanwhile; it is refused.
            (2, vec![of(1, 2), of(1, 1)], None),
            (2, vec![of(1, 1)], None),
            (2, vec![of(1, 3), of(2, 4)], Some(3)),
            // Nothing that both read.
            (1, vec![of(1, 2), of(3, 4)], None),
        ] {
            assert_eq!(raised(in_use, servers.clone()), to, "{in_use} {servers:?}");
        }
    }

    #[test]
    fn who_does_not_read_the_format_in_use_is_told_which_release_does() {
        let old = refused(2, "0.5.0", of(1, 1), "0.4.0").expect("refused");
        assert!(old.contains("this release (0.4.0) reads format 1") && old.contains("start release 0.5.0"), "{old}");
        let unnamed = refused(2, "", of(1, 1), "").expect("refused");
        assert!(unnamed.contains("reads format 2"), "{unnamed}");
        let far = refused(1, "", of(2, 3), "0.9.0").expect("refused");
        assert!(far.contains("a release between them") && far.contains("formats 1 and 2"), "{far}");
        for (format, own) in [(1, of(1, 1)), (1, of(1, 2)), (2, of(1, 2)), (2, of(2, 5))] {
            assert_eq!(refused(format, "0.5.0", own, "0.4.0"), None, "{format} {own}");
        }
    }
}

//! What operators forbid: user and group ids, variables.

use driver_sdk::Error;

/// Ranges of ids such as `0,1000-1999`, as an operator writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedIds {
    /// User ids.
    pub uids: String,
    /// Group ids.
    pub gids: String,
}

impl DeniedIds {
    /// Checks that both are lists of ranges.
    ///
    /// # Errors
    /// When a part of one is neither an id nor a range; the text names the setting.
    pub fn validate(&self) -> Result<(), Error> {
        self.denies(0, &[0]).map(drop)
    }

    /// Why tasks must not run under the ids of this process, if so.
    ///
    /// # Errors
    /// As [`DeniedIds::validate`], and when the kernel does not tell the groups.
    pub fn denies_own(&self) -> Result<Option<String>, Error> {
        let gids = rustix::process::getgroups()
            .map_err(|e| Error::failed(format!("could not read the groups of the plugin: {e}")))?;
        let gids: Vec<u32> =
            gids.into_iter().chain([rustix::process::getegid()]).map(rustix::process::Gid::as_raw).collect();
        self.denies(rustix::process::geteuid().as_raw(), &gids)
    }

    /// Why tasks must not run under these ids, if so.
    ///
    /// # Errors
    /// As [`DeniedIds::validate`].
    pub fn denies(&self, uid: u32, gids: &[u32]) -> Result<Option<String>, Error> {
        let uids = ranges("denied_host_uids", &self.uids)?;
        let denied_gids = ranges("denied_host_gids", &self.gids)?;
        if uids.iter().any(|r| r.contains(&uid)) {
            return Ok(Some(format!("user id {uid} is among the plugin's denied_host_uids")));
        }
        let gid = gids.iter().find(|gid| denied_gids.iter().any(|r| r.contains(gid)));
        Ok(gid.map(|gid| format!("group id {gid} is among the plugin's denied_host_gids")))
    }
}

/// `"0,1000-1999"`.
fn ranges(name: &str, text: &str) -> Result<Vec<std::ops::RangeInclusive<u32>>, Error> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let range = |part: &str| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        match (low.trim().parse(), high.trim().parse()) {
            (Ok(low), Ok(high)) if low <= high => Ok(low..=high),
            _ => Err(Error::invalid(format!("{name}: {part:?} is neither an id nor a range such as \"1000-1999\""))),
        }
    };
    parts.map(range).collect()
}

/// Whether a variable's name fits a pattern that may begin or end with `*`.
pub fn is_denied(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_ranges() {
        let config = DeniedIds { uids: "0, 1000-1999".into(), gids: "5".into() };
        assert!(config.denies(0, &[]).unwrap().is_some());
        assert!(config.denies(1500, &[]).unwrap().is_some());
        assert!(config.denies(2000, &[4, 5]).unwrap().is_some());
        assert_eq!(config.denies(2000, &[4]).unwrap(), None);
        for wrong in ["a", "5-1", "1-", "-"] {
            let config = DeniedIds { uids: wrong.into(), ..Default::default() };
            assert!(config.validate().unwrap_err().to_string().contains("denied_host_uids"), "{wrong}");
        }
    }

    #[test]
    fn variables_are_denied_by_pattern() {
        let patterns = ["AWS_*", "*_TOKEN", "*SECRET*", "EXACT"].map(String::from);
        for denied in ["AWS_KEY", "MY_TOKEN", "A_SECRET_B", "EXACT"] {
            assert!(is_denied(denied, &patterns), "{denied}");
        }
        for allowed in ["XAWS_KEY", "TOKEN_X", "EXACTLY", ""] {
            assert!(!is_denied(allowed, &patterns), "{allowed}");
        }
        assert!(is_denied("ANY", &["*".into()]));
    }
}

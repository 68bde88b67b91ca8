//! `security_opt`: profiles travel to the engine by value, because it does not read our files.

use driver_sdk::Error;
use serde_json::Value;

/// The options with the content of profile files in their place.
pub(crate) fn with_profiles(options: &[String]) -> Result<Vec<String>, Error> {
    options.iter().map(|option| with_profile(option)).collect()
}

fn with_profile(option: &str) -> Result<String, Error> {
    let Some((name, value)) = option.split_once(['=', ':']) else {
        return Ok(option.to_owned());
    };
    if name != "seccomp" || matches!(value, "unconfined" | "builtin") || value.trim_start().starts_with('{') {
        return Ok(format!("{name}={value}"));
    }
    let text = std::fs::read_to_string(value)
        .map_err(|e| Error::invalid(format!("config.security_opt: read the profile {value}: {e}")))?;
    let profile: Value = serde_json::from_str(&text)
        .map_err(|e| Error::invalid(format!("config.security_opt: the profile {value} is not JSON: {e}")))?;
    Ok(format!("{name}={profile}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_here() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("p.json");
        std::fs::write(&file, "{ \"a\" : 1 }").expect("written");
        let given = ["no-new-privileges", "apparmor:mine", "seccomp=unconfined"].map(str::to_owned);
        let mut all = given.to_vec();
        all.push(format!("seccomp={}", file.display()));
        let wanted =
            ["no-new-privileges", "apparmor=mine", "seccomp=unconfined", "seccomp={\"a\":1}"].map(str::to_owned);
        assert_eq!(with_profiles(&all), Ok(wanted.to_vec()));
        assert!(with_profiles(&["seccomp=/nowhere".to_owned()]).is_err());
    }
}

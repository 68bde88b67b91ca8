//! `security_opt`: profiles travel to the engine by value, because it does not read our files.

use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use driver_sdk::Error;
use rustix::fs::OFlags;
use serde_json::Value;

/// Bytes of a profile; the engine's own has 15 KiB.
const LARGEST: u64 = 1 << 20;

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
    let text =
        read(value).map_err(|e| Error::invalid(format!("config.security_opt: read the profile {value}: {e}")))?;
    let profile: Value = serde_json::from_str(&text)
        .map_err(|e| Error::invalid(format!("config.security_opt: the profile {value} is not JSON: {e}")))?;
    Ok(format!("{name}={profile}"))
}

/// A job may name anything: an open of a FIFO waits, and a device has no end.
fn read(path: &str) -> io::Result<String> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > LARGEST {
        return Err(io::Error::other("it is no regular file of at most 1 MiB"));
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

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
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).expect("made");
        let large = dir.path().join("large");
        std::fs::File::create(&large).and_then(|file| file.set_len(LARGEST + 1)).expect("made");
        assert!(with_profiles(&["seccomp=/nowhere".to_owned()]).is_err());
        for path in [PathBuf::from("/dev/zero"), fifo, large] {
            let why = with_profiles(&[format!("seccomp={}", path.display())]).expect_err("refused").to_string();
            assert!(why.contains("no regular file of at most 1 MiB"), "{}: {why}", path.display());
        }
    }
}

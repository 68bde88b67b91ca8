//! A disk that fills up quickly.

use std::{
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::process::Run;

/// A mounted tmpfs; unmounted and removed when dropped.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(dir: &Path, mebibytes: u32) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let options = format!("size={mebibytes}m,mode=0700");
        let arguments: [OsString; 6] =
            ["-t".into(), "tmpfs".into(), "-o".into(), options.into(), "tmpfs".into(), dir.into()];
        Run::new("mount", arguments).run()?;
        Ok(Self(dir.to_owned()))
    }
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// Takes all room that is left, to the last byte. The room comes back with the removal of the file.
    pub(crate) fn fill(&self) -> Result<PathBuf> {
        let path = self.at("ballast");
        let mut file = fs::File::create(&path)?;
        for block in [1 << 16, 1 << 12, 1] {
            while file.write(&vec![0_u8; block]).is_ok_and(|n| n == block) {}
        }
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the last processes of the check may still be on their way out.
        drop(Run::new("umount", ["-l".as_ref(), self.0.as_os_str()]).run());
        drop(fs::remove_dir_all(&self.0));
    }
}

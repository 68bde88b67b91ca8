//! Users of this machine for the jobs of batch systems.

use anyhow::Result;

use crate::process::Run;

/// A user of this machine, which goes with the drop. What still runs as the user keeps it: drop that first.
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: u32,
}

impl Account {
    pub(super) fn new() -> Result<Self> {
        let name = format!("drover-peer-{}", std::process::id());
        // With a shell: batch systems load the login environment of a job's user.
        let args = ["--no-create-home", "--home-dir", "/", "--no-user-group", "--shell", "/bin/sh", name.as_str()];
        Run::new("useradd", args).run()?;
        let uid = Run::new("id", ["-u", name.as_str()]).output()?.trim().parse()?;
        Ok(Self { name, uid })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Err(why) = Run::new("userdel", [self.name.as_str()]).quiet().run() {
            eprintln!("the user {} stays: {why:#}", self.name);
        }
    }
}

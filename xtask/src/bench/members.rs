//! Three members of etcd for an agent that is measured.

use std::{fs, path::PathBuf};

use anyhow::Result;

use crate::{
    interop::etcd::{self, EtcdMember},
    local,
};

/// Members of etcd in a directory that is removed with them.
pub(super) struct Members {
    members: Vec<EtcdMember>,
    dir: PathBuf,
}

impl Members {
    pub(super) fn start() -> Result<Self> {
        etcd::need()?;
        let dir = std::env::temp_dir().join(format!("drover-bench-etcd-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        // Eight GiB, what etcd's authors advise at most.
        let quota = ["--quota-backend-bytes".to_owned(), (8_u64 << 30).to_string()];
        Ok(Self { members: EtcdMember::cluster(&dir, "etcd", 3, &quota, "http")?, dir })
    }

    /// What an agent has in its configuration for it.
    pub(super) fn settings(&self) -> String {
        etcd::shared_by(&self.members)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.members.clear();
        local::remove(&self.dir);
    }
}

//! What a create takes along from this node, as it is kept until the create is confirmed.
//!
//! Thousands may wait for their turn at a provider, each with its task's whole environment. As messages they are a piece of memory each instead of a
//! hundred small ones, which would leave holes between everything that comes to stay meanwhile.

use driver_host::{Bundle, TaskConfig};
use prost::Message;

use crate::alloc::identities;

/// The task's configuration and the files that travel with it.
#[derive(Debug)]
pub(crate) struct Prepared {
    task: Box<[u8]>,
    bundle: Box<[u8]>,
    /// When the tokens in it are due to be renewed.
    pub(crate) due: identities::Due,
}

impl Prepared {
    pub(crate) fn pack(task: &TaskConfig, bundle: &Bundle, due: identities::Due) -> Self {
        Self { task: task.encode_to_vec().into(), bundle: bundle.encode_to_vec().into(), due }
    }

    /// What was packed. An error would be a defect of ours: the text is for the person who reports it.
    pub(crate) fn unpack(&self) -> Result<(TaskConfig, Bundle), String> {
        let task = TaskConfig::decode(&*self.task).map_err(|error| error.to_string())?;
        let bundle = Bundle::decode(&*self.bundle).map_err(|error| error.to_string())?;
        Ok((task, bundle))
    }
}

#[cfg(test)]
mod tests {
    use driver_host::BundleFile;

    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let env = [("A", "1"), ("B", ""), ("C", "ü")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let task = TaskConfig { id: "a/t/1".into(), env: env.into(), msgpack_driver_config: vec![0x80, 0], ..TaskConfig::default() };
        let files = vec![BundleFile { path: "local/f".into(), mode: 0o600, data: vec![0, 255] }];
        let bundle = Bundle { digest: "d".into(), files };
        let prepared = Prepared::pack(&task, &bundle, identities::Due::default());
        assert_eq!(prepared.unpack(), Ok((task, bundle)));
    }
}

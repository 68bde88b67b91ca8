//! The prepared parts of a create, as kept until the create is confirmed.
//!
//! Thousands may wait for their turn at a provider, each with its task's whole environment. As an encoded message each
//! takes one piece of memory. As values it would take a hundred small ones, which fragment the heap.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use driver_host::{Bundle, BundleFile, TaskConfig, proto::build};
use lifecycle::identities::Due;
use prost::Message;

use crate::fetched::Fetched;

/// Limit of a task's files together, in bytes. A plugin reads messages of at most 64 MiB, and the task's configuration
/// is in the same one.
const MAX_FILE_BYTES: u64 = 48 << 20;

/// The task's configuration and the files that travel with it.
#[derive(Debug)]
pub(crate) struct Prepared {
    task: Box<[u8]>,
    /// A bundle without a digest, with the files made in memory.
    made: Box<[u8]>,
    /// Further files, on this node's disk.
    fetched: Option<Fetched>,
    /// The fetched files have changed.
    lost: AtomicBool,
    /// When its tokens are due for renewal.
    pub(crate) due: Due,
}

impl Prepared {
    /// Packs a preparation. A generated file replaces a fetched one of the same name.
    ///
    /// # Errors
    /// When the files are too large to send; for people.
    pub(crate) fn pack(
        task: &TaskConfig,
        files: Vec<BundleFile>,
        mut fetched: Option<Fetched>,
        due: Due,
    ) -> Result<Self, String> {
        if let Some(fetched) = &mut fetched {
            fetched.without(&files.iter().map(|file| file.path.as_str()).collect::<BTreeSet<_>>());
        }
        let bytes =
            files.iter().map(|file| file.data.len() as u64).sum::<u64>() + fetched.as_ref().map_or(0, Fetched::bytes);
        if bytes > MAX_FILE_BYTES {
            return Err(format!(
                "the files of the task (artifacts, templates, payload) have {bytes} bytes, and at most \
                    {MAX_FILE_BYTES} travel with a task; let the \
                 workload fetch what is large"
            ));
        }
        let made = Bundle { digest: String::new(), files };
        Ok(Self {
            task: task.encode_to_vec().into(),
            made: made.encode_to_vec().into(),
            fetched,
            lost: AtomicBool::new(false),
            due,
        })
    }

    /// Bytes to read from disk for it; they are all in memory while a create is under way.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.fetched.as_ref().map_or(0, Fetched::bytes)
    }

    /// Whether it can never be unpacked and has to be made anew.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Unpacks it. Blocking when it has fetched files. The error text is for people; the fetched files may be
    /// [lost](Self::is_lost) then.
    pub(crate) fn unpack(&self) -> Result<(TaskConfig, Bundle), String> {
        // An error here would be a defect of ours.
        let task = TaskConfig::decode(&*self.task).map_err(|error| error.to_string())?;
        let mut bundle = Bundle::decode(&*self.made).map_err(|error| error.to_string())?;
        if let Some(fetched) = &self.fetched {
            let read = fetched.read().map_err(|error| {
                self.lost.store(true, Ordering::Relaxed);
                format!("the artifacts of the task cannot be read, they are fetched again: {error}")
            });
            bundle.files.splice(..0, read?);
        }
        bundle.digest = build::bundle_digest(bundle.files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())));
        Ok((task, bundle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let env = [("A", "1"), ("B", ""), ("C", "ü")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let task = TaskConfig {
            id: "a/t/1".into(),
            env: env.into(),
            msgpack_driver_config: vec![0x80, 0],
            ..TaskConfig::default()
        };
        let files = vec![BundleFile { path: "local/f".into(), mode: 0o600, data: vec![0, 255] }];
        let prepared = Prepared::pack(&task, files.clone(), None, Due::default()).expect("small");
        let (unpacked, bundle) = prepared.unpack().expect("unpacked");
        assert_eq!((unpacked, &bundle.files), (task, &files));
        assert_eq!(bundle.digest, build::bundle_digest([("local/f", 0o600, [0, 255].as_slice())].into_iter()));
        assert_eq!(prepared.fetched_bytes(), 0);
    }

    #[test]
    fn what_no_plugin_would_read_is_refused() {
        let files = |bytes: u64| {
            vec![BundleFile {
                path: "local/f".into(),
                mode: 0o600,
                data: vec![0; usize::try_from(bytes).expect("fits")],
            }]
        };
        let pack = |bytes| Prepared::pack(&TaskConfig::default(), files(bytes), None, Due::default());
        assert!(pack(MAX_FILE_BYTES).is_ok());
        assert!(
            pack(MAX_FILE_BYTES + 1)
                .is_err_and(|why| why.contains("50331649 bytes") && why.contains("let the workload fetch"))
        );
    }
}

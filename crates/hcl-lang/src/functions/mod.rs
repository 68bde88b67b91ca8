//! Functions that expressions may call.
//!
//! [`TABLE`] holds all of them; a function is one row there and one `fn` in the file of its family.
//! Arguments arrive converted to the types of the row. `try`, `can` and `convert` see unevaluated
//! arguments; the evaluator handles them itself.

mod cidr;
mod collection;
mod crypto;
mod encoding;
mod files;
mod format;
mod host;
mod numeric;
mod setops;
mod signature;
mod table;
mod text;
mod time;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use host::{DiskHost, Host, NoHost};
pub use signature::Function;
pub(crate) use signature::{Args, Body};
pub use table::TABLE;

/// The functions one kind of file may call, with the host they act through.
#[derive(Clone)]
pub struct FunctionSet {
    names: Arc<BTreeSet<&'static str>>,
    pub(crate) host: Arc<dyn Host>,
}

impl FunctionSet {
    /// No functions.
    pub fn none() -> Self {
        Self { names: Arc::default(), host: Arc::new(NoHost) }
    }

    /// Functions of job files.
    pub fn job(host: Arc<dyn Host>) -> Self {
        Self::select(host, |f| f.job)
    }

    /// Functions of driver configurations.
    pub fn driver() -> Self {
        Self::select(Arc::new(NoHost), |f| f.driver)
    }

    fn select(host: Arc<dyn Host>, wanted: impl Fn(&Function) -> bool) -> Self {
        Self { names: Arc::new(TABLE.iter().filter(|f| wanted(f)).map(|f| f.name).collect()), host }
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.iter().copied()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'static Function> {
        self.names.contains(name).then(|| TABLE.binary_search_by(|f| f.name.cmp(name)).ok().map(|i| &TABLE[i]))?
    }
}

impl fmt::Debug for FunctionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FunctionSet").field(&self.names.len()).finish()
    }
}

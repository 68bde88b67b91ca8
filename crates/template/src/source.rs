//! Where a render has its data from.

use std::sync::Arc;

use crate::{
    secrets::{SecretData, SecretQuery},
    services::{ServiceName, ServicePlace, ServiceQuery},
    variables::{Variable, VariableMeta, VariableQuery},
};

/// Where a render has its data from. What is not there yet is [`Lookup::Missing`]: the render goes on to find
/// everything that it waits for.
pub trait Source {
    /// A variable of the task's environment; `None` where the task has no such variable.
    fn env(&mut self, name: &str) -> Lookup<Option<String>>;
    /// The content of a file.
    fn file(&mut self, path: &str) -> Lookup<Vec<u8>>;
    /// The places of a service; none are an answer as well.
    fn service(&mut self, query: &ServiceQuery) -> Lookup<Vec<ServicePlace>>;
    /// All services, of the task's region or another one.
    fn service_names(&mut self, region: Option<&str>) -> Lookup<Vec<ServiceName>>;
    /// A variable of the cluster; `None` where there is none.
    fn variable(&mut self, query: &VariableQuery) -> Lookup<Option<Variable>>;
    /// The variables whose paths begin so; none are an answer as well.
    fn variables(&mut self, query: &VariableQuery) -> Lookup<Vec<VariableMeta>>;
    /// A secret of Vault; `None` where there is none.
    fn secret(&mut self, query: &SecretQuery) -> Lookup<Option<Arc<SecretData>>>;
    /// The names of the secrets below a path; none are an answer as well.
    fn secret_names(&mut self, path: &str) -> Lookup<Vec<String>>;
}

/// An answer of a [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// Here it is.
    Known(T),
    /// It may come later.
    Missing,
    /// It will never be given, and why.
    Refused(String),
}

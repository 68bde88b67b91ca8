//! What is parsed, and how.

use std::path::PathBuf;

/// A file that sets variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VarFile {
    /// Name shown in messages.
    pub path: String,
    /// What is in it: native syntax or JSON.
    pub text: String,
}

/// What is parsed, and how.
#[derive(Clone, Debug)]
pub struct ParseInput<'a> {
    /// The job file.
    pub text: &'a str,
    /// Its name, shown in messages.
    pub path: &'a str,
    /// `-var name=value`, in order.
    pub variables: Vec<(String, String)>,
    /// `-var-file`, in order.
    pub var_files: Vec<VarFile>,
    /// The environment: `NOMAD_VAR_name` sets variables.
    pub env: Vec<(String, String)>,
    /// Whether functions may touch files.
    pub allow_fs: bool,
    /// Whether setting a variable that is not declared is an error (otherwise a warning).
    pub strict: bool,
    /// Where relative paths of functions start.
    pub base_dir: PathBuf,
}

impl<'a> ParseInput<'a> {
    /// Strict, without variables and without file access.
    pub fn new(path: &'a str, text: &'a str) -> Self {
        Self {
            text,
            path,
            variables: Vec::new(),
            var_files: Vec::new(),
            env: Vec::new(),
            allow_fs: false,
            strict: true,
            base_dir: PathBuf::from("."),
        }
    }
}

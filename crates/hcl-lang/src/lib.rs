//! hcl-lang

//! The configuration language: HCL2 values, types, evaluation and diagnostics; its JSON form; HCL1 as agent
//! configurations use it; driver schemas.
//!
//! **What it is for.** A text becomes a [`body::Body`]; a body is read by a [`body::Schema`]; what stands
//! behind `=` is an [`eval::Expression`] that yields a [`Value`] in a [`eval::Context`]. Whatever is wrong
//! becomes a [`Diagnostic`] with its place, and [`render`] shows it. [`hclspec`] checks a task's `config`
//! against the schema of its driver and writes the bytes the driver expects.
//!
//! **What it must never know.** Jobs, groups, tasks: no word of the job specification occurs here, the
//! crate `jobspec` holds them. It has no clock; files and randomness come through [`functions::Host`], and
//! only [`functions::DiskHost`] touches the machine.
//!
//! **No input** – text, schema, variables – may panic, hang or take memory without bound: texts have a
//! largest size, nesting a largest depth, evaluation an [`eval::Budget`].
//!
//! **Where it differs from the reference**, knowingly: numbers are exact fractions, so the last of some 155
//! digits of `1/3` may differ; `length` and `index` take objects too; an object expression may not give a key
//! twice; a reference that stays text loses a `~` written behind it; YAML booleans are `true` and `false` only;
//! text is not normalised to NFC; `rsadecrypt` is refused.
//!
//! **Where to begin reading.** `value.rs`, then `eval.rs`. The parser is the crate `hcl-edit`; only `parse.rs`
//! knows it. A new function is one row in `functions/table.rs` and one `fn` in the file of its family.

pub mod ast;
pub mod body;
mod budget;
mod convert;
mod diag;
mod duration;
pub mod eval;
pub mod fmt;
mod fmt_shape;
pub mod functions;
pub mod hcl1;
pub mod hclspec;
pub mod json;
mod lexer;
mod number;
mod operators;
mod parse;
mod room;
mod source;
mod suggest;
mod template;
mod type_expr;
mod types;
mod value;
mod vars;

pub use convert::{ConvertError, convert};
pub use diag::{Diagnostic, FINDINGS_MAX, Severity, render, tidy};
pub use duration::{DurationError, parse_duration};
pub use number::Number;
pub use parse::{JSON_SOURCE_MAX, SOURCE_MAX, parse_body, parse_expr};
pub use source::{Location, Source, Span};
pub use suggest::{did_you_mean, nearest};
pub use type_expr::type_from_expr;
pub use types::{Type, unify};
pub use value::{VALUE_DEPTH_MAX, Value};
pub use vars::{Vars, interpolate};

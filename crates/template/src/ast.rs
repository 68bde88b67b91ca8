//! A parsed template.

use std::{collections::BTreeMap, rc::Rc};

use crate::funcs::Function;

/// Template definitions by name, the text itself under its own.
pub(crate) type Definitions = BTreeMap<String, Vec<Node>>;

#[derive(Debug)]
pub(crate) enum Node {
    Text(String),
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template { at: usize, name: String, data: Option<Pipe> },
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) at: usize,
    pub(crate) pipe: Pipe,
    pub(crate) body: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
}

/// `$a, $b := command | command`.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) at: usize,
    /// `=` instead of `:=`.
    pub(crate) assign: bool,
    pub(crate) variables: Vec<String>,
    pub(crate) commands: Vec<Command>,
}

/// Operands of which the first may be called with the others.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) operands: Vec<Operand>,
}

#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) at: usize,
    pub(crate) kind: OperandKind,
}

#[derive(Debug)]
pub(crate) enum OperandKind {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Vec<u8>),
    /// `.a.b`
    Field(Vec<String>),
    /// `$x.a.b`
    Variable(String, Vec<String>),
    /// `(…).a.b` or `function.a.b`
    Chain(Box<Operand>, Vec<String>),
    Call(&'static Function),
    Pipe(Box<Pipe>),
}

/// Names are compared while a template runs; they are shared.
pub(crate) type Name = Rc<str>;

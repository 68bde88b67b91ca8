//! The tree that is evaluated. The parser's tree is lowered to it once; JSON bodies lead to the same tree.

use std::sync::Arc;

use crate::source::Span;
use crate::value::Value;

/// An expression with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// Where it is written.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind,
}

/// The kinds of expressions.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// A constant.
    Literal(Value),
    /// A text made of parts.
    Template(Vec<Part>),
    /// `"${expr}"`: keeps the type of the expression.
    Wrap(Box<Expr>),
    /// `[…]`
    Tuple(Vec<Expr>),
    /// `{…}`
    Object(Vec<(ObjectKey, Expr)>),
    /// A variable followed by constant steps.
    Traversal {
        /// The variable.
        root: String,
        /// Its place.
        root_span: Span,
        /// The steps.
        steps: Vec<Step>,
        /// The source text, in `${}`: what remains when nothing of that name is defined.
        verbatim: String,
    },
    /// `expr.name`
    GetAttr(Box<Expr>, String, Span),
    /// `expr[key]`
    Index(Box<Expr>, Box<Expr>),
    /// `expr.*.a` or `expr[*].a`
    Splat {
        /// What is taken apart.
        source: Box<Expr>,
        /// What is done to each element.
        each: Vec<RelativeStep>,
    },
    /// `name(args…)`
    Call {
        /// Function name.
        name: String,
        /// Its place.
        name_span: Span,
        /// Arguments.
        args: Vec<Expr>,
        /// Whether the last argument is followed by `...`.
        expand: bool,
    },
    /// `condition ? a : b`
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `-a`, `!a`
    Unary(UnaryOp, Box<Expr>),
    /// `a + b` and its kin
    Binary(Box<Expr>, BinaryOp, Box<Expr>),
    /// `[for …]`, `{for …}`
    For(Box<ForExpr>),
    /// `(expr)`
    Paren(Box<Expr>),
}

/// One key of an object expression.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectKey {
    /// A bare word.
    Name(String, Span),
    /// Anything else.
    Expr(Expr),
}

/// A constant step of a traversal.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Where it is written.
    pub span: Span,
    /// What it is.
    pub kind: StepKind,
}

/// The kinds of constant steps.
#[derive(Debug, Clone, PartialEq)]
pub enum StepKind {
    /// `.name`
    Attr(String),
    /// `[1]`, `["x"]`, `.0`
    Index(Value),
}

/// A step applied to each element of a splat.
#[derive(Debug, Clone, PartialEq)]
pub enum RelativeStep {
    /// `.name`
    Attr(String, Span),
    /// `[expr]`
    Index(Expr),
}

/// Prefix operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOp {
    /// `-`
    Neg,
    /// `!`
    Not,
}

/// Infix operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum BinaryOp {
    Or,
    And,
    Eq,
    NotEq,
    Greater,
    GreaterEq,
    Less,
    LessEq,
    Add,
    Sub,
    Mul,
    Div,
    Mod,
}

/// `[for k, v in coll : value if cond]` and `{for k, v in coll : key => value... if cond}`.
#[derive(Debug, Clone, PartialEq)]
pub struct ForExpr {
    /// Name for the key, if wanted.
    pub key_var: Option<String>,
    /// Name for the value.
    pub value_var: String,
    /// What is iterated.
    pub collection: Expr,
    /// Present when the result is an object.
    pub key: Option<Expr>,
    /// The value of each element.
    pub value: Expr,
    /// The filter.
    pub condition: Option<Expr>,
    /// Whether equal keys are grouped.
    pub group: bool,
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Plain text.
    Literal(String),
    /// `${expr}`
    Interpolation(Expr),
    /// `%{if}…%{else}…%{endif}`
    If {
        /// The condition.
        condition: Expr,
        /// When true.
        then: Vec<Part>,
        /// When false.
        otherwise: Vec<Part>,
    },
    /// `%{for}…%{endfor}`
    For {
        /// Name for the key, if wanted.
        key_var: Option<String>,
        /// Name for the value.
        value_var: String,
        /// What is iterated.
        collection: Expr,
        /// Repeated for each element.
        body: Vec<Part>,
    },
}

/// The inside of a file or of a block, in native syntax.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NativeBody {
    /// `name = expr`, in order.
    pub attributes: Vec<NativeAttribute>,
    /// `type "label" { … }`, in order.
    pub blocks: Vec<NativeBlock>,
    /// Where it is written.
    pub span: Span,
}

/// One attribute.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeAttribute {
    /// Name.
    pub name: String,
    /// Place of the name.
    pub name_span: Span,
    /// Value.
    pub expr: Arc<Expr>,
}

/// One block.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeBlock {
    /// Type.
    pub name: String,
    /// Place of the type.
    pub name_span: Span,
    /// Labels with their places.
    pub labels: Vec<(String, Span)>,
    /// What is in it.
    pub body: Arc<NativeBody>,
}

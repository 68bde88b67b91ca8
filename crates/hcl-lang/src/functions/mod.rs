//! Functions that expressions may call.
//!
//! [`TABLE`] holds all of them; a function is one row there and one `fn` in the file of its family.
//! Arguments arrive converted to the types of the row. `try`, `can` and `convert` see unevaluated
//! arguments and are handled in [`call`].

mod cidr;
mod collection;
mod crypto;
mod encoding;
mod files;
mod format;
mod host;
mod numeric;
mod setops;
mod table;
mod text;
mod time;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use host::{DiskHost, Host, NoHost};
pub use table::TABLE;

use crate::ast::Expr;
use crate::convert::convert;
use crate::diag::Diagnostic;
use crate::eval::{Budget, Evaluator, Scope};
use crate::number::Number;
use crate::source::Span;
use crate::suggest::did_you_mean;
use crate::types::{Type, type_from_expr};
use crate::value::Value;

/// A function's row.
pub struct Function {
    /// Name.
    pub name: &'static str,
    params: &'static [Param],
    rest: Option<Param>,
    body: Body,
    /// Whether driver schemas may call it too.
    driver: bool,
    /// Whether job files may call it.
    job: bool,
}

enum Body {
    /// Called with converted arguments.
    Run(fn(&Args<'_>) -> Outcome),
    /// Needs the file system.
    Files(fn(&Args<'_>) -> Outcome),
    /// Exists in the reference, refused here.
    Refused(&'static str),
    Try,
    Can,
    Convert,
}

/// A parameter.
#[derive(Clone, Copy)]
pub(crate) struct Param {
    name: &'static str,
    kind: Kind,
    null: bool,
}

/// What a parameter is converted to.
#[derive(Clone, Copy)]
enum Kind {
    Any,
    String,
    Number,
    StringList,
    AnySet,
}

impl Kind {
    fn ty(self) -> Type {
        match self {
            Kind::Any => Type::Any,
            Kind::String => Type::String,
            Kind::Number => Type::Number,
            Kind::StringList => Type::list(Type::String),
            Kind::AnySet => Type::set(Type::Any),
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct CallError {
    /// The argument to blame, if one is.
    argument: Option<usize>,
    detail: String,
}

type Outcome = Result<Value, CallError>;

fn fail<T>(detail: impl Into<String>) -> Result<T, CallError> {
    Err(CallError { argument: None, detail: detail.into() })
}

fn fail_arg<T>(argument: usize, detail: impl Into<String>) -> Result<T, CallError> {
    Err(CallError { argument: Some(argument), detail: detail.into() })
}

/// The arguments of one call.
pub(crate) struct Args<'a> {
    values: Vec<Value>,
    host: &'a dyn Host,
    budget: &'a Budget,
}

impl Args<'_> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn value(&self, i: usize) -> &Value {
        self.values.get(i).unwrap_or(&Value::NULL)
    }

    /// A string argument; the table has seen to it that it is one.
    fn text(&self, i: usize) -> &str {
        self.value(i).as_str().unwrap_or("")
    }

    fn number(&self, i: usize) -> &Number {
        match self.value(i) {
            Value::Number(n) => n,
            _ => &Number::ZERO,
        }
    }

    /// A whole number argument.
    fn int(&self, i: usize) -> Result<i64, CallError> {
        match self.number(i).as_i64() {
            Some(int) => Ok(int),
            None => fail_arg(i, "a whole number is required"),
        }
    }

    /// Elements of a list, set or tuple argument.
    fn items(&self, i: usize) -> Result<&[Value], CallError> {
        match self.value(i).elements() {
            Some(items) => Ok(items),
            None => fail_arg(i, format!("a list is required, this is {}", self.value(i).kind())),
        }
    }

    /// Takes from the budget before something large is made.
    fn charge(&self, amount: usize) -> Result<(), CallError> {
        match self.budget.charge(amount as u64) {
            Ok(()) => Ok(()),
            Err(e) => fail(e.to_string()),
        }
    }
}

/// The functions one kind of file may call, with the host they act through.
#[derive(Clone)]
pub struct FunctionSet {
    names: Arc<BTreeSet<&'static str>>,
    host: Arc<dyn Host>,
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

    fn get(&self, name: &str) -> Option<&'static Function> {
        self.names.contains(name).then(|| TABLE.binary_search_by(|f| f.name.cmp(name)).ok().map(|i| &TABLE[i]))?
    }
}

impl fmt::Debug for FunctionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FunctionSet").field(&self.names.len()).finish()
    }
}

/// A call as it is written.
pub(crate) struct CallSite<'a> {
    pub(crate) name: &'a str,
    pub(crate) name_span: Span,
    pub(crate) span: Span,
    pub(crate) args: &'a [Expr],
    pub(crate) expand: bool,
}

/// Evaluates a call.
pub(crate) fn call(evaluator: &Evaluator<'_>, site: &CallSite<'_>, scope: &Scope, depth: usize) -> Result<Value, Diagnostic> {
    let set = &evaluator.context.functions;
    let Some(function) = set.get(site.name) else {
        if set.names.is_empty() {
            return evaluator.fail(
                site.name_span,
                "Functions not allowed",
                format!("{}(…) is a call, only constants may stand here", site.name),
            );
        }
        let diagnostic = Diagnostic::error("Unknown function", format!("there is no function named {:?}", site.name))
            .at(evaluator.source, site.name_span);
        return Err(did_you_mean(diagnostic, site.name, set.names()));
    };
    let lazy_args = |wanted: Option<usize>| {
        if site.expand || wanted.is_some_and(|n| n != site.args.len()) || site.args.is_empty() {
            return evaluator.fail::<()>(
                site.span,
                "Wrong number of arguments",
                match wanted {
                    Some(n) => format!("{} takes {n}, written out", site.name),
                    None => format!("{} takes at least one, written out", site.name),
                },
            );
        }
        Ok(())
    };
    let run = match &function.body {
        Body::Try => {
            lazy_args(None)?;
            let mut failures = Vec::new();
            for arg in site.args {
                match evaluator.eval(arg, scope, depth) {
                    Ok(value) => return Ok(value),
                    Err(e) => failures.push(e.to_string()),
                }
            }
            failures.truncate(5);
            return evaluator.fail(site.span, "Nothing to fall back on", format!("every argument of try failed:\n{}", failures.join("\n")));
        }
        Body::Can => {
            lazy_args(Some(1))?;
            return Ok(Value::Bool(evaluator.eval(&site.args[0], scope, depth).is_ok()));
        }
        Body::Convert => {
            lazy_args(Some(2))?;
            let ty = type_from_expr(&site.args[1], evaluator.source)?;
            let value = evaluator.eval(&site.args[0], scope, depth)?;
            return convert(&value, &ty).or_else(|e| evaluator.fail(site.args[0].span, "Unsuitable value", e.to_string()));
        }
        Body::Refused(reason) => {
            return evaluator.fail(site.name_span, "Function refused", format!("{} is not available: {reason}", site.name));
        }
        Body::Files(_) if !set.host.files_allowed() => {
            return Err(Diagnostic::error("Function refused", format!("{}: filesystem function disabled", site.name))
                .at(evaluator.source, site.name_span)
                .hint("parse the file where its neighbours are, with the command line"));
        }
        Body::Run(run) | Body::Files(run) => run,
    };
    let (values, spans) = arguments(evaluator, site, function, scope, depth)?;
    let args = Args { values, host: set.host.as_ref(), budget: evaluator.budget() };
    let result = run(&args).and_then(|value| {
        args.charge(value.weight() as usize)?;
        Ok(value)
    });
    result.map_err(|e| {
        let span = e.argument.and_then(|i| spans.get(i)).copied().unwrap_or(site.span);
        Diagnostic::error("Call failed", format!("{}: {}", site.name, e.detail)).at(evaluator.source, span)
    })
}

fn arguments(
    evaluator: &Evaluator<'_>,
    site: &CallSite<'_>,
    function: &Function,
    scope: &Scope,
    depth: usize,
) -> Result<(Vec<Value>, Vec<Span>), Diagnostic> {
    let mut values = Vec::with_capacity(site.args.len());
    let mut spans = Vec::with_capacity(site.args.len());
    for (i, arg) in site.args.iter().enumerate() {
        let value = evaluator.eval(arg, scope, depth)?;
        if site.expand && i + 1 == site.args.len() {
            let Some(items) = value.elements() else {
                return evaluator.fail(
                    arg.span,
                    "Cannot expand",
                    format!("only a list can be expanded with ..., this is {}", value.kind()),
                );
            };
            spans.extend(items.iter().map(|_| arg.span));
            values.extend(items.iter().cloned());
        } else {
            values.push(value);
            spans.push(arg.span);
        }
    }
    let least = function.params.len();
    if values.len() < least || (values.len() > least && function.rest.is_none()) {
        let names: Vec<&str> = function.params.iter().map(|p| p.name).collect();
        let rest = function.rest.map_or(String::new(), |p| format!("{}{}...", if least > 0 { ", " } else { "" }, p.name));
        return evaluator.fail(
            site.span,
            "Wrong number of arguments",
            format!("{}({}{rest}) was called with {}", site.name, names.join(", "), values.len()),
        );
    }
    for (i, value) in values.iter_mut().enumerate() {
        let Some(param) = function.params.get(i).copied().or(function.rest) else {
            continue;
        };
        if value.is_null() && !param.null {
            return evaluator.fail(spans[i], "Unsuitable argument", format!("{}: {} must not be null", site.name, param.name));
        }
        *value = convert(value, &param.kind.ty())
            .or_else(|e| evaluator.fail(spans[i], "Unsuitable argument", format!("{}: {}: {e}", site.name, param.name)))?;
    }
    Ok((values, spans))
}

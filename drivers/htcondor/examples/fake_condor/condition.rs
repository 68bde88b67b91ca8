//! The part of the ClassAd language that the driver uses. Anything else is an error with the text: a fake that guesses
//! proves nothing.

use serde_json::{Map, Value};

use crate::Loud;

/// A value of the language.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Is {
    Undefined,
    Bool(bool),
    Int(i64),
    Text(String),
}

impl Is {
    /// As an attribute holds it.
    pub(crate) fn json(self) -> Value {
        match self {
            Is::Undefined => Value::Null,
            Is::Bool(is) => is.into(),
            Is::Int(n) => n.into(),
            Is::Text(text) => text.into(),
        }
    }

    fn of(value: Option<&Value>) -> Is {
        match value {
            Some(Value::Bool(is)) => Is::Bool(*is),
            Some(Value::Number(n)) => n.as_i64().map_or(Is::Undefined, Is::Int),
            Some(Value::String(text)) => Is::Text(text.clone()),
            _ => Is::Undefined,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Word {
    Value(Is),
    Name(String),
    Sign(&'static str),
}

#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Value(Is),
    Attribute(String),
    Call(String, Vec<Tree>),
    Two(&'static str, Box<Tree>, Box<Tree>),
}

/// Longer ones first.
const SIGNS: [&str; 15] = ["=?=", "=!=", "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "(", ")", ",", "?:"];
/// What binds, weakest first; all to the left.
const LEVELS: [&[&str]; 5] = [&["||"], &["&&"], &["==", "!=", "=?=", "=!="], &["<=", ">=", "<", ">"], &["+"]];

/// An expression that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expression(Tree);

impl Expression {
    /// Reads one.
    pub(crate) fn read(text: &str) -> Result<Self, Loud> {
        let mut rest = Reader { words: words(text)?, next: 0, text };
        let tree = rest.level(0)?;
        match rest.words.get(rest.next) {
            None => Ok(Self(tree)),
            Some(word) => Err(rest.wrong(&format!("{word:?} is too much"))),
        }
    }

    /// Its value for an ad; `now` is what `time()` says.
    pub(crate) fn value(&self, ad: &Map<String, Value>, now: i64) -> Result<Is, Loud> {
        value(&self.0, ad, now)
    }

    /// Whether it is true of an ad.
    pub(crate) fn holds(&self, ad: &Map<String, Value>, now: i64) -> Result<bool, Loud> {
        Ok(self.value(ad, now)? == Is::Bool(true))
    }
}

struct Reader<'a> {
    words: Vec<Word>,
    next: usize,
    text: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, why: &str) -> Loud {
        Loud(format!("the fake cannot read {:?}: {why}", self.text))
    }

    fn sign(&mut self, wanted: &str) -> bool {
        let is = matches!(self.words.get(self.next), Some(Word::Sign(sign)) if *sign == wanted);
        self.next += usize::from(is);
        is
    }

    fn level(&mut self, level: usize) -> Result<Tree, Loud> {
        let Some(signs) = LEVELS.get(level) else { return self.single() };
        let mut left = self.level(level + 1)?;
        while let Some(sign) = signs.iter().find(|sign| self.sign(sign)) {
            left = Tree::Two(sign, Box::new(left), Box::new(self.level(level + 1)?));
        }
        Ok(left)
    }

    fn single(&mut self) -> Result<Tree, Loud> {
        if self.sign("(") {
            let inner = self.level(0)?;
            return if self.sign(")") { Ok(inner) } else { Err(self.wrong("a parenthesis is open")) };
        }
        let word = self.words.get(self.next).cloned();
        self.next += 1;
        match word {
            Some(Word::Value(is)) => Ok(Tree::Value(is)),
            Some(Word::Name(name)) if self.sign("(") => {
                let mut args = Vec::new();
                while !self.sign(")") {
                    if !args.is_empty() && !self.sign(",") {
                        return Err(self.wrong("a call is open"));
                    }
                    args.push(self.level(0)?);
                }
                Ok(Tree::Call(name.to_lowercase(), args))
            }
            Some(Word::Name(name)) => Ok(match name.to_lowercase().as_str() {
                "true" => Tree::Value(Is::Bool(true)),
                "false" => Tree::Value(Is::Bool(false)),
                "undefined" => Tree::Value(Is::Undefined),
                _ => Tree::Attribute(name),
            }),
            word => Err(self.wrong(&format!("a value is missing before {word:?}"))),
        }
    }
}

fn words(text: &str) -> Result<Vec<Word>, Loud> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length;
        if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            words.push(Word::Sign(sign));
            length = sign.len();
        } else if first == '"' {
            let (mut literal, mut escaped, mut end) = (String::new(), false, None);
            for (at, c) in rest.char_indices().skip(1) {
                match c {
                    '"' if !escaped => {
                        end = Some(at + 1);
                        break;
                    }
                    '\\' if !escaped => escaped = true,
                    '\n' => break,
                    c => {
                        literal.push(c);
                        escaped = false;
                    }
                }
            }
            length = end.ok_or_else(|| Loud(format!("the fake cannot read {text:?}: a literal has no end")))?;
            words.push(Word::Value(Is::Text(literal)));
        } else if first.is_ascii_digit() {
            length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let n = rest[..length].parse().map_err(|why| Loud(format!("the fake cannot read {text:?}: {why}")))?;
            words.push(Word::Value(Is::Int(n)));
        } else if first.is_ascii_alphabetic() || first == '_' {
            let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            length = rest.find(|c| !part(c)).unwrap_or(rest.len());
            words.push(Word::Name(rest[..length].to_owned()));
        } else {
            return Err(Loud(format!("the fake cannot read {text:?}: {first:?}")));
        }
        rest = rest[length..].trim_start();
    }
    Ok(words)
}

/// The attribute of a name, which is the same in upper and lower case.
pub(crate) fn attribute<'a>(ad: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    ad.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn value(tree: &Tree, ad: &Map<String, Value>, now: i64) -> Result<Is, Loud> {
    let of = |tree: &Tree| value(tree, ad, now);
    Ok(match tree {
        Tree::Value(is) => is.clone(),
        Tree::Attribute(name) => {
            let name = name.strip_prefix("MY.").or(name.strip_prefix("My.")).unwrap_or(name);
            Is::of(attribute(ad, name))
        }
        Tree::Call(name, args) => match (name.as_str(), args.as_slice()) {
            ("isundefined", [one]) => Is::Bool(of(one)? == Is::Undefined),
            ("time", []) => Is::Int(now),
            ("ifthenelse", [condition, yes, no]) => match of(condition)? {
                Is::Bool(true) => of(yes)?,
                Is::Bool(false) => of(no)?,
                Is::Undefined => Is::Undefined,
                other => return Err(Loud(format!("the fake has no condition {other:?}"))),
            },
            _ => return Err(Loud(format!("the fake has no function {name} of {} values", args.len()))),
        },
        Tree::Two(sign, left, right) => {
            // The evaluator looks at the right side only where the left one does not decide.
            let left = of(left)?;
            match (*sign, &left) {
                ("&&", Is::Bool(false)) | ("||", Is::Bool(true)) => return Ok(left),
                _ => {}
            }
            two(sign, left, of(right)?)?
        }
    })
}

fn two(sign: &str, left: Is, right: Is) -> Result<Is, Loud> {
    Ok(match (sign, left, right) {
        ("&&", Is::Bool(true) | Is::Undefined, Is::Bool(false)) => Is::Bool(false),
        ("&&", Is::Bool(true), Is::Bool(true)) => Is::Bool(true),
        ("||", Is::Bool(false) | Is::Undefined, Is::Bool(true)) => Is::Bool(true),
        ("||", Is::Bool(false), Is::Bool(false)) => Is::Bool(false),
        // Identity: of texts also in upper and lower case.
        ("=?=", left, right) => Is::Bool(left == right),
        ("=!=", left, right) => Is::Bool(left != right),
        (_, Is::Undefined, _) | (_, _, Is::Undefined) => Is::Undefined,
        // Equality of texts does not see upper and lower case (HTCondor's manual, ClassAd evaluation semantics).
        ("==", Is::Text(left), Is::Text(right)) => Is::Bool(left.eq_ignore_ascii_case(&right)),
        ("!=", Is::Text(left), Is::Text(right)) => Is::Bool(!left.eq_ignore_ascii_case(&right)),
        ("==", Is::Bool(left), Is::Bool(right)) => Is::Bool(left == right),
        ("==", Is::Int(left), Is::Int(right)) => Is::Bool(left == right),
        ("!=", Is::Int(left), Is::Int(right)) => Is::Bool(left != right),
        ("<=", Is::Int(left), Is::Int(right)) => Is::Bool(left <= right),
        (">=", Is::Int(left), Is::Int(right)) => Is::Bool(left >= right),
        ("<", Is::Int(left), Is::Int(right)) => Is::Bool(left < right),
        (">", Is::Int(left), Is::Int(right)) => Is::Bool(left > right),
        ("+", Is::Int(left), Is::Int(right)) => Is::Int(left.saturating_add(right)),
        (sign, left, right) => return Err(Loud(format!("the fake cannot tell {left:?} {sign} {right:?}"))),
    })
}

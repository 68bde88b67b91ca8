//! Evaluates definitions, by the rules of Go's text/template, within limits.

use std::collections::BTreeSet;

use crate::{
    ast::{Branch, Command, Definitions, Name, Node, Operand, OperandKind, Pipe},
    error::Fault,
    funcs::{Call, Function, Runs, scratch},
    means::Means,
    print,
    settings::Settings,
    source::Source,
    value::Value,
};

enum Flow {
    Next,
    Break,
    Continue,
}

/// One render.
pub(crate) struct Machine<'a> {
    definitions: &'a Definitions,
    means: Means<'a>,
    variables: Vec<(Name, Value)>,
    output: Vec<u8>,
    depth: usize,
}

impl<'a> Runs<'a> for Machine<'a> {
    fn means(&mut self) -> &mut Means<'a> {
        &mut self.means
    }

    fn nested(&mut self, name: &str, data: Value) -> Result<Value, Fault> {
        let outer = std::mem::take(&mut self.output);
        let result = self.template(name, data, 0);
        let inner = std::mem::replace(&mut self.output, outer);
        result.map(|()| Value::text(inner))
    }
}

impl<'a> Machine<'a> {
    pub(crate) fn new(definitions: &'a Definitions, source: &'a mut dyn Source, settings: &'a Settings) -> Self {
        Self { definitions, means: Means::new(source, settings), variables: Vec::new(), output: Vec::new(), depth: 0 }
    }

    pub(crate) fn run(&mut self, name: &str, dot: Value) -> Result<Vec<u8>, Fault> {
        self.template(name, dot, 0)?;
        Ok(std::mem::take(&mut self.output))
    }

    /// What the render waits for.
    pub(crate) fn finish(self) -> BTreeSet<String> {
        self.means.finish()
    }

    fn template(&mut self, name: &str, data: Value, at: usize) -> Result<(), Fault> {
        let definitions = self.definitions;
        let nodes = definitions
            .get(name)
            .ok_or_else(|| Fault::new(at, format!("there is no template {name:?}; define it in this text")))?;
        self.enter(at)?;
        let outer = std::mem::replace(&mut self.variables, vec![("$".into(), data.clone())]);
        let result = self.nodes(nodes, &data);
        self.variables = outer;
        self.depth -= 1;
        result.map(|_| ())
    }

    fn enter(&mut self, at: usize) -> Result<(), Fault> {
        self.depth += 1;
        let most = self.means.settings.limits.depth;
        if self.depth > most {
            return Err(Fault::new(
                at,
                format!(
                    "templates, blocks and parentheses are nested more than {most} deep; does a template call itself?"
                ),
            ));
        }
        self.step(at)
    }

    fn step(&mut self, at: usize) -> Result<(), Fault> {
        self.means.spend(1).map_err(|m| Fault::new(at, m))
    }

    fn write(&mut self, bytes: &[u8], at: usize) -> Result<(), Fault> {
        let most = self.means.settings.limits.output;
        if self.output.len() + bytes.len() > most {
            return Err(Fault::new(at, format!("the result is larger than {} MiB", most >> 20)));
        }
        self.output.extend_from_slice(bytes);
        Ok(())
    }

    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, Fault> {
        for node in nodes {
            let flow = match node {
                Node::Text(text) => {
                    self.step(0)?;
                    self.write(text.as_bytes(), 0)?;
                    Flow::Next
                }
                Node::Action(pipe) => {
                    let value = self.pipe(pipe, dot)?;
                    if pipe.variables.is_empty() {
                        self.print(&value, pipe.at)?;
                    }
                    Flow::Next
                }
                Node::If(branch) => self.scoped(|m| m.choose(branch, dot, false))?,
                Node::With(branch) => self.scoped(|m| m.choose(branch, dot, true))?,
                Node::Range(branch) => self.scoped(|m| m.range(branch, dot))?,
                Node::Template { at, name, data } => {
                    let data = data.as_ref().map_or(Ok(Value::Nil), |p| self.scoped(|m| m.pipe(p, dot)))?;
                    self.template(name, data, *at)?;
                    Flow::Next
                }
                Node::Break => return Ok(Flow::Break),
                Node::Continue => return Ok(Flow::Continue),
            };
            if !matches!(flow, Flow::Next) {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// Forgets variables that were declared within.
    fn scoped<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        let visible = self.variables.len();
        let result = work(self);
        self.variables.truncate(visible);
        result
    }

    fn choose(&mut self, branch: &Branch, dot: &Value, sets_dot: bool) -> Result<Flow, Fault> {
        self.enter(branch.at)?;
        let value = self.pipe(&branch.pipe, dot)?;
        let flow = if value.is_true() {
            self.nodes(&branch.body, if sets_dot { &value } else { dot })
        } else {
            self.nodes(&branch.otherwise, dot)
        }?;
        self.depth -= 1;
        Ok(flow)
    }

    fn range(&mut self, branch: &Branch, dot: &Value) -> Result<Flow, Fault> {
        self.enter(branch.at)?;
        let value = self.pipe(&branch.pipe, dot)?;
        let declared = self.variables.len();
        let variables = &branch.pipe.variables;
        let two_is_wrong = |what: &str| Fault::new(branch.at, format!("range over {what} gives one variable, not two"));
        let mut rounds: Box<dyn Iterator<Item = (Value, Value)>> = match &value {
            Value::Nil => Box::new(std::iter::empty()),
            Value::List(list) => {
                let list = list.clone();
                Box::new((0..list.items.len()).map(move |n| (Value::Int(n as i64), list.items[n].clone())))
            }
            Value::Map(map) => {
                let map = map.clone();
                let keys: Vec<_> = map.entries.keys().cloned().collect();
                Box::new(
                    keys.into_iter()
                        .map(move |k| (Value::Str(k.clone()), map.entries.get(&k).cloned().unwrap_or(Value::Nil))),
                )
            }
            Value::Int(count) => {
                if variables.len() > 1 {
                    return Err(two_is_wrong("a number"));
                }
                Box::new((0..*count).map(|n| (Value::Int(n), Value::Int(n))))
            }
            Value::Uint(count) => {
                if variables.len() > 1 {
                    return Err(two_is_wrong("a number"));
                }
                Box::new((0..*count).map(|n| (Value::Uint(n), Value::Uint(n))))
            }
            Value::Loop(start, stop) => {
                let start = *start;
                Box::new((start..*stop).map(move |n| (Value::Int(n - start), Value::Int(n))))
            }
            other => {
                return Err(Fault::new(
                    branch.at,
                    format!("range cannot go over a value of type {}", other.type_name()),
                ));
            }
        };
        let mut flow = Flow::Next;
        let mut empty = true;
        for (index, item) in &mut rounds {
            empty = false;
            self.step(branch.at)?;
            match variables.as_slice() {
                [] => {}
                [one] => self.bind(branch, one, declared - 1, item.clone())?,
                [first, second, ..] => {
                    self.bind(branch, first, declared - 2, index)?;
                    self.bind(branch, second, declared - 1, item.clone())?;
                }
            }
            let flow = self.nodes(&branch.body, &item)?;
            self.variables.truncate(declared);
            if matches!(flow, Flow::Break) {
                break;
            }
        }
        if empty {
            flow = self.nodes(&branch.otherwise, dot)?;
        }
        self.depth -= 1;
        Ok(flow)
    }

    /// Gives a loop variable its value of this round.
    fn bind(&mut self, branch: &Branch, name: &str, place: usize, value: Value) -> Result<(), Fault> {
        if branch.pipe.assign {
            return self.set(name, value, branch.at);
        }
        if let Some(variable) = self.variables.get_mut(place) {
            variable.1 = value;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Value, at: usize) -> Result<(), Fault> {
        let found = self.variables.iter_mut().rev().find(|(n, _)| &**n == name);
        let variable = found.ok_or_else(|| Fault::new(at, format!("the variable {name} is not declared here")))?;
        variable.1 = value;
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, Fault> {
        self.enter(pipe.at)?;
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(command, dot, value)?);
        }
        let value = value.unwrap_or(Value::Nil);
        for name in &pipe.variables {
            if pipe.assign {
                self.set(name, value.clone(), pipe.at)?;
            } else {
                self.variables.push((name.as_str().into(), value.clone()));
            }
        }
        self.depth -= 1;
        Ok(value)
    }

    fn command(&mut self, command: &Command, dot: &Value, last: Option<Value>) -> Result<Value, Fault> {
        let Some((first, rest)) = command.operands.split_first() else { return Ok(Value::Nil) };
        self.step(first.at)?;
        match &first.kind {
            OperandKind::Call(function) => return self.call(function, first.at, rest, dot, last),
            OperandKind::Field(names) => return self.fields(dot.clone(), names, first.at, rest, dot, last),
            OperandKind::Variable(name, names) => {
                let value = self.variable(name, first.at)?;
                return self.fields(value, names, first.at, rest, dot, last);
            }
            OperandKind::Chain(inner, names) => {
                let value = self.operand(inner, dot)?;
                return self.fields(value, names, first.at, rest, dot, last);
            }
            _ => {}
        }
        if let Some(given) = rest.first() {
            return Err(Fault::new(given.at, "arguments are given to something that is not a function"));
        }
        if last.is_some() {
            return Err(Fault::new(first.at, "what follows | is not a function and cannot take a value"));
        }
        if matches!(first.kind, OperandKind::Nil) {
            return Err(Fault::new(first.at, "nil is not a command"));
        }
        self.operand(first, dot)
    }

    fn variable(&self, name: &str, at: usize) -> Result<Value, Fault> {
        let found = self.variables.iter().rev().find(|(n, _)| &**n == name);
        found.map(|(_, v)| v.clone()).ok_or_else(|| Fault::new(at, format!("the variable {name} is not declared here")))
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, Fault> {
        self.step(operand.at)?;
        Ok(match &operand.kind {
            OperandKind::Dot => dot.clone(),
            OperandKind::Nil => Value::Nil,
            OperandKind::Bool(b) => Value::Bool(*b),
            OperandKind::Int(i) => Value::Int(*i),
            OperandKind::Float(f) => Value::Float(*f),
            OperandKind::Str(text) => Value::text(text),
            OperandKind::Field(names) => self.fields(dot.clone(), names, operand.at, &[], dot, None)?,
            OperandKind::Variable(name, names) => {
                let value = self.variable(name, operand.at)?;
                self.fields(value, names, operand.at, &[], dot, None)?
            }
            OperandKind::Chain(inner, names) => {
                let value = self.operand(inner, dot)?;
                self.fields(value, names, operand.at, &[], dot, None)?
            }
            OperandKind::Call(function) => self.call(function, operand.at, &[], dot, None)?,
            OperandKind::Pipe(pipe) => self.pipe(pipe, dot)?,
        })
    }

    /// `value.a.b`; the last name may be a method with arguments.
    fn fields(
        &mut self,
        mut value: Value,
        names: &[String],
        at: usize,
        rest: &[Operand],
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, Fault> {
        let mut given = Some((rest, last));
        let mut before = Value::Nil;
        for (n, name) in names.iter().enumerate() {
            if n > 0 && matches!(value, Value::Nil) && !matches!(before, Value::Nil) {
                return Err(Fault::new(
                    at,
                    format!("there is nothing at {}, so it has no field {name}", names[..n].join(".")),
                ));
            }
            if let Value::Scratch(scratch) = &value {
                let scratch = scratch.clone();
                let mut args = Vec::new();
                if n + 1 == names.len()
                    && let Some((rest, last)) = given.take()
                {
                    for operand in rest {
                        args.push(self.operand(operand, dot)?);
                    }
                    args.extend(last);
                }
                value = scratch::method(&mut self.means, &scratch, name, args).map_err(|m| Fault::new(at, m))?;
                continue;
            }
            let next = self.field(&value, name, at)?;
            before = std::mem::replace(&mut value, next);
        }
        match given {
            Some((rest, last)) if !rest.is_empty() || last.is_some() => {
                let name = names.last().map_or("a variable", String::as_str);
                Err(Fault::new(at, format!("{name} is not a function but is given arguments")))
            }
            _ => Ok(value),
        }
    }

    fn field(&mut self, value: &Value, name: &str, at: usize) -> Result<Value, Fault> {
        match value {
            Value::Map(map) => match map.member(name) {
                Some(found) => Ok(found.clone()),
                None if map.record => {
                    let names: Vec<_> = map.entries.keys().map(|k| String::from_utf8_lossy(k)).collect();
                    Err(Fault::new(at, format!("there is no field {name}; there are {}", names.join(", "))))
                }
                None if self.means.settings.error_on_missing_key => {
                    Err(Fault::new(at, format!("the map has no entry for the key {name:?}")))
                }
                None if map.of_strings => Ok(Value::text("")),
                None => Ok(Value::Nil),
            },
            Value::Nil if self.means.settings.error_on_missing_key => {
                Err(Fault::new(at, format!("there is no data, so no entry for the key {name:?}")))
            }
            Value::Nil => Ok(Value::Nil),
            other => Err(Fault::new(at, format!("a value of type {} has no field {name}", other.type_name()))),
        }
    }

    fn call(
        &mut self,
        function: &'static Function,
        at: usize,
        rest: &[Operand],
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, Fault> {
        let count = rest.len() + usize::from(last.is_some());
        if count < function.least || count > function.most {
            let wanted = match (function.least, function.most) {
                (least, usize::MAX) => format!("at least {least}"),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            };
            return Err(Fault::new(at, format!("{} takes {wanted} argument(s), {count} given", function.name)));
        }
        // These two look at their arguments one by one.
        if matches!(function.name, "and" | "or") {
            let stop_at = function.name == "or";
            let mut value = Value::Nil;
            for operand in rest {
                value = self.operand(operand, dot)?;
                if value.is_true() == stop_at {
                    return Ok(value);
                }
            }
            return Ok(last.unwrap_or(value));
        }
        let mut args = Vec::with_capacity(count);
        for operand in rest {
            args.push(self.operand(operand, dot)?);
        }
        args.extend(last);
        self.enter(at)?;
        let result = (function.run)(&mut Call { machine: self, args: &args });
        let result = result.map_err(|failure| failure.at(at, function.name))?;
        self.depth -= 1;
        Ok(result)
    }

    fn print(&mut self, value: &Value, at: usize) -> Result<(), Fault> {
        if matches!(value, Value::Nil) {
            return self.write(b"<no value>", at);
        }
        if let Value::Str(text) = value {
            return self.write(text, at);
        }
        let mut out =
            print::Out::new(self.means.settings.limits.output.saturating_sub(self.output.len()).min(self.means.room()));
        print::plain(&mut out, value).map_err(|m| Fault::new(at, m))?;
        let bytes = out.finish();
        self.means.allocate(bytes.len()).map_err(|m| Fault::new(at, m))?;
        self.write(&bytes, at)
    }
}

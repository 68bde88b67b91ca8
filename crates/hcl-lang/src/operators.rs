//! Operators. Operands are converted first: `2 + "3"` is 5, `!"true"` is false.

use crate::ast::{BinaryOp, UnaryOp};
use crate::convert::convert;
use crate::number::Number;
use crate::types::Type;
use crate::value::Value;

/// Which operand an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
    Both,
}

pub(crate) fn unary(op: UnaryOp, value: &Value) -> Result<Value, String> {
    match op {
        UnaryOp::Neg => number(value)?.neg().map(Value::Number).ok_or_else(out_of_range),
        UnaryOp::Not => Ok(Value::Bool(!bool(value)?)),
    }
}

pub(crate) fn binary(a: &Value, op: BinaryOp, b: &Value) -> Result<Value, (Side, String)> {
    match op {
        BinaryOp::Eq => Ok(Value::Bool(equal(a, b))),
        BinaryOp::NotEq => Ok(Value::Bool(!equal(a, b))),
        BinaryOp::And | BinaryOp::Or => {
            let a = bool(a).map_err(|e| (Side::Left, e))?;
            let b = bool(b).map_err(|e| (Side::Right, e))?;
            Ok(Value::Bool(if op == BinaryOp::And { a && b } else { a || b }))
        }
        BinaryOp::Greater | BinaryOp::GreaterEq | BinaryOp::Less | BinaryOp::LessEq => {
            let (a, b) = numbers(a, b)?;
            Ok(Value::Bool(match op {
                BinaryOp::Greater => a > b,
                BinaryOp::GreaterEq => a >= b,
                BinaryOp::Less => a < b,
                _ => a <= b,
            }))
        }
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Mod => {
            let (a, b) = numbers(a, b)?;
            if matches!(op, BinaryOp::Div | BinaryOp::Mod) && b == Number::ZERO {
                return Err((Side::Right, "division by zero".into()));
            }
            let result = match op {
                BinaryOp::Add => a.add(&b),
                BinaryOp::Sub => a.sub(&b),
                BinaryOp::Mul => a.mul(&b),
                BinaryOp::Div => a.div(&b),
                _ => a.rem(&b),
            };
            result.map(Value::Number).ok_or_else(|| (Side::Both, out_of_range()))
        }
    }
}

/// Equal in type and value; all nulls are equal.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    (a.is_null() && b.is_null()) || a == b
}

fn out_of_range() -> String {
    "the result is out of range".into()
}

fn numbers(a: &Value, b: &Value) -> Result<(Number, Number), (Side, String)> {
    Ok((number(a).map_err(|e| (Side::Left, e))?, number(b).map_err(|e| (Side::Right, e))?))
}

fn number(value: &Value) -> Result<Number, String> {
    match convert(value, &Type::Number) {
        Ok(Value::Number(n)) => Ok(n),
        Ok(_) => Err("a number is required, this is null".into()),
        Err(_) => Err(format!("a number is required, this is {}", shown(value))),
    }
}

fn bool(value: &Value) -> Result<bool, String> {
    match convert(value, &Type::Bool) {
        Ok(Value::Bool(b)) => Ok(b),
        Ok(_) => Err("a bool is required, this is null".into()),
        Err(_) => Err(format!("a bool is required, this is {}", shown(value))),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(s) if s.len() <= 40 => format!("the string {s:?}"),
        other => other.kind(),
    }
}

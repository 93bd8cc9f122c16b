//! Jinja's filters that convert values to numbers.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, State};

use super::calls::{add_filter, Args};
use super::unicode::is_space;
use super::values::{float, integer, invalid, number, type_name, undefined};

pub fn register(environment: &mut Environment) {
    add_filter(environment, "int", to_int);
    add_filter(environment, "float", to_float);
    environment.add_filter("abs", absolute);
    add_filter(environment, "round", round);
    environment.add_test("divisibleby", is_divisible);
}

fn to_int(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("int", args, &["value", "default", "base"])?;
    let value = args.required(0)?;
    if value.is_undefined() {
        return Err(undefined());
    }
    let default = || args.get(1).cloned().unwrap_or_else(|| Value::from(0));
    let too_large = || invalid("int: the number is too large");
    if let Some(integer) = integer(value) {
        return Ok(Value::from(integer));
    }
    if let Some(float) = float(value) {
        return match truncated(float) {
            Some(integer) => Ok(Value::from(integer)),
            None if float.is_nan() => Ok(default()),
            None => Err(too_large()),
        };
    }
    let Some(text) = value.as_str() else {
        return Ok(default());
    };
    let base = u32::try_from(args.integer_or(2, 10)?).unwrap_or(u32::MAX);
    if let Some(integer) = parse_int(text, base) {
        return Ok(Value::from(integer));
    }
    let parsed = parse_float(text).filter(|float| float.is_finite());
    match parsed.map(truncated) {
        Some(Some(integer)) => Ok(Value::from(integer)),
        Some(None) => Err(too_large()),
        None => Ok(default()),
    }
}

fn truncated(float: f64) -> Option<i128> {
    let fits = float.is_finite() && float.abs() < i128::MAX as f64;
    fits.then_some(float as i128)
}

/// Digits, with single underscores between them as in Python's literals.
fn without_underscores(digits: &str) -> Option<String> {
    let misplaced = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!misplaced).then(|| digits.replace('_', ""))
}

fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && [0, *of].contains(&base));
    let (digits, base) = match prefixed {
        // An underscore may follow the prefix.
        Some((prefix, of)) => {
            let rest = &lower[prefix.len()..];
            (rest.strip_prefix('_').unwrap_or(rest), of)
        }
        None if base == 0 && lower.len() > 1 && lower.starts_with('0') => {
            return lower
                .bytes()
                .all(|byte| matches!(byte, b'0' | b'_'))
                .then_some(0);
        }
        None => (lower.as_str(), if base == 0 { 10 } else { base }),
    };
    if !(2..=36).contains(&base) || digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from_str_radix(&without_underscores(digits)?, base).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

fn parse_float(text: &str) -> Option<f64> {
    // Rust's parser takes the same notations, "inf" and "nan" among them.
    without_underscores(text.trim_matches(is_space))?
        .parse()
        .ok()
}

fn to_float(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("float", args, &["value", "default"])?;
    let value = args.required(0)?;
    if value.is_undefined() {
        return Err(undefined());
    }
    let parsed = match value.as_str() {
        Some(text) => parse_float(text),
        None => number(value),
    };
    let default = || args.get(1).cloned().unwrap_or_else(|| Value::from(0.0));
    Ok(parsed.map_or_else(default, Value::from))
}

fn absolute(value: &Value) -> Result<Value, Error> {
    match (integer(value), float(value)) {
        (Some(integer), _) => Ok(Value::from(integer.checked_abs().unwrap_or(i128::MAX))),
        (None, Some(float)) => Ok(Value::from(float.abs())),
        _ => Err(invalid(format!(
            "abs: not possible for {}",
            type_name(value)
        ))),
    }
}

fn round(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new("round", args, &["value", "precision", "method"])?;
    let value = args.required(0)?;
    let value = match (value.kind(), integer(value)) {
        (ValueKind::Bool, Some(integer)) => Value::from(integer),
        _ => value.clone(),
    };
    let precision = args
        .integer_or(1, 0)?
        .clamp(i32::MIN.into(), i32::MAX.into());
    let none = Kwargs::from_iter(std::iter::empty::<(String, Value)>());
    let method = args.text_or(2, "common")?;
    minijinja::filters::round(value, Some(precision as i32), Some(method), none)
}

fn is_divisible(value: &Value, by: &Value) -> Result<bool, Error> {
    match (integer(value), integer(by)) {
        (Some(_), Some(0)) => Err(invalid("divisibleby: division by zero")),
        (Some(value), Some(by)) => Ok(value.wrapping_rem(by) == 0),
        _ => match (number(value), number(by)) {
            (Some(value), Some(by)) if by != 0.0 => Ok(value % by == 0.0),
            _ => Err(invalid(
                "divisibleby: needs two numbers, the second not zero",
            )),
        },
    }
}

//! Template values as Python has them: `str()`, `repr()`, names of types.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::unicode;
use crate::python_json::float_repr;

/// Deeper values are refused: the request's JSON is far shallower, and printing recurses.
pub const MAX_DEPTH: usize = 200;

pub fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

pub fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "the value is undefined")
}

pub fn float(value: &Value) -> Option<f64> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok()
}

/// An int, or a bool as an int, as in Python.
pub fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(value.is_true().into()),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

pub fn number(value: &Value) -> Option<f64> {
    float(value).or_else(|| integer(value).map(|integer| integer as f64))
}

/// The text of a string value, or an error that names the function that requires one.
pub fn text<'a>(value: &'a Value, what: &str) -> Result<&'a str, Error> {
    value
        .as_str()
        .ok_or_else(|| invalid(format!("{what}: must be text, not {}", type_name(value))))
}

pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq)
}

/// A list, or a value that MiniJinja produces for a list or an iterator of Python.
pub fn is_list_like(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map => "dict",
        ValueKind::Iterable => "iterable",
        _ => "object",
    }
}

/// Python's `str(value)`.
pub fn to_text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_string()),
        ValueKind::Undefined => Ok(String::new()),
        _ => repr(value),
    }
}

/// Python's `repr(value)`.
pub fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("a value is nested too deeply to be printed"));
    }
    if let Some(float) = float(value) {
        out.push_str(&float_repr(float));
        return Ok(());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_text_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Bytes => write_bytes_repr(out, value.as_bytes().unwrap_or_default()),
        ValueKind::Map if is_plain_map(value) => write_map_repr(out, value, depth)?,
        ValueKind::Seq if value.is_tuple() => {
            let count = write_items(out, value, '(', depth)?;
            out.push_str(if count == 1 { ",)" } else { ")" });
        }
        ValueKind::Seq if !super::objects::prints_itself(value) => {
            write_items(out, value, '[', depth)?;
            out.push(']');
        }
        ValueKind::Iterable => match super::objects::view_name(value) {
            Some(name) => {
                out.push_str(name);
                write_items(out, value, '(', depth)?;
                out.push(')');
            }
            None => {
                write_items(out, value, '[', depth)?;
                out.push(']');
            }
        },
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Loops are maps to MiniJinja, and print themselves.
fn is_plain_map(value: &Value) -> bool {
    super::objects::type_of_object(value).is_some_and(|name| name != "Loop")
}

fn write_items(out: &mut String, value: &Value, open: char, depth: usize) -> Result<usize, Error> {
    let is_view = super::objects::view_name(value).is_some();
    out.push(open);
    if is_view {
        out.push('[');
    }
    let mut count = 0;
    for item in value.try_iter()?.checked() {
        if count > 0 {
            out.push_str(", ");
        }
        write_repr(out, &item?, depth + 1)?;
        count += 1;
    }
    if is_view {
        out.push(']');
    }
    Ok(count)
}

fn write_map_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    out.push('{');
    for (index, pair) in pairs(value)?.into_iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_repr(out, &pair.0, depth + 1)?;
        out.push_str(": ");
        write_repr(out, &pair.1, depth + 1)?;
    }
    out.push('}');
    Ok(())
}

/// The entries of a mapping in its order.
pub fn pairs(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let Some(iter) = value.as_object().and_then(|object| object.try_iter_pairs()) else {
        return Err(invalid(format!(
            "a mapping is needed, not {}",
            type_name(value)
        )));
    };
    Ok(iter.collect())
}

fn write_text_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if unicode::is_printable(c) => out.push(c),
            c => out.push_str(&escaped(c)),
        }
    }
    out.push(quote);
}

fn escaped(c: char) -> String {
    match u32::from(c) {
        code @ ..=0xff => format!("\\x{code:02x}"),
        code @ ..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// Python's `ascii(value)`.
pub fn ascii_repr(value: &Value) -> Result<String, Error> {
    let escape = |c: char| {
        if c.is_ascii() {
            c.to_string()
        } else {
            escaped(c)
        }
    };
    Ok(repr(value)?.chars().map(escape).collect())
}

fn write_bytes_repr(out: &mut String, bytes: &[u8]) {
    out.push_str("b'");
    for byte in bytes {
        match byte {
            b'\\' | b'\'' => out.extend(['\\', char::from(*byte)]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b' '..=b'~' => out.push(char::from(*byte)),
            byte => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('\'');
}

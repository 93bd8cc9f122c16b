//! The environment that Transformers gives chat templates: Jinja with Python's methods, literals and
//! notions of emptiness, `tojson` without HTML escapes, `raise_exception` and `strftime_now`.

use std::error::Error as StdError;
use std::ffi::CString;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat;

use crate::python_json;

pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.expect("the default delimiters are valid"));
    environment.set_unknown_method_callback(pycompat::unknown_method_callback);
    environment.set_formatter(write_value);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", string);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// The source of an error that the template raised on purpose.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(
        Error::new(ErrorKind::InvalidOperation, "raised by the template")
            .with_source(Raised(message)),
    )
}

fn float(value: &Value) -> Option<f64> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok()
}

fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match float(value) {
        Some(float) => Ok(out.write_str(&python_json::float_repr(float))?),
        None => escape_formatter(out, state, value),
    }
}

fn string(value: &Value) -> Value {
    match (float(value), value.as_str()) {
        (Some(float), _) => Value::from(python_json::float_repr(float)),
        (None, Some(_)) => value.clone(),
        (None, None) => Value::from(value.to_string()),
    }
}

/// Jinja's undefined is empty.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of type {} has no length", value.kind()),
        )
    })
}

/// None is not iterable, but undefined is.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `json.dumps` behind the filter: tojson(value, ensure_ascii, indent, separators, sort_keys).
fn to_json(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let invalid = |message| Error::new(ErrorKind::InvalidOperation, message);
    if value.is_undefined() {
        return Err(invalid("tojson: the value is undefined"));
    }
    let json = serde_json::to_value(value).map_err(|error| invalid("tojson").with_source(error))?;
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(indent)?),
        }),
    };
    let mut style = python_json::Style::new(indent);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| invalid("tojson: separators must be two strings"))?;
        style.item_separator = item;
        style.key_separator = key;
    }
    style.ensure_ascii = match ensure_ascii {
        Some(ensure_ascii) => ensure_ascii,
        None => options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
    };
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    Ok(Value::from(python_json::to_string(&json, &style)))
}

/// The local time in C's notation, which is also Python's.
fn strftime_now(format: String) -> Result<String, Error> {
    let invalid = |message| Error::new(ErrorKind::InvalidOperation, message);
    if format.is_empty() {
        return Ok(format);
    }
    let c_format =
        CString::new(format).map_err(|_| invalid("strftime_now: zero byte in format"))?;
    let mut text = [0u8; 1024];
    // SAFETY: `now` and `fields` outlive the calls, strftime writes at most text.len() bytes and
    // c_format ends with a zero byte. A zeroed tm is a valid one.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut fields: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut fields).is_null() {
            return Err(invalid("strftime_now: the clock is out of range"));
        }
        libc::strftime(
            text.as_mut_ptr().cast(),
            text.len(),
            c_format.as_ptr(),
            &fields,
        )
    };
    if length == 0 {
        return Err(invalid("strftime_now: the result is empty or too long"));
    }
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

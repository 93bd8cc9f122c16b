//! The functions that Transformers adds to Jinja for chat templates: `tojson` without HTML escapes,
//! `raise_exception` and `strftime_now`.

use std::error::Error as StdError;
use std::ffi::CString;
use std::fmt;

use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::jinja::{self, invalid, Args};
use crate::python_json;

pub fn environment() -> Environment<'static> {
    let mut environment = jinja::environment();
    jinja::add_filter(&mut environment, "tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// The source of an error that the template raised with `raise_exception`.
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

/// `json.dumps` as a filter.
fn to_json(_state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let names = &["x", "ensure_ascii", "indent", "separators", "sort_keys"];
    let args = Args::new("tojson", args, names)?;
    let indent = match args.given(2) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(args.integer_or(2, 0)?.clamp(0, 1000) as usize),
        }),
    };
    let mut style = python_json::Style::new(indent);
    if let Some(separators) = args.given(3) {
        let texts = separators.try_iter()?;
        let texts: Vec<String> = texts
            .filter_map(|text| Some(text.as_str()?.to_string()))
            .collect();
        let [item, key] = <[String; 2]>::try_from(texts)
            .map_err(|_| invalid("tojson: separators must be two strings"))?;
        style.item_separator = item;
        style.key_separator = key;
    }
    style.ensure_ascii = args.is_true(1, false);
    style.sort_keys = args.is_true(4, false);
    python_json::to_string(args.required(0)?, &style).map(Value::from)
}

/// The local time formatted by strftime, whose format C and Python share.
fn strftime_now(format: String) -> Result<String, Error> {
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

//! Writes JSON byte for byte as Python's `json.dumps` does: chat templates print tool definitions
//! with it, so other spacing would give prompts that the model was not trained on.

use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use crate::jinja::{self, invalid};

pub struct Style {
    pub ensure_ascii: bool,
    /// The indentation of each level of nesting; None writes everything on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Style {
    /// The default separators of `json.dumps`.
    pub fn new(indent: Option<String>) -> Self {
        Self {
            ensure_ascii: false,
            item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
            key_separator: ": ".to_string(),
            indent,
            sort_keys: false,
        }
    }
}

pub fn to_string(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > jinja::MAX_DEPTH {
        return Err(invalid("tojson: the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable if jinja::is_list(value) => {
            write_array(out, value, style, depth)?;
        }
        ValueKind::Map if jinja::is_dict(value) => write_object(out, value, style, depth)?,
        _ => {
            let kind = jinja::type_name(value);
            return Err(invalid(format!("tojson: {kind} cannot be written as JSON")));
        }
    }
    Ok(())
}

fn write_array(out: &mut String, items: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    out.push('[');
    let mut is_empty = true;
    for item in items.try_iter()?.checked() {
        if !is_empty {
            out.push_str(&style.item_separator);
        }
        is_empty = false;
        break_line(out, style, depth + 1);
        write_value(out, &item?, style, depth + 1)?;
    }
    if !is_empty {
        break_line(out, style, depth);
    }
    out.push(']');
    Ok(())
}

fn write_object(out: &mut String, map: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    let mut entries = Vec::new();
    for (key, item) in jinja::pairs(map)? {
        entries.push((key_text(&key)?, item));
    }
    if entries.is_empty() {
        out.push_str("{}");
        return Ok(());
    }
    if style.sort_keys {
        // Python orders strings by code point, which is the order of their UTF-8 bytes.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
    }
    out.push('{');
    for (index, (key, item)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        break_line(out, style, depth + 1);
        write_text(out, &key, style);
        out.push_str(&style.key_separator);
        write_value(out, &item, style, depth + 1)?;
    }
    break_line(out, style, depth);
    out.push('}');
    Ok(())
}

/// The text of a key; keys that are not strings get the text they have as values.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::None => Ok("null".to_string()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_string()),
        ValueKind::Number => Ok(number(key)),
        _ => {
            let kind = jinja::type_name(key);
            Err(invalid(format!("tojson: {kind} cannot be a key in JSON")))
        }
    }
}

fn number(value: &Value) -> String {
    match jinja::float(value) {
        Some(float) if float.is_nan() => "NaN".to_string(),
        Some(f64::INFINITY) => "Infinity".to_string(),
        Some(f64::NEG_INFINITY) => "-Infinity".to_string(),
        Some(float) => float_repr(float),
        None => value.to_string(),
    }
}

fn break_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

/// Python's repr of a float: Rust's shortest digits with a signed exponent of two digits or more.
pub fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_string();
    }
    let digits = format!("{float:?}");
    let Some((mantissa, exponent)) = digits.split_once('e') else {
        return digits;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{exponent:0>2}")
}

fn write_text(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
